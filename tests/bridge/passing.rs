//! What passes a bridge, and how it goes on after an end.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use tenbin_codec::{MessageProperties, Publish, QoS, UserProperty};

use crate::bridge_process::{BridgeProcess, table, topics, wait_for_subscription};
use crate::support::{
    BrokerProcess, Certificates, ConfigFile, DataDirectory, PATIENCE, RawClient, at_qos, lasting, retained, text,
};

/// A broker that runs this bridge.
fn bridged(config: &ConfigFile) -> BrokerProcess {
    BrokerProcess::start(&["--config", config.path()])
}

fn names(publish: &Publish) -> Vec<&str> {
    let properties = publish.properties.iter().flat_map(|properties| &properties.user_properties);
    properties.filter(|property| property.name.as_str() == "tenbin-bridge").map(|found| found.value.as_str()).collect()
}

#[test]
fn message_passes_with_its_properties_under_its_new_topic() {
    let hub = BrokerProcess::start(&[]);
    let prefixes = "local_prefix = \"machines/\"\nremote_prefix = \"plant1/machines/\"\n";
    let config = ConfigFile::new(&(table("plant1", hub.address(), "") + &topics("both", "#") + prefixes));
    let plant = bridged(&config);
    wait_for_subscription(&plant, "machines/probe");
    wait_for_subscription(&hub, "plant1/machines/probe");
    let properties = MessageProperties {
        payload_format_indicator: Some(true),
        message_expiry_interval: Some(3600),
        content_type: Some(text("text/plain")),
        response_topic: Some(text("machines/answer")),
        correlation_data: Some((&b"\x00\x01"[..]).into()),
        user_properties: vec![UserProperty::new(text("line"), text("7"))],
    };
    let sent = Publish { properties: properties.clone().boxed(), ..retained("machines/1", "hot") };
    let mut witness = hub.v5("witness");
    witness.subscribe("plant1/machines/1", QoS::AtLeastOnce);
    plant.v5("sensor").publish_with(sent);
    // The message is retained once it has passed.
    witness.receive_message();

    let mut reader = hub.v5("reader");
    reader.subscribe("plant1/machines/1", QoS::AtLeastOnce);
    let got = reader.receive_message();
    assert_eq!((got.topic.as_bytes(), &got.payload[..], got.retain), (&b"plant1/machines/1"[..], &b"hot"[..], true));
    assert_eq!(names(&got), ["plant1"]);
    let mut passed = *got.properties.expect("it has properties");
    let left = passed.message_expiry_interval.replace(3600);
    assert!(left.is_some_and(|seconds| (3500..=3600).contains(&seconds)), "{left:?}");
    assert_eq!(passed.user_properties.pop(), Some(UserProperty::new(text("tenbin-bridge"), text("plant1"))));
    assert_eq!(passed, properties);

    let mut machine = plant.v5("machine");
    machine.subscribe("machines/set", QoS::ExactlyOnce);
    for qos in crate::support::QOS_ALL {
        hub.v5("operator").publish("plant1/machines/set", &qos.to_string(), qos);
        let got = machine.receive_message();
        assert_eq!((got.payload, got.qos), (qos.to_string().into(), qos));
    }
}

#[test]
fn retained_messages_from_before_the_bridge_pass_once() {
    let (hub, directory) = (BrokerProcess::start(&[]), DataDirectory::new());
    let mut sink = hub.v5("sink");
    sink.subscribe("#", QoS::AtLeastOnce);
    let plant = directory.start();
    // QoS 2, as the end of the bridge may overtake an acknowledgement.
    let kept = Publish { retain: true, ..at_qos("state", "kept", QoS::ExactlyOnce) };
    plant.v5("sensor").publish_with(kept);
    let local = format!("local = \"mqtt://{}\"", plant.address());
    let config = ConfigFile::new(&(table("b", hub.address(), &local) + &topics("out", "#")));
    for number in 0..3 {
        let bridge = BridgeProcess::start(&config);
        bridge.log().wait_for(&["bridge connected"], PATIENCE);
        if number == 0 {
            assert_eq!(sink.receive_message().payload, "kept");
        }
        wait_for_subscription(&plant, "probe");
        plant.v5("sensor").publish("live", &number.to_string(), QoS::ExactlyOnce);
        let next = std::iter::repeat_with(|| sink.receive_message()).find(|found| found.payload != "probe");
        assert_eq!(next.map(|found| found.payload), Some(number.to_string().into()), "nothing comes again");
        bridge.end();
    }
}

#[test]
fn messages_wait_at_their_broker_while_the_other_one_is_away() {
    let directories = [DataDirectory::new(), DataDirectory::new()];
    let hub = directories[1].start();
    let address = hub.address().to_string();
    let config = ConfigFile::new(&(table("b", hub.address(), "receive_maximum = 10") + &topics("out", "#")));
    let plant = directories[0].start_with(&["--config", config.path()]);
    wait_for_subscription(&plant, "probe");
    let (mut sink, _) = RawClient::connect(hub.address(), lasting(tenbin_codec::ProtocolVersion::V5, "sink"));
    sink.subscribe("jobs", QoS::ExactlyOnce);
    drop(hub);
    let mut sensor = plant.v5("sensor");
    for number in 0..100 {
        sensor.publish("jobs", &number.to_string(), QoS::ExactlyOnce);
    }
    let hub = BrokerProcess::start_exactly(&["--listen", &address, "--data", directories[1].path_text()]);
    let (mut sink, _) = RawClient::connect(hub.address(), lasting(tenbin_codec::ProtocolVersion::V5, "sink"));
    for number in 0..100 {
        assert_eq!(sink.receive_message().payload, number.to_string());
    }
}

#[test]
fn reload_begins_changes_and_ends_bridges() {
    let hub = BrokerProcess::start(&[]);
    let config = ConfigFile::new("");
    let plant = bridged(&config);
    let bridge = |prefix: &str| {
        table("b", hub.address(), "") + &topics("out", "a") + &format!("remote_prefix = \"{prefix}/\"\n")
    };
    let mut sink = hub.v5("sink");
    sink.subscribe("#", QoS::AtLeastOnce);
    for (number, prefix) in ["one", "two"].into_iter().enumerate() {
        std::fs::write(config.path(), bridge(prefix)).expect("our own file");
        plant.signal("HUP");
        plant.log().count("bridge connected", number + 1, PATIENCE);
        plant.v5("sensor").publish("a", prefix, QoS::AtLeastOnce);
        let got = sink.receive_message();
        assert_eq!((got.topic.text().as_str(), got.payload), (&format!("{prefix}/a")[..], prefix.into()));
    }
    // A wrong one changes nothing.
    std::fs::write(config.path(), bridge("three") + "qos = 3\n").expect("our own file");
    plant.signal("HUP");
    plant.log().wait_for(&["reload failed", "qos"], PATIENCE);
    plant.v5("sensor").publish("a", "still", QoS::AtLeastOnce);
    assert_eq!(sink.receive_message().topic.as_bytes(), b"two/a");

    std::fs::write(config.path(), ConfigFile::DEFAULTS).expect("our own file");
    plant.signal("HUP");
    assert_eq!(plant.log().count("reloaded", 3, PATIENCE), 3);
    plant.v5("sensor").publish("a", "nowhere", QoS::AtLeastOnce);
    hub.v5("last").publish("b", "last", QoS::AtLeastOnce);
    assert_eq!(sink.receive_message().payload, "last");
}

#[test]
fn bridge_uses_the_transport_of_its_url() {
    let certificates = Certificates::new();
    for (scheme, web, is_tls) in [
        ("mqtts", "", true),
        ("ws", "transport = \"websocket\"\n", false),
        ("wss", "transport = \"websocket\"\n", true),
    ] {
        let listener = format!("[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n{web}");
        let [certificate, key, ca] = ["broker.pem", "broker.key", "root.pem"].map(|file| certificates.path(file));
        let files = format!("[listeners.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n");
        let hub_config = ConfigFile::new(&(listener + if is_tls { &files } else { "" }));
        let hub = BrokerProcess::start(&["--config", hub_config.path()]);
        let mut sink = hub.v5("sink");
        sink.subscribe("a", QoS::AtLeastOnce);

        let remote = format!("remote = \"{scheme}://localhost:{}\"\n", hub.addresses()[1].port());
        let tls = if is_tls { format!("tls = {{ ca = \"{ca}\" }}\n") } else { String::new() };
        let config = ConfigFile::new(&format!("[[bridge]]\nname = \"b\"\n{remote}{tls}{}", topics("out", "a")));
        let plant = bridged(&config);
        plant.log().wait_for(&["bridge connected"], PATIENCE);
        plant.v5("sensor").publish("a", scheme, QoS::AtLeastOnce);
        assert_eq!(sink.receive_message().payload, scheme);
    }
}

/// Gives a user of a broker a password.
fn set_password(file: &Path, user: &str, password: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    command.arg("passwd").arg(file).arg(user).stdin(Stdio::piped());
    let mut child = command.spawn().expect("the built command can be started");
    writeln!(child.stdin.take().expect("piped"), "{password}").expect("it reads");
    assert!(child.wait().expect("our own child").success());
}

#[test]
fn password_and_authorities_are_read_again_for_a_connection() {
    let (certificates, others, files) = (Certificates::new(), Certificates::new(), DataDirectory::new());
    let [users, password, ca] = ["users", "password", "ca.pem"].map(|name| files.path().join(name));
    set_password(&users, "plant1", "new");
    let [certificate, key] = ["broker.pem", "broker.key"].map(|file| certificates.path(file));
    let hub_config = ConfigFile::new(&format!(
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\npassword_file = {users:?}\n\
         [listeners.tls]\ncertificate = {certificate:?}\nkey = {key:?}\n"
    ));
    let hub = BrokerProcess::start(&["--config", hub_config.path()]);
    let near = BrokerProcess::start(&[]);
    let login = format!("user = \"plant1\"\npassword_file = {password:?}\ntls = {{ ca = {ca:?} }}\n");
    for is_separate in [false, true] {
        std::fs::write(&password, "old\n").expect("a directory of ours");
        std::fs::copy(others.path("root.pem"), &ca).expect("a directory of ours");
        let remote =
            format!("[[bridge]]\nname = \"b\"\nremote = \"mqtts://localhost:{}\"\n", hub.addresses()[1].port());
        let local = if is_separate { format!("local = \"mqtt://{}\"\n", near.address()) } else { String::new() };
        let config = ConfigFile::new(&format!("{remote}{local}{login}{}", topics("out", "a")));
        let (separate, own) = match is_separate {
            true => (Some(BridgeProcess::start(&config)), None),
            false => (None, Some(bridged(&config))),
        };
        let log = separate.as_ref().map_or_else(|| own.as_ref().expect("either").log(), BridgeProcess::log);
        log.wait_for(&["bridge not connected", "certificate"], PATIENCE);
        std::fs::copy(certificates.path("root.pem"), &ca).expect("a directory of ours");
        log.wait_for(&["bridge not connected", "refused"], PATIENCE);
        std::fs::remove_file(&password).expect("it is there");
        log.wait_for(&["files cannot be read again", "password_file: "], PATIENCE);
        std::fs::write(&password, "new\n").expect("a directory of ours");
        log.wait_for(&["bridge connected"], PATIENCE);
    }
}

#[test]
fn ring_of_three_ends_each_message() {
    let brokers = [(); 3].map(|()| BrokerProcess::start(&[]));
    let bridges: Vec<_> = (0..3)
        .map(|at| {
            let (local, remote) = (brokers[at].address(), brokers[(at + 1) % 3].address());
            let local = format!("local = \"mqtt://{local}\"");
            let config = ConfigFile::new(&(table(&format!("ring{at}"), remote, &local) + &topics("both", "ring/#")));
            (BridgeProcess::start(&config), config)
        })
        .collect();
    bridges.iter().for_each(|(bridge, _)| drop(bridge.log().wait_for(&["bridge connected"], PATIENCE)));
    let mut clients: Vec<_> = brokers.iter().map(|broker| broker.v5("client")).collect();
    clients.iter_mut().for_each(|client| client.subscribe("ring/#", QoS::AtLeastOnce));
    for payload in ["first", "second", "third"] {
        clients[0].publish_with(at_qos("ring/a", payload, QoS::AtLeastOnce));
        // It goes round both ways: the other brokers have it twice, and its own one has both copies again.
        for (client, copies) in clients.iter_mut().zip([3, 2, 2]) {
            (0..copies).for_each(|_| assert_eq!(client.receive_message().payload, payload));
        }
    }
    clients.iter_mut().for_each(RawClient::settle);
    clients.iter_mut().for_each(RawClient::expect_nothing_waiting);
}
