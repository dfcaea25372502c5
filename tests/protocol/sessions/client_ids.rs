//! Client Identifiers.

use tenbin_codec::{Connect, ProtocolVersion, ReasonCode};

use crate::support::{BrokerProcess, ConfigFile, RawClient, VERSIONS, is_store_durable, lasting, text};

#[test]
fn mqtt_3_1_3_7_client_without_id_gets_an_assigned_one() {
    let broker = BrokerProcess::start(&[]);
    let connect = || RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, ""));
    let (first, connack) = connect();
    let id = connack.properties.assigned_client_identifier.expect("[MQTT-3.1.3-7]");
    assert!(!id.is_empty());
    let (_second, connack) = connect();
    assert_ne!(connack.properties.assigned_client_identifier, Some(id.clone()), "[MQTT-3.1.3-6]");
    // The id names the session from now on.
    first.disconnect();
    let (_back, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, id.as_str()));
    assert!(connack.session_present);
    assert_eq!(connack.properties.assigned_client_identifier, None);
}

#[test]
fn an_empty_id_at_3_1_1_demands_a_clean_session() {
    let broker = BrokerProcess::start(&[]);
    let mut anonymous = [broker.v311(""), broker.v311("")];
    anonymous.iter_mut().for_each(RawClient::settle);
    let (mut client, connack) = RawClient::try_connect(broker.address(), lasting(ProtocolVersion::V311, ""));
    assert_eq!(connack.reason, ReasonCode::ClientIdentifierNotValid, "3.1.1 [MQTT-3.1.3-8], return code 2");
    assert!(!connack.session_present);
    client.expect_closed();
}

#[test]
fn mqtt_3_1_3_5_unusual_client_ids_are_accepted_and_distinct() {
    let file = ConfigFile::new("[sessions]\nclient_id_bytes_maximum = 65535");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    // A store limits the length of keys.
    let long = "x".repeat(if is_store_durable() { 65_000 } else { 65_535 });
    for version in VERSIONS {
        let ids = ["0123456789abcdefghijABC", "a", "A", "#", "+", "a/+", "$SYS", "é", "\u{FEFF}a", " a", &long];
        let mut clients: Vec<_> = ids.iter().map(|id| broker.connect(Connect::new(version, text(id)))).collect();
        clients.iter_mut().for_each(RawClient::settle);
    }
}
