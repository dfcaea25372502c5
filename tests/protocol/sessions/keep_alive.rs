//! Keep Alive and Server Keep Alive. Wills after a timeout are in `wills.rs`.

use std::time::Instant;

use tenbin_codec::{Connect, ProtocolVersion, ReasonCode};

use crate::support::{BrokerProcess, ConfigFile, RawClient, text};

#[test]
fn mqtt_3_2_2_21_server_keep_alive_replaces_a_longer_one() {
    let file = ConfigFile::new("[connections]\nkeep_alive_maximum_seconds = 60");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    for (asked, told) in [(30, None), (60, None), (61, Some(60)), (65_535, Some(60)), (0, Some(60))] {
        let connect = Connect { keep_alive: asked, ..Connect::new(ProtocolVersion::V5, text("client")) };
        let (_client, connack) = RawClient::connect(broker.address(), connect);
        assert_eq!(connack.properties.server_keep_alive, told, "asked {asked}");
    }
}

#[test]
fn broker_enforces_its_server_keep_alive() {
    let file = ConfigFile::new("[connections]\nkeep_alive_maximum_seconds = 1");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let connect = Connect { keep_alive: 0, ..Connect::new(ProtocolVersion::V5, text("client")) };
    let (mut client, connack) = RawClient::connect(broker.address(), connect);
    assert_eq!(connack.properties.server_keep_alive, Some(1));
    let connected = Instant::now();
    client.expect_end(ReasonCode::KeepAliveTimeout);
    let waited = connected.elapsed();
    assert!(waited.as_millis() > 1300, "{waited:?}");
}

#[test]
fn mqtt_3_2_2_22_any_keep_alive_is_accepted_without_a_maximum() {
    let broker = BrokerProcess::start(&[]);
    for asked in [0, 1, 65_535] {
        let connect = Connect { keep_alive: asked, ..Connect::new(ProtocolVersion::V5, text("client")) };
        let (_client, connack) = RawClient::connect(broker.address(), connect);
        assert_eq!(connack.properties.server_keep_alive, None, "asked {asked}");
    }
}
