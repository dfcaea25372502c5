use std::process::Command;

use tenbin_codec::QoS;

use crate::mqtt_sn::sensor::{CLEAN, QOS_1, Sensor};
use crate::mqtt_sn::{broker, sn_address};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, GatewayProcess, PATIENCE, topic};

const USER: &str = r##"
listen = ["127.0.0.1:0"]
[[listeners]]
transport = "mqtt-sn"
address = "127.0.0.1:0"
name = "field"
user = "sensors"
[listeners.sn]
retry_seconds = 5
topics.7 = "sensors/%c/predefined"
[[acl]]
user = "sensors"
allow = "publish"
topic = "sensors/%c/#"
[[acl]]
listener = "127.0.0.1:0"
allow = "all"
topic = "#"
[[acl]]
listener = "127.0.0.1:0"
allow = "all"
topic = "$SYS/#"
[sys]
interval_seconds = 1
"##;

#[test]
fn listener_gives_its_clients_a_user_with_rights() {
    let file = ConfigFile::new(USER);
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    let mut backend = broker.v5("backend");
    backend.subscribe("#", QoS::AtMostOnce);
    let mut sensor = Sensor::connect(sn_address(&broker), "s1", CLEAN, 60);
    let (own, foreign) = (sensor.register("sensors/s1/t"), sensor.register("sensors/s2/t"));
    assert_eq!(sensor.publish(foreign, QOS_1, "no"), 3, "not authorized");
    assert_eq!(sensor.publish(own, QOS_1, "yes"), 0);
    assert_eq!(sensor.publish([0, 7], QOS_1 | 0x01, "predefined"), 0);
    assert_eq!(backend.receive_message().payload, "yes");
    assert_eq!(backend.receive_message().topic, topic("sensors/s1/predefined"));
    backend.subscribe("$SYS/broker/sn/datagrams_received", QoS::AtMostOnce);
    while backend.receive_message().payload != "6" {}
}

#[test]
fn topic_ids_outlive_the_broker() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().to_str().expect("UTF-8");
    let start = |port| {
        let file = ConfigFile::new(&format!(
            "listen = [\"127.0.0.1:0\"]\n[[listeners]]\ntransport = \"mqtt-sn\"\naddress = \"127.0.0.1:{port}\"\n\
             name = \"field\"\nanonymous = true\n"
        ));
        BrokerProcess::start_exactly(&["--data", data, "--config", file.path()])
    };
    let mut first = start(0);
    let gateway = sn_address(&first);
    let mut sensor = Sensor::connect(gateway, "sensor", 0, 60);
    let id = sensor.register("up/1");
    first.signal("TERM");
    assert!(first.wait_for_exit(PATIENCE).success());
    let second = start(gateway.port());
    let mut backend = second.v5("backend");
    backend.subscribe("up/#", QoS::AtMostOnce);
    let mut sensor = Sensor::connect(gateway, "sensor", 0, 60);
    assert_eq!(sensor.publish(id, QOS_1, "again"), 0);
    assert_eq!(backend.receive_message().payload, "again");
}

#[test]
fn reload_opens_changes_and_closes_listeners() {
    let listener = |sn: &str| {
        format!(
            "[[listeners]]\ntransport = \"mqtt-sn\"\naddress = \"127.0.0.1:0\"\nname = \"field\"\nanonymous = true\n{sn}"
        )
    };
    let head = "listen = [\"127.0.0.1:0\"]\n";
    let file = ConfigFile::new(&format!("{head}{}", listener("")));
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    let reload = |text: &str, until: &str| {
        std::fs::write(file.path(), text).expect("the file");
        broker.signal("HUP");
        broker.log().wait_for(&[until], PATIENCE);
    };
    let mut sensor = Sensor::connect(sn_address(&broker), "sensor", CLEAN, 60);
    reload(&format!("{head}{}", listener("publishes_per_second = 9\n")), "reloaded");
    assert_eq!(sensor.publish(*b"xy", QOS_1 | 0x02, "kept"), 0);
    reload(&format!("{head}{}", listener("[listeners.sn]\nretries = 400\n")), "retries");
    assert_eq!(sensor.publish(*b"xy", QOS_1 | 0x02, "kept"), 0);
    // Its address is free only when the old one is closed, which says goodbye.
    reload(&format!("{head}{}", listener("[listeners.sn]\nretries = 3\n")), "listener=field address");
    assert_eq!(sensor.receive(), [0x18]);
    reload(head, "listener closed");
}

/// The new gateway needs the directory that the old one holds.
#[test]
fn reload_changes_the_address_of_a_listener_with_a_directory() {
    let directory = DataDirectory::new();
    let text = |address: &str| {
        format!(
            "listen = [\"127.0.0.1:0\"]\n[[listeners]]\ntransport = \"mqtt-sn\"\naddress = \"{address}\"\nname = \"field\"\n\
             anonymous = true\n"
        )
    };
    let file = ConfigFile::new(&text("127.0.0.1:0"));
    let broker = BrokerProcess::start_exactly(&["--data", directory.path_text(), "--config", file.path()]);
    let mut sensor = Sensor::connect(sn_address(&broker), "sensor", 0, 60);
    let topic = sensor.register("up/1");
    std::fs::write(file.path(), text("127.0.0.2:0")).expect("the file");
    broker.signal("HUP");
    let line = broker.log().wait_for(&["listener=field address=127.0.0.2:"], PATIENCE);
    assert_eq!(sensor.receive(), [0x18]);
    let port = line.split("127.0.0.2:").nth(1).and_then(|rest| rest.split(' ').next()?.trim().parse().ok());
    let address = ([127, 0, 0, 2], port.unwrap_or_else(|| panic!("a port: {line}"))).into();
    let mut sensor = Sensor::connect(address, "sensor", 0, 60);
    assert_eq!(sensor.publish(topic, QOS_1, "on the old topic id"), 0);
}

#[test]
fn separate_gateway_reloads_its_configuration() {
    let broker = BrokerProcess::start(&[]);
    let gateway = GatewayProcess::start(broker.address(), ([127, 0, 0, 1], 0).into(), "", &[]);
    let mut sensor = Sensor::connect(gateway.address, "sensor", CLEAN, 60);
    gateway.reload("retries = 400", "retries");
    assert_eq!(sensor.publish(*b"xy", QOS_1 | 0x02, "kept"), 0);
    gateway.reload("topics.7 = \"plant/7\"", "reloaded");
    assert_eq!(sensor.receive(), [0x18]);
    let mut sensor = Sensor::connect(gateway.address, "sensor", CLEAN, 60);
    assert_eq!(sensor.publish([0, 7], QOS_1 | 0x01, "on the new topic"), 0);
}

#[test]
fn mistakes_name_listener_and_key() {
    for (text, words) in [
        ("transport = \"mqtt-sn\"\naddress = \"unix:/tmp/x\"\nanonymous = true\n", ["transport", "unix socket"]),
        ("transport = \"mqtt-sn\"\naddress = \"localhost:1\"\nanonymous = true\n", ["address", "IP address"]),
        ("address = \"127.0.0.1:0\"\nanonymous = true\n[listeners.sn]\nretries = 1\n", ["sn", "mqtt-sn"]),
        ("transport = \"mqtt-sn\"\naddress = \"127.0.0.1:0\"\n", ["127.0.0.1:0", "a user"]),
        (
            "transport = \"mqtt-sn\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n[listeners.sn]\nsurprise = 1\n",
            ["127.0.0.1:0", "surprise"],
        ),
    ] {
        let file = ConfigFile::new(&format!("[[listeners]]\n{text}"));
        let (status, said) = BrokerProcess::fail_to_start(&["--config", file.path()]);
        assert!(!status.success() && words.iter().all(|word| said.join("\n").contains(word)), "{text}: {said:?}");
    }
    // A check finds mistakes in the gateway's keys, too.
    let text = "transport = \"mqtt-sn\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n[listeners.sn]\nsurprise = 1\n";
    let file = ConfigFile::new(&format!("[[listeners]]\n{text}"));
    let check = ["broker", "--config", file.path(), "--check"];
    let output = Command::new(env!("CARGO_BIN_EXE_tenbin")).args(check).output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("surprise"), "{output:?}");
}

#[test]
fn readme_commands_bring_the_first_message() {
    let (broker, gateway) = broker();
    let mut backend = broker.v5("backend");
    backend.subscribe("a", QoS::AtMostOnce);
    let gateway = gateway.to_string();
    let sent = Command::new(env!("CARGO_BIN_EXE_tenbin"))
        .args(["sn", "pub", "--gateway", &gateway, "-t", "a", "-m", "hi"])
        .output()
        .expect("the program runs");
    assert!(sent.status.success(), "{sent:?}");
    assert_eq!(backend.receive_message().payload, "hi");
}

#[test]
fn separate_gateway_takes_the_tables_of_the_broker() {
    let (broker, _) = broker();
    let config = "[[listeners]]\ntransport = \"mqtt-sn\"\naddress = \"127.0.0.1:0\"\nname = \"field\"\n\
                  [listeners.sn]\ntopics.7 = \"of/field\"\n\
                  [[listeners]]\naddress = \"127.0.0.1:0\"\nname = \"yard\"\n[listeners.sn]\ntopics.7 = \"of/yard\"\n";
    let gateway = GatewayProcess::start_configured(broker.address(), config, &[]);
    let mut backend = broker.v5("backend");
    backend.subscribe("of/#", QoS::AtMostOnce);
    for (address, place) in gateway.addresses.iter().zip(["of/field", "of/yard"]) {
        let mut sensor = Sensor::connect(*address, place, CLEAN, 60);
        assert_eq!(sensor.publish([0, 7], QOS_1 | 0x01, "predefined"), 0);
        assert_eq!(backend.receive_message().topic, topic(place));
    }
    assert_eq!(gateway.addresses.len(), 2);
}

#[test]
fn sensors_need_no_file_descriptors() {
    let keys = "per_address_maximum = 0\nconnects_per_second_per_address = 0";
    let file = ConfigFile::new(&format!(
        "[[listeners]]\ntransport = \"mqtt-sn\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n[listeners.sn]\n{keys}\n"
    ));
    let broker = BrokerProcess::start_with_descriptors(256, 256, &["--config", file.path()]);
    let gateway = sn_address(&broker);
    let sensors: Vec<_> = (0..300).map(|number| Sensor::connect(gateway, &format!("s{number}"), CLEAN, 60)).collect();
    // Sockets have their room beside them.
    let _backend = broker.v5("backend");
    drop(sensors);
}
