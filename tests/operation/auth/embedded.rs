//! The broker as a library, with a custom Authenticator and Authorizer.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use tenbin_broker::auth::{
    Action, Answer, AuthFuture, AuthRequest, Authenticator, Authorizer, Decision, Exchange, Identity, Principal, Secret,
};
use tenbin_broker::{Broker, BrokerBuilder, Config};
use tenbin_codec::{Auth, AuthProperties, Connect, ConnectProperties, Packet, ProtocolVersion, QoS, ReasonCode, Text};
use tokio::runtime::Runtime;

use crate::auth::guarded::with_password;
use crate::support::{PATIENCE, RawClient, VERSIONS, share, subscription, text};

/// A broker in this process.
pub(crate) struct Embedded {
    broker: Broker,
    addresses: Vec<SocketAddr>,
    _runtime: Runtime,
}

impl Embedded {
    pub(crate) fn start(config: Config, build: impl FnOnce(BrokerBuilder) -> BrokerBuilder) -> Self {
        let runtime = Runtime::new().expect("threads");
        let start = build(Broker::builder().config(config)).start();
        let broker = runtime.block_on(start).expect("free ports");
        Self { addresses: broker.addresses(), broker, _runtime: runtime }
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// Redirects clients by user name, and answers the method "ask" with a question.
struct Doorman;

struct Question;

/// Authentication Data that makes an AUTH of 215 bytes.
const LONG: &str = concat!(
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
);

impl Authenticator for Doorman {
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_> {
        Box::pin(async move {
            let other = || Some(Text::from_static("other.example:1883"));
            let again = request.current.is_some();
            match request.user_name.as_ref().map(Text::as_str) {
                Some("elsewhere") => Answer::UseAnotherServer(other()),
                Some("moved") => Answer::ServerMoved(other()),
                Some("illegal") => Answer::Refuse(ReasonCode::GrantedQoS1),
                Some("banned") => Answer::Refuse(ReasonCode::Banned),
                Some("questioned") => Answer::Continue { data: None, exchange: Box::new(Question) },
                _ if again => match request.data.as_ref().map(|data| &data.expose()[..]) {
                    Some(b"move") => Answer::ServerMoved(other()),
                    Some(b"long") => {
                        Answer::Continue { data: Some(LONG.as_bytes().into()), exchange: Box::new(Question) }
                    }
                    Some(name) => accept(Some(name)),
                    None => Answer::Continue { data: Some("who?".into()), exchange: Box::new(Question) },
                },
                _ if request.method.is_some() => {
                    Answer::Continue { data: Some("who?".into()), exchange: Box::new(Question) }
                }
                name => accept(name.map(str::as_bytes)),
            }
        })
    }
}

impl Exchange for Question {
    fn step(self: Box<Self>, data: Option<Secret>) -> AuthFuture<'static> {
        Box::pin(async move {
            match data.as_ref().map(|data| &data.expose()[..]) {
                Some(b"again") => Answer::Continue { data: Some("who now?".into()), exchange: self },
                Some(b"silence") => std::future::pending().await,
                other => accept(other),
            }
        })
    }
}

fn accept(name: Option<&[u8]>) -> Answer {
    let name = name.map(|name| Text::new(bytes::Bytes::copy_from_slice(name)).expect("a name"));
    let identity = name.map_or_else(Identity::anonymous, Identity::user);
    Answer::Accept { identity, data: Some("welcome".into()) }
}

/// Denies actions on "forbidden" while its flag is set.
struct Censor(Arc<AtomicBool>);

impl Authorizer for Censor {
    fn authorize(&self, _who: &Principal, action: Action<'_>) -> Decision {
        let topic = match action {
            Action::Publish(topic) | Action::Will(topic) | Action::Receive(topic) => topic.as_bytes(),
            Action::Subscribe(filter) | Action::SubscribeShared(filter) => filter.as_bytes(),
        };
        (!self.0.load(Ordering::SeqCst) || !topic.starts_with(b"forbidden")).into()
    }
}

fn local() -> Config {
    Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() }
}

fn doorman() -> Embedded {
    Embedded::start(local(), |builder| builder.authenticator(Doorman))
}

#[test]
fn connack_names_the_server_to_use_instead() {
    let embedded = doorman();
    for (user, reason) in [("elsewhere", ReasonCode::UseAnotherServer), ("moved", ReasonCode::ServerMoved)] {
        let connect = |version| with_password(Connect::new(version, text("c")), user, "x");
        let (mut client, connack) = RawClient::try_connect(embedded.addresses()[0], connect(ProtocolVersion::V5));
        assert_eq!(connack.reason, reason);
        assert_eq!(connack.properties.server_reference, Some(text("other.example:1883")));
        client.expect_closed();
        // 3.1.1 has no such code.
        let mut client = RawClient::open(embedded.addresses()[0], ProtocolVersion::V311);
        client.send(&Packet::Connect(Box::new(connect(ProtocolVersion::V311))));
        client.expect_closed();
    }
}

#[test]
fn illegal_authenticator_answers_are_replaced() {
    let embedded = doorman();
    for version in VERSIONS {
        for (user, reason) in [("illegal", ReasonCode::NotAuthorized), ("banned", ReasonCode::Banned)] {
            let connect = with_password(Connect::new(version, text("c")), user, "x");
            let reason = if version.is_v5() { reason } else { ReasonCode::NotAuthorized };
            assert_eq!(RawClient::try_connect(embedded.addresses()[0], connect).1.reason, reason);
        }
    }
    // [MQTT-4.12.0-6]: a client without a method is asked nothing, and its CONNACK names no method.
    let connect = with_password(Connect::new(ProtocolVersion::V5, text("c")), "questioned", "x");
    let (_, connack) = RawClient::try_connect(embedded.addresses()[0], connect);
    assert_eq!(connack.reason, ReasonCode::ImplementationSpecificError);
    let (_client, connack) = RawClient::connect(embedded.addresses()[0], Connect::new(ProtocolVersion::V5, text("c")));
    assert_eq!(connack.properties.authentication_method, None);
    assert_eq!(connack.properties.authentication_data, None);
}

#[test]
fn mqtt_4_12_0_2_an_exchange_may_take_several_steps() {
    let embedded = doorman();
    let mut client = ask(&embedded);
    for (said, answer) in [(None, "who?"), (Some("again"), "who now?"), (Some("again"), "who now?")] {
        if let Some(said) = said {
            client.send(&auth(ReasonCode::ContinueAuthentication, said));
        }
        expect_auth(&mut client, ReasonCode::ContinueAuthentication, answer);
    }
    client.send(&auth(ReasonCode::ContinueAuthentication, "carol"));
    let Packet::ConnAck(connack) = client.receive() else { panic!("no CONNACK") };
    assert_eq!(connack.reason, ReasonCode::Success);
    assert_eq!(connack.properties.authentication_method, Some(text("ask")), "[MQTT-4.12.0-5]");
    assert_eq!(connack.properties.authentication_data, Some("welcome".into()));
    client.settle();
}

#[test]
fn mqtt_4_12_1_packets_are_served_during_reauthentication() {
    let embedded = doorman();
    let mut client = served(&embedded);
    client.send(&auth(ReasonCode::ReAuthenticate, ""));
    // An empty user name in the Authentication Data.
    client.wait_for(tenbin_codec::PacketType::Disconnect); // anonymous is refused: the session is carol's
    let mut client = served(&embedded);
    client.send(&auth(ReasonCode::ReAuthenticate, "carol"));
    expect_auth(&mut client, ReasonCode::Success, "welcome");
    client.settle();
    client.publish("a", "x", QoS::ExactlyOnce);
    client.send(&auth(ReasonCode::ReAuthenticate, "carol"));
    expect_auth(&mut client, ReasonCode::Success, "welcome");
}

#[test]
fn mqtt_4_12_1_2_refused_reauthentication_disconnects() {
    let embedded = doorman();
    let mut client = served(&embedded);
    client.send(&auth(ReasonCode::ReAuthenticate, "mallory"));
    client.expect_end(ReasonCode::NotAuthorized);
    // Redirected to another server.
    let mut client = served(&embedded);
    client.send(&auth(ReasonCode::ReAuthenticate, "move"));
    let Packet::Disconnect(disconnect) = client.receive() else { panic!("no DISCONNECT") };
    assert_eq!(disconnect.reason, ReasonCode::ServerMoved);
    let server = disconnect.properties.and_then(|properties| properties.server_reference);
    assert_eq!(server, Some(text("other.example:1883")));
    client.expect_closed();
}

#[test]
fn custom_authorizer_is_asked_again_after_reauthorize() {
    let closed = Arc::new(AtomicBool::new(false));
    let embedded = Embedded::start(local(), |builder| builder.authorizer(Censor(Arc::clone(&closed))));
    let connect = |id| RawClient::connect(embedded.addresses()[0], Connect::new(ProtocolVersion::V5, text(id))).0;
    let (mut subscriber, mut member, mut publisher) = (connect("s"), connect("m"), connect("p"));
    subscriber.subscribe("#", QoS::AtLeastOnce);
    member.subscribe(&share("g", "forbidden/#"), QoS::AtLeastOnce);
    assert_eq!(publisher.publish("forbidden/x", "1", QoS::AtLeastOnce), ReasonCode::Success);
    assert_eq!(subscriber.drain_payloads(), ["1"]);
    assert_eq!(member.drain_payloads(), ["1"]);

    closed.store(true, Ordering::SeqCst);
    embedded.broker.reauthorize();
    assert_eq!(publisher.publish("forbidden/x", "2", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    let reasons = subscriber.subscribe_to(None, vec![subscription("forbidden/x", QoS::AtLeastOnce)]);
    assert_eq!(reasons, [ReasonCode::NotAuthorized]);

    closed.store(false, Ordering::SeqCst);
    embedded.broker.reauthorize();
    [&mut subscriber, &mut member].into_iter().for_each(RawClient::settle);
    assert_eq!(publisher.publish("forbidden/x", "3", QoS::AtLeastOnce), ReasonCode::Success);
    assert_eq!(subscriber.drain_payloads(), ["3"]);
    assert_eq!(member.drain_payloads(), ["3"]);
}

/// Bad input: an authenticator that never answers.
#[test]
fn an_authenticator_that_does_not_answer_in_time_is_busy() {
    let config = Config::parse("listen = [\"127.0.0.1:0\"]\n[connections]\nconnect_timeout_ms = 300").expect("legal");
    let embedded = Embedded::start(config, |builder| builder.authenticator(Doorman));
    let mut client = ask(&embedded);
    expect_auth(&mut client, ReasonCode::ContinueAuthentication, "who?");
    client.send(&auth(ReasonCode::ContinueAuthentication, "silence"));
    let Packet::ConnAck(connack) = client.receive() else { panic!("no CONNACK") };
    assert_eq!(connack.reason, ReasonCode::ServerBusy);
    client.expect_closed();
    // A client that falls silent halfway is closed as well. [MQTT 5.0 §4.12]
    let mut client = ask(&embedded);
    expect_auth(&mut client, ReasonCode::ContinueAuthentication, "who?");
    client.expect_closed();
}

/// An AUTH has no optional part that could be omitted.
#[test]
fn mqtt_3_1_2_24_oversized_auth_ends_the_connection() {
    let embedded = doorman();
    for maximum in [5, 16] {
        let mut client = ask_with(&embedded, 60, NonZeroU32::new(maximum));
        let Packet::ConnAck(connack) = client.receive() else { panic!("no CONNACK") };
        assert_eq!(connack.reason, ReasonCode::PacketTooLarge, "{maximum}");
        client.expect_closed();
    }
    let mut client = ask_with(&embedded, 60, NonZeroU32::new(17));
    expect_auth(&mut client, ReasonCode::ContinueAuthentication, "who?");

    let mut client = served_with(&embedded, NonZeroU32::new(214));
    client.send(&auth(ReasonCode::ReAuthenticate, "long"));
    client.expect_end(ReasonCode::PacketTooLarge);
    let mut client = served_with(&embedded, NonZeroU32::new(215));
    client.send(&auth(ReasonCode::ReAuthenticate, "long"));
    expect_auth(&mut client, ReasonCode::ContinueAuthentication, LONG);
}

/// Authenticator that never answers, and signals when the broker drops one of its requests.
struct Thinker(mpsc::SyncSender<()>);

/// A request to [`Thinker`], or its exchange, with one client.
struct Thought(mpsc::SyncSender<()>);

impl Authenticator for Thinker {
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_> {
        let thought = Thought(self.0.clone());
        Box::pin(async move {
            if request.method.is_some() {
                return Answer::Continue { data: Some("who?".into()), exchange: Box::new(thought) };
            }
            let _thought = thought;
            std::future::pending().await
        })
    }
}

impl Exchange for Thought {
    fn step(self: Box<Self>, _data: Option<Secret>) -> AuthFuture<'static> {
        Box::pin(async move {
            let _thought = self;
            std::future::pending().await
        })
    }
}

impl Drop for Thought {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Bad input: a flood of clients that connect and close, with and without a packet sent ahead.
#[test]
fn pending_clients_that_closed_are_limited() {
    let config =
        Config::parse("listen = [\"127.0.0.1:0\"]\n[connections]\nconnect_timeout_ms = 600000").expect("legal");
    let (thought, forgotten) = mpsc::sync_channel(20);
    let embedded = Embedded::start(config, |builder| builder.authenticator(Thinker(thought)));
    let connect = |version, is_ahead: bool| {
        let mut client = RawClient::open(embedded.addresses()[0], version);
        client.send(&Packet::Connect(Box::new(Connect::new(version, text("c")))));
        if is_ahead {
            client.send(&Packet::Publish(crate::support::message("a", "x")));
        }
        client
    };
    let is_forgotten = || forgotten.recv_timeout(PATIENCE).expect("a client that is gone is forgotten");
    (0..4).for_each(|number| drop(connect(ProtocolVersion::V5, number % 2 == 0)));
    for version in VERSIONS {
        for is_ahead in [false, true] {
            drop(connect(version, is_ahead));
            is_forgotten();
        }
    }
    // A half-closed client that still reads gets an answer.
    let said = connect(ProtocolVersion::V5, true).half_close();
    assert!(matches!(&said[..], [Packet::ConnAck(connack)] if connack.reason == ReasonCode::ServerBusy), "{said:?}");
    is_forgotten();
    let mut client = ask(&embedded);
    expect_auth(&mut client, ReasonCode::ContinueAuthentication, "who?");
    client.send(&auth(ReasonCode::ContinueAuthentication, "carol"));
    drop(client);
    is_forgotten();
    assert!(forgotten.try_recv().is_err(), "four may wait");
}

/// Keep Alive counts during the exchange.
#[test]
fn mqtt_3_1_2_22_keep_alive_counts_while_a_client_authenticates() {
    let embedded = doorman();
    let begin = std::time::Instant::now();
    let mut client = ask_with(&embedded, 1, None);
    expect_auth(&mut client, ReasonCode::ContinueAuthentication, "who?");
    client.expect_closed();
    assert!(begin.elapsed().as_millis() > 1300, "{:?}", begin.elapsed());
}

/// A client that has sent its CONNECT with the method "ask".
fn ask(embedded: &Embedded) -> RawClient {
    ask_with(embedded, 60, None)
}

fn ask_with(embedded: &Embedded, keep_alive: u16, maximum_packet_size: Option<NonZeroU32>) -> RawClient {
    let mut client = RawClient::open(embedded.addresses()[0], ProtocolVersion::V5);
    let authentication_method = Some(text("ask"));
    let properties = ConnectProperties { authentication_method, maximum_packet_size, ..ConnectProperties::default() };
    let connect = Connect { properties, keep_alive, ..Connect::new(ProtocolVersion::V5, text("c")) };
    client.send(&Packet::Connect(Box::new(connect)));
    client
}

/// A client authenticated as carol.
fn served(embedded: &Embedded) -> RawClient {
    served_with(embedded, None)
}

fn served_with(embedded: &Embedded, maximum_packet_size: Option<NonZeroU32>) -> RawClient {
    let mut client = ask_with(embedded, 60, maximum_packet_size);
    expect_auth(&mut client, ReasonCode::ContinueAuthentication, "who?");
    client.send(&auth(ReasonCode::ContinueAuthentication, "carol"));
    assert!(matches!(client.receive(), Packet::ConnAck(connack) if connack.reason == ReasonCode::Success));
    client
}

fn auth(reason: ReasonCode, data: &str) -> Packet {
    let properties = AuthProperties {
        authentication_method: Some(text("ask")),
        authentication_data: Some(data.as_bytes().to_vec().into()),
        ..AuthProperties::default()
    };
    Packet::Auth(Box::new(Auth { reason, properties }))
}

fn expect_auth(client: &mut RawClient, reason: ReasonCode, data: &str) {
    let Packet::Auth(auth) = client.wait_for(tenbin_codec::PacketType::Auth) else { panic!("no AUTH") };
    assert_eq!(auth.reason, reason);
    assert_eq!(auth.properties.authentication_method, Some(text("ask")), "[MQTT-4.12.0-5]");
    assert_eq!(auth.properties.authentication_data, Some(data.into()));
}

#[test]
fn tables_of_a_parsed_configuration_are_taken() {
    let directory = tempfile::tempdir().expect("ours to write");
    let data = directory.path().join("data");
    let text =
        format!("listen = [\"127.0.0.1:0\"]\n[store]\ndirectory = {data:?}\n[admin]\naddress = \"127.0.0.1:0\"\n");
    let parsed = || Config::parse(&text).expect("a legal configuration");
    let taken = Embedded::start(parsed(), |builder| builder);
    assert!(data.join("spool/store-id").exists() && taken.broker.admin_url().is_some());
    drop(taken);
    // The program's own word comes first.
    let mut without = parsed();
    without.store.directory.clear();
    let without = Embedded::start(without, |builder| builder);
    let elsewhere = Embedded::start(parsed(), |builder| builder.store(directory.path().join("other")));
    assert!(directory.path().join("other/spool").exists());
    drop((without, elsewhere));
    // Without these tables a library stores nothing and opens no further address.
    let plain = Embedded::start(local(), |builder| builder);
    assert!(plain.broker.admin_url().is_none());
    // Without a directory `[store]` begins no store in the working directory.
    let config = Config::parse("listen = [\"127.0.0.1:0\"]\n[store]\nsync = \"never\"\n").expect("legal");
    assert!(!config.store.directory.as_os_str().is_empty() && !config.store.directory.exists());
    let _in_memory = Embedded::start(config.clone(), |builder| builder);
    assert!(!config.store.directory.exists());
}
