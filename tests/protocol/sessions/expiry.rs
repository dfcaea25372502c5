//! How long a session outlives its connection.

use std::time::{Duration, Instant};

use tenbin_codec::{
    Connect, ConnectProperties, Disconnect, DisconnectProperties, Packet, ProtocolVersion, QoS, ReasonCode,
};

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, lasting};

#[test]
fn mqtt_3_1_2_23_a_session_lasts_as_long_as_its_expiry_says() {
    let broker = BrokerProcess::start(&[]);
    for (seconds, lasts) in
        [(None, false), (Some(0), false), (Some(1), true), (Some(3600), true), (Some(u32::MAX), true)]
    {
        broker.connect(with_expiry("client", seconds)).cut();
        assert_eq!(is_there(&broker, "client"), lasts, "{seconds:?}");
        forget(&broker, "client");
    }
}

#[test]
fn mqtt_4_1_0_2_a_session_ends_when_its_expiry_has_passed() {
    let broker = BrokerProcess::start(&["--log", "debug"]);
    broker.connect(with_expiry("forever", Some(u32::MAX))).cut();
    let mut client = broker.connect(with_expiry("second", Some(1)));
    client.subscribe("topic", QoS::AtLeastOnce);
    let ended = Instant::now();
    client.cut();
    broker.log().wait_for(&["session expired", "second"], PATIENCE);
    assert!(ended.elapsed() >= Duration::from_millis(950), "{:?}", ended.elapsed());
    assert!(!is_there(&broker, "second"));
    assert!(is_there(&broker, "forever"));
    // No subscriber is left.
    assert_eq!(broker.v5("").publish("topic", "", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
}

#[test]
fn a_session_does_not_expire_while_it_is_connected() {
    let broker = BrokerProcess::start(&[]);
    broker.connect(with_expiry("client", Some(1))).cut();
    let mut client = broker.connect(with_expiry("client", Some(1)));
    client.subscribe("topic", QoS::AtLeastOnce);
    client.expect_nothing_for(Duration::from_millis(1500));
    client.publish("topic", "still there", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["still there"]);
}

#[test]
fn disconnect_may_change_the_expiry() {
    let broker = BrokerProcess::start(&[]);
    broker.connect(with_expiry("client", Some(3600))).disconnect_with(disconnect_with_expiry(0));
    assert!(!is_there(&broker, "client"));
    broker.connect(with_expiry("client", Some(1))).disconnect_with(disconnect_with_expiry(3600));
    std::thread::sleep(Duration::from_millis(1500)); // longer than the first expiry
    assert!(is_there(&broker, "client"));
}

#[test]
fn disconnect_may_not_raise_an_expiry_of_zero() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.connect(with_expiry("client", Some(0)));
    client.send(&Packet::Disconnect(disconnect_with_expiry(10)));
    client.expect_end(ReasonCode::ProtocolError);
    assert!(!is_there(&broker, "client"));
}

#[test]
fn the_broker_grants_no_more_than_its_maximum_and_says_so() {
    let file = ConfigFile::new("[sessions]\nexpiry_maximum_seconds = 10");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    for (asked, granted) in
        [(Some(5), None), (Some(10), None), (Some(11), Some(10)), (Some(u32::MAX), Some(10)), (None, None)]
    {
        let (client, connack) = RawClient::connect(broker.address(), with_expiry("client", asked));
        // An absent property grants the request; repeating it is legal, too.
        let said = connack.properties.session_expiry_interval.filter(|said| Some(*said) != asked);
        assert_eq!(said, granted, "asked {asked:?}");
        client.disconnect();
    }
}

fn with_expiry(client_id: &str, session_expiry_interval: Option<u32>) -> Connect {
    let properties = ConnectProperties { session_expiry_interval, ..ConnectProperties::default() };
    Connect { properties, ..lasting(ProtocolVersion::V5, client_id) }
}

fn disconnect_with_expiry(seconds: u32) -> Disconnect {
    let properties = DisconnectProperties { session_expiry_interval: Some(seconds), ..DisconnectProperties::default() };
    Disconnect { properties: Some(Box::new(properties)), ..Disconnect::new(ReasonCode::Success) }
}

/// True if the broker has a session of this client. Leaves one that does not expire.
fn is_there(broker: &BrokerProcess, client_id: &str) -> bool {
    let (client, connack) = RawClient::connect(broker.address(), with_expiry(client_id, Some(u32::MAX)));
    client.disconnect();
    connack.session_present
}

fn forget(broker: &BrokerProcess, client_id: &str) {
    broker.client(ProtocolVersion::V5, client_id).disconnect();
}
