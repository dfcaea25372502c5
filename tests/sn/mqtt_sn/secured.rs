//! DTLS, credentials, and TLS between gateway and broker.

use std::net::SocketAddr;
use std::process::{Command, Output};

use tenbin_codec::QoS;

use crate::mqtt_sn::sn_address;
use crate::support::{BrokerProcess, Certificates, ConfigFile, GatewayProcess, PATIENCE, RawClient};

/// `tenbin sn pub` of one message at QoS 1.
fn publish(gateway: SocketAddr, topic: &str, options: &[&str]) -> Output {
    let gateway = gateway.to_string();
    Command::new(env!("CARGO_BIN_EXE_tenbin"))
        .args(["sn", "pub", "--gateway", &gateway, "-q", "1", "-m", "hello", "-t", topic])
        .args(options)
        .output()
        .expect("the command runs")
}

fn assert_refused(output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("not supported"), "{error}");
}

fn assert_published(output: &Output, backend: &mut RawClient, topic: &str) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(backend.receive_message().topic.text().as_str(), topic);
}

/// A broker whose MQTT-SN listener asks `source`, with these keys of `[listeners.sn]`, and a client of it. Clients may
/// publish below their user's name.
fn broker(source: &str, sn: &str) -> (BrokerProcess, ConfigFile, RawClient) {
    let file = ConfigFile::new(&format!(
        "listen = [\"127.0.0.1:0\"]\n[[auth]]\nname = \"devices\"\n{source}\n[[listeners]]\ntransport = \"mqtt-sn\"\n\
         address = \"127.0.0.1:0\"\nname = \"field\"\nauth = [\"devices\"]\n[listeners.sn]\n{sn}\n\
         [[acl]]\nallow = \"publish\"\ntopic = \"of/%u/#\"\n[[acl]]\nallow = \"subscribe\"\ntopic = \"#\"\n"
    ));
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    let mut backend = broker.v5("backend");
    backend.subscribe("#", QoS::AtMostOnce);
    (broker, file, backend)
}

#[test]
fn identity_of_a_key_is_the_user_of_the_rules() {
    let keys = ConfigFile::new(&format!("pump-7:{}\n", "07".repeat(16)));
    let dtls = format!("dtls.psk_file = {:?}", keys.path());
    let (broker, _file, mut backend) = broker("kind = \"certificate\"", &dtls);
    let gateway = sn_address(&broker);
    let options = ["--psk-identity", "pump-7", "--psk-file", keys.path()];
    assert_published(&publish(gateway, "of/pump-7/t", &options), &mut backend, "of/pump-7/t");
    assert_refused(&publish(gateway, "of/pump-8/t", &options));
}

#[test]
fn common_name_of_a_certificate_is_the_user_of_the_rules() {
    let certificates = Certificates::new();
    let path = |name: &str| certificates.path(name);
    certificates.issue("pump-7", &["pump-7"]);
    let dtls = format!(
        "dtls = {{ certificate = {:?}, key = {:?}, client_ca = {:?} }}",
        path("broker.pem"),
        path("broker.key"),
        path("root.pem")
    );
    let (broker, _file, mut backend) = broker("kind = \"certificate\"", &dtls);
    let gateway = sn_address(&broker);
    let files = ["root.pem", "pump-7.pem", "pump-7.key"].map(path);
    let options = ["--ca", &files[0], "--certificate", &files[1], "--key", &files[2]];
    assert_published(&publish(gateway, "of/pump-7/t", &options), &mut backend, "of/pump-7/t");
    assert_refused(&publish(gateway, "of/pump-8/t", &options));
}

#[test]
fn credentials_pass_the_sources_of_the_listener() {
    let users = ConfigFile::new("# users\n");
    let password = ConfigFile::new("secret\n");
    let set = Command::new("sh")
        .args(["-c", "\"$0\" passwd \"$1\" ann < \"$2\"", env!("CARGO_BIN_EXE_tenbin"), users.path(), password.path()])
        .status();
    assert!(set.expect("the command runs").success());
    let source = format!("kind = \"passwords\"\nfile = {:?}", users.path());
    let (broker, _file, mut backend) = broker(&source, "credentials = true");
    let gateway = sn_address(&broker);
    let options = ["--user", "ann", "--password-file", password.path()];
    assert_published(&publish(gateway, "of/ann/t", &options), &mut backend, "of/ann/t");
    assert_refused(&publish(gateway, "of/ann/t", &["--user", "ann"]));
}

#[test]
fn cut_and_damaged_files_are_explained_in_words() {
    let certificates = Certificates::new();
    let [root, whole, key] = ["root.pem", "broker.pem", "broker.key"].map(|name| certificates.path(name));
    let text = |path: &str| std::fs::read_to_string(path).expect("written");
    certificates.write("cut.pem", &text(&whole)[..100]);
    certificates.write("cut.key", &text(&key)[..100]);
    certificates.write("damaged.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let [cut, cut_key, damaged] = ["cut.pem", "cut.key", "damaged.pem"].map(|name| certificates.path(name));
    let (ends, ends_key) = ("it ends inside a certificate", "it ends inside a private key");
    let (is_damaged, none) = ("a certificate in it is damaged", "no certificate (PEM) is in it");
    for (files, wrong, words) in [
        ([&cut, &whole, &key], &cut, ends),
        ([&damaged, &whole, &key], &damaged, is_damaged),
        ([&key, &whole, &key], &key, none),
        ([&root, &cut, &key], &cut, ends),
        ([&root, &damaged, &key], &damaged, is_damaged),
        ([&root, &whole, &cut_key], &cut_key, ends_key),
    ] {
        let [authorities, certificate, key] = files;
        let own = format!("certificate = {certificate:?}\nkey = {key:?}\n");
        for table in [
            format!("[tls]\nca = {authorities:?}\n{own}"),
            format!("[listener.dtls]\nclient_ca = {authorities:?}\n{own}"),
        ] {
            let file = ConfigFile::new(&table);
            let check = Command::new(env!("CARGO_BIN_EXE_tenbin"))
                .args(["gateway", "--check", "--config", file.path()])
                .output();
            let said = String::from_utf8(check.expect("the command runs").stderr).expect("text");
            assert!(said.contains(&format!("{wrong}: {words}")), "{table}: {said}");
        }
    }
}

#[test]
fn gateway_reaches_its_broker_over_tls() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let file = ConfigFile::new(&format!("listen = [\"127.0.0.1:0\"]\n{}", certificates.listener("")));
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    let secure = broker.addresses()[1];
    let start = |authority: &Certificates| {
        let tls = format!("[tls]\nca = {:?}\n", authority.path("root.pem"));
        GatewayProcess::start(secure, ([127, 0, 0, 1], 0).into(), &tls, &[])
    };
    let mut backend = broker.v5("backend");
    backend.subscribe("#", QoS::AtMostOnce);
    let gateway = start(&certificates);
    assert_published(&publish(gateway.address, "a/b", &[]), &mut backend, "a/b");
    let gateway = start(&others);
    let refused = publish(gateway.address, "a/b", &[]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("congestion"), "{refused:?}");
}

#[test]
fn reload_that_leaves_protection_out_is_refused() {
    let keys = ConfigFile::new(&format!("pump-7:{}\n", "07".repeat(16)));
    let psk = format!("dtls.psk_file = {:?}", keys.path());
    for (source, line, key) in [
        ("kind = \"certificate\"", psk.as_str(), "sn.dtls: is left out"),
        ("kind = \"passwords\"\nfile = USERS", "credentials = true", "sn.credentials: is left out"),
    ] {
        let users = ConfigFile::new("\n");
        let source = source.replace("USERS", &format!("{:?}", users.path()));
        let (broker, file, _backend) = broker(&source, line);
        let gateway = sn_address(&broker);
        let options = ["--retry", "1s", "--retries", "0"];
        assert!(!publish(gateway, "of/pump-7/t", &options).status.success());
        let whole = std::fs::read_to_string(file.path()).expect("ours to read");
        std::fs::write(file.path(), whole.replace(line, "")).expect("ours to write");
        broker.signal("HUP");
        broker.log().wait_for(&["reload failed", "listeners: field: ", key], PATIENCE);
        assert!(!publish(gateway, "of/pump-7/t", &options).status.success());
    }
}

#[test]
fn gateway_reload_of_an_emptied_or_cut_file_is_refused() {
    let keys = ConfigFile::new(&format!("pump-7:{}\n", "07".repeat(16)));
    let broker = BrokerProcess::start(&[]);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let gateway = GatewayProcess::start(broker.address(), any, &format!("dtls.psk_file = {:?}\n", keys.path()), &[]);
    gateway.reload("retries = 5\n", "listener.dtls: is left out");
    gateway.reload_all("", "it has no key");
    let options = ["--psk-identity", "pump-7", "--psk-file", keys.path()];
    let published = publish(gateway.address, "of/pump-7/t", &options);
    assert!(published.status.success(), "{}", String::from_utf8_lossy(&published.stderr));
}
