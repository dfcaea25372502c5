//! Wrong configurations, which are named.

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::bridge_process::{BridgeProcess, table, topics, wait_for_subscription};
use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, lasting, text};

#[test]
fn wrong_configuration_is_named_with_file_and_line() {
    let remote = ([127, 0, 0, 1], 1).into();
    let local = "local = \"mqtt://127.0.0.1:1\"";
    let both = topics("both", "#");
    let missing = "user = \"u\"\npassword_file = \"/missing/password\"";
    for (text, words) in [
        (table("b", remote, local) + "retries = 1\n" + &both, ["line 5: unknown field `retries`", "remote"]),
        (table("b", remote, local) + &both + "qos = 3\n", ["line 8: qos", "0 to 2"]),
        (table("b", remote, local) + &topics("up", "#"), ["line 6", "direction"]),
        (table("b", remote, "") + &both, ["no table has the key `local`", "bridge"]),
        (
            table("b", remote, &format!("{local}\n{missing}")) + &both,
            ["bridge \"b\": password_file", "/missing/password"],
        ),
    ] {
        let config = ConfigFile::new(&text);
        let said = BridgeProcess::refusal(&config);
        assert!(said.contains(config.path()) && words.iter().all(|word| said.contains(word)), "{text}: {said}");
    }
}

#[test]
fn broker_refuses_a_wrong_bridge_of_its_own() {
    let remote = ([127, 0, 0, 1], 1).into();
    for (keys, word) in [
        ("client_id = \"\"", "line 4: client_id"),
        ("user = \"u\"\npassword_file = \"/missing/password\"", "bridge \"b\": password_file: /missing/password"),
    ] {
        let config = ConfigFile::new(&(table("b", remote, keys) + &topics("in", "#")));
        let (status, said) = BrokerProcess::fail_to_start(&["--listen", "127.0.0.1:0", "--config", config.path()]);
        let said = said.join("\n");
        assert!(!status.success() && said.contains(config.path()) && said.contains(word), "{keys}: {said}");
    }
}

#[test]
fn password_that_connect_cannot_have_is_refused() {
    for (text, words) in [("\n".to_owned(), "the first line is empty"), ("x".repeat(65_536), "more than 65535 bytes")] {
        let password = ConfigFile::new(&text);
        let keys = format!("user = \"u\"\npassword_file = {:?}", password.path());
        let config = ConfigFile::new(&(table("b", ([127, 0, 0, 1], 1).into(), &keys) + &topics("in", "#")));
        let (status, said) = BrokerProcess::fail_to_start(&["--listen", "127.0.0.1:0", "--config", config.path()]);
        let said = said.join("\n");
        assert!(!status.success() && said.contains(password.path()) && said.contains(words), "{said}");
    }
}

/// A configuration without the table, for a moment, gives the session to nobody else.
#[test]
fn session_of_a_bridge_stays_its_own_without_its_table() {
    let remote = BrokerProcess::start(&["--ephemeral"]);
    let listeners = "[[listeners]]\nname = \"open\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n".to_owned();
    let with = listeners.clone() + &table("b", remote.address(), "") + &topics("out", "#");
    let config = ConfigFile::new(&listeners);
    let broker = BrokerProcess::start_listening(&["--ephemeral", "--config", config.path()], 1);
    // A session of somebody else, from before the bridge, ends.
    let (mut eve, _) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "local.b"));
    eve.subscribe("#", QoS::AtLeastOnce);
    let set = |text: &str, reloads| {
        std::fs::write(config.path(), text).expect("our own file");
        broker.signal("HUP");
        assert_eq!(broker.log().count("reloaded", reloads, PATIENCE), reloads);
    };
    set(&with, 1);
    wait_for_subscription(&broker, "a");
    set(&listeners, 2);
    broker.log().wait_for(&["bridge ends", "bridge=\"b\""], PATIENCE);
    broker.v5("publisher").publish("a", "waits", QoS::AtLeastOnce);
    let (_, connack) = RawClient::try_connect(broker.address(), lasting(ProtocolVersion::V5, "local.b"));
    assert_eq!((connack.reason, connack.session_present), (ReasonCode::NotAuthorized, false));
    let mut receiver = remote.v5("receiver");
    receiver.subscribe("#", QoS::AtLeastOnce);
    set(&with, 3);
    // Messages of the wait for the subscription may come before.
    while receiver.receive_message().payload != "waits" {}
}

/// The bridge has no address, so that limits and bans of addresses are not about it.
#[test]
fn failed_logins_of_this_machine_do_not_stop_the_bridge() {
    let remote = BrokerProcess::start(&["--ephemeral"]);
    let limits = "[connections]\nfailures_per_minute_per_address = 1\n[[listeners]]\naddress = \"127.0.0.1:0\"\nuser = \"anna\"\n";
    let ban = "[[ban]]\nnetwork = \"127.0.0.0/8\"\n";
    let config = ConfigFile::new(&(limits.to_owned() + ban));
    let broker = BrokerProcess::start_listening(&["--ephemeral", "--config", config.path()], 1);
    for _ in 0..3 {
        let (_, connack) = RawClient::try_connect(broker.address(), Connect::new(ProtocolVersion::V5, text("eve")));
        assert!(connack.reason.is_error());
    }
    let bridge = table("b", remote.address(), "") + &topics("out", "#");
    std::fs::write(config.path(), limits.to_owned() + ban + &bridge).expect("our own file");
    broker.signal("HUP");
    broker.log().wait_for(&["bridge connected"], PATIENCE);
}

/// By its Client Identifier, a stranger would get the bridge's session, and the messages that wait in it.
#[test]
fn stranger_with_the_client_id_of_a_bridge_is_refused() {
    let remote = BrokerProcess::start(&["--ephemeral"]);
    let listener =
        |name: &str, key: &str| format!("[[listeners]]\nname = {name:?}\naddress = \"127.0.0.1:0\"\n{key}\n");
    let listeners = listener("open", "anonymous = true") + &listener("of anna", "user = \"anna\"");
    let config = ConfigFile::new(&(listeners + &table("b", remote.address(), "") + &topics("out", "#")));
    let broker = BrokerProcess::start_listening(&["--ephemeral", "--config", config.path()], 2);
    wait_for_subscription(&broker, "a");
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        for address in broker.addresses() {
            let (_, connack) = RawClient::try_connect(*address, Connect::new(version, text("local.b")));
            assert_eq!(connack.reason, ReasonCode::ClientIdentifierNotValid, "{version:?}");
        }
    }
    broker.log().wait_for(&["login refused", "local.b", "the client id is for a bridge of the broker"], PATIENCE);
    let mut receiver = remote.v5("receiver");
    receiver.subscribe("#", QoS::AtLeastOnce);
    broker.v5("publisher").publish("a", "passes", QoS::AtLeastOnce);
    // Messages of the wait for the subscription may come before.
    while receiver.receive_message().payload != "passes" {}
}
