//! The chain of authentication sources, and the log line of a refused login.

use std::net::SocketAddr;

use tenbin_broker::Config;
use tenbin_broker::auth::{Answer, AuthFuture, AuthRequest, Authenticator, Identity};
use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::auth::embedded::Embedded;
use crate::auth::guarded::{Passwords, with_password};
use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, text};

/// Two password files behind one listener, and a further listener with another order.
struct Chained {
    devices: Passwords,
    staff: Passwords,
    config: ConfigFile,
    broker: BrokerProcess,
}

impl Chained {
    fn start(rest: &str) -> Self {
        let devices = Passwords::of(&[("sensor", "one"), ("both", "device")]);
        let staff = Passwords::of(&[("alice", "wonderland"), ("both", "person")]);
        let config = ConfigFile::new(&configuration(&devices, &staff, rest));
        let broker = BrokerProcess::start_exactly(&["--config", config.path()]);
        Self { devices, staff, config, broker }
    }

    fn log_in(&self, listener: usize, user: &str, password: &str) -> ReasonCode {
        log_in(self.broker.addresses()[listener], user, password)
    }
}

fn configuration(devices: &Passwords, staff: &Passwords, rest: &str) -> String {
    let entry = |name: &str, kind: &str, file: &Passwords| {
        format!("[[auth]]\nname = {name:?}\nkind = {kind:?}\nfile = {:?}\n", file.path())
    };
    let entries = [entry("devices", "passwords", devices), entry("staff", "passwords", staff)].concat();
    let scram = entry("proofs", "scram", staff);
    format!(
        "{entries}{scram}\
         [[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nauth = [\"devices\", \"staff\", \"proofs\"]\n\
         [[listeners]]\nname = \"out\"\naddress = \"127.0.0.1:0\"\nauth = [\"staff\"]\nanonymous = true\n{rest}"
    )
}

fn log_in(address: SocketAddr, user: &str, password: &str) -> ReasonCode {
    let connect = Connect::new(ProtocolVersion::V5, text("c"));
    let connect = if user.is_empty() { connect } else { with_password(connect, user, password) };
    RawClient::try_connect(address, connect).1.reason
}

#[test]
fn first_source_that_knows_the_user_decides() {
    let chained = Chained::start("");
    let wrong = ReasonCode::BadUserNameOrPassword;
    for (listener, user, password, reason) in [
        (0, "sensor", "one", ReasonCode::Success),
        (0, "alice", "wonderland", ReasonCode::Success),
        (0, "both", "device", ReasonCode::Success),
        (0, "both", "person", wrong), // no way around a wrong password
        (0, "sensor", "wonderland", wrong),
        (0, "nobody", "one", wrong),
        (0, "", "", ReasonCode::NotAuthorized),
        (1, "both", "person", ReasonCode::Success),
        (1, "sensor", "one", wrong),
        (1, "", "", ReasonCode::Success),
    ] {
        assert_eq!(chained.log_in(listener, user, password), reason, "{listener} {user} {password}");
    }
    let lines = chained.broker.log().count("login refused", 5, PATIENCE);
    assert_eq!(lines, 5, "{:?}", chained.broker.log().all());
    let log = chained.broker.log().all();
    for fields in [
        "client=\"c\" user=\"both\" listener=\"in\" source=\"devices\" reason=\"wrong password\" code=",
        "client=\"c\" user=\"nobody\" listener=\"in\" source=\"\" reason=\"unknown user\" code=",
        "client=\"c\" user=\"\" listener=\"in\" source=\"\" reason=\"anonymous\" code=",
        "client=\"c\" user=\"sensor\" listener=\"out\" source=\"\" reason=\"unknown user\" code=",
    ] {
        assert!(
            log.iter().any(|line| line.contains("login refused peer=127.0.0.1:") && line.contains(fields)),
            "{log:#?}"
        );
    }
}

#[test]
fn changed_password_of_one_source_ends_its_clients_only() {
    let chained = Chained::start("");
    let connect = |user, password, id| with_password(Connect::new(ProtocolVersion::V5, text(id)), user, password);
    let (mut sensor, _) = RawClient::connect(chained.broker.address(), connect("sensor", "one", "a"));
    let (mut alice, _) = RawClient::connect(chained.broker.address(), connect("alice", "wonderland", "b"));
    chained.devices.write("");
    let text = configuration(&chained.devices, &chained.staff, "");
    std::fs::write(chained.config.path(), text).expect("ours to write");
    chained.broker.signal("HUP");
    sensor.expect_end(ReasonCode::NotAuthorized);
    assert_eq!(alice.publish("a", "x", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    assert_eq!(chained.log_in(0, "sensor", "one"), ReasonCode::BadUserNameOrPassword);
}

#[test]
fn address_with_failed_logins_is_refused_before_any_check() {
    let chained = Chained::start("[connections]\nfailures_per_minute_per_address = 2\n");
    assert_eq!(chained.log_in(0, "sensor", "one"), ReasonCode::Success);
    for _ in 0..2 {
        assert_eq!(chained.log_in(0, "sensor", "wrong"), ReasonCode::BadUserNameOrPassword);
    }
    assert_eq!(chained.log_in(0, "sensor", "one"), ReasonCode::ConnectionRateExceeded);
    assert_eq!(chained.broker.log().count("too many failed logins", 1, PATIENCE), 1);
}

/// Knows one user, and leaves the others to the configuration.
struct Host;

impl Authenticator for Host {
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_> {
        Box::pin(async move {
            match request.user_name {
                Some(user) if user.as_str() == "host" => Answer::Accept { identity: Identity::user(user), data: None },
                _ => Answer::NotMine,
            }
        })
    }
}

#[test]
fn custom_authenticator_leaves_others_to_the_chain() {
    let (devices, staff) = (Passwords::of(&[("sensor", "one")]), Passwords::of(&[("alice", "wonderland")]));
    let config = Config::parse(&configuration(&devices, &staff, "")).expect("legal");
    let embedded = Embedded::start(config, |builder| builder.authenticator(Host));
    let address = embedded.addresses()[0];
    for (user, password, reason) in [
        ("host", "any", ReasonCode::Success),
        ("sensor", "one", ReasonCode::Success),
        ("sensor", "any", ReasonCode::BadUserNameOrPassword),
        ("nobody", "any", ReasonCode::BadUserNameOrPassword),
    ] {
        assert_eq!(log_in(address, user, password), reason, "{user} {password}");
    }
}

#[test]
fn banned_clients_are_refused_and_disconnected() {
    let chained = Chained::start("[[ban]]\nclient_id = \"worm\"\n[[ban]]\nuser = \"both\"\n");
    let connect = |user, password, id| with_password(Connect::new(ProtocolVersion::V5, text(id)), user, password);
    let attempt =
        |user, password, id| RawClient::try_connect(chained.broker.address(), connect(user, password, id)).1.reason;
    assert_eq!(attempt("sensor", "one", "worm"), ReasonCode::Banned);
    assert_eq!(attempt("both", "device", "c"), ReasonCode::Banned);
    assert_eq!(attempt("both", "wrong", "c"), ReasonCode::BadUserNameOrPassword);
    let (mut sensor, _) = RawClient::connect(chained.broker.address(), connect("sensor", "one", "a"));
    let (mut alice, _) = RawClient::connect(chained.broker.address(), connect("alice", "wonderland", "b"));
    let reload = |rest: &str| {
        let text = configuration(&chained.devices, &chained.staff, rest);
        std::fs::write(chained.config.path(), text).expect("ours to write");
        chained.broker.signal("HUP");
    };
    reload("[[ban]]\nuser = \"sensor\"\nuntil = 9999-01-01T00:00:00Z\n");
    sensor.expect_end(ReasonCode::NotAuthorized);
    assert_eq!(alice.publish("a", "x", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    assert_eq!(attempt("both", "device", "c"), ReasonCode::Success);
    reload("[[ban]]\nnetwork = \"127.0.0.0/8\"\n");
    alice.expect_end(ReasonCode::NotAuthorized);
    assert_eq!(attempt("sensor", "one", "a"), ReasonCode::Banned);
}
