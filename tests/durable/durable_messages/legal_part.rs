//! A connection that the broker ends: earlier messages are acknowledged first, so that a client that repeats the rest gets
//! further each time.

use std::collections::BTreeSet;

use tenbin_codec::{Connect, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::support::{BrokerProcess, ConfigFile, DataDirectory, at_qos, encode, hex, lasting, text};

/// A broker whose messages to `t` wait for the disk, since an absent session gets them.
fn broker_with(data: &DataDirectory, config: &str) -> BrokerProcess {
    let config = ConfigFile::new(config);
    let broker = data.start_with(&["--config", config.path()]);
    let mut away = broker.connect(lasting(ProtocolVersion::V5, "away"));
    away.subscribe("t", QoS::ExactlyOnce);
    away.disconnect();
    broker
}

fn numbered(ids: impl Iterator<Item = u16>, qos: QoS, version: ProtocolVersion) -> Vec<u8> {
    let publish = |id| Publish { packet_id: PacketId::new(id), ..at_qos("t", "x", qos) };
    ids.flat_map(|id| encode(&Packet::Publish(publish(id)), version)).collect()
}

/// Sends bytes, and returns the Packet Identifiers of all acknowledgements before the end, and its Reason Code.
fn answers(broker: &BrokerProcess, connect: Connect, bytes: &[u8]) -> (BTreeSet<u16>, Option<ReasonCode>) {
    let mut client = broker.connect(connect);
    client.send_bytes(bytes);
    let (mut acknowledged, mut reason) = (BTreeSet::new(), None);
    for packet in client.read_to_end() {
        match packet {
            Packet::PubAck(ack) | Packet::PubRec(ack) => assert!(acknowledged.insert(ack.packet_id.get())),
            Packet::Disconnect(disconnect) => reason = Some(disconnect.reason),
            other => panic!("{other:?}"),
        }
    }
    (acknowledged, reason)
}

#[test]
fn client_beyond_receive_maximum_gets_further_each_time() {
    let data = DataDirectory::new();
    let broker = broker_with(&data, "[sessions]\nreceive_maximum = 100");
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let client_id = format!("eager-{}", qos.bits());
        let mut left: BTreeSet<u16> = (1..=350).collect();
        for _ in 0..3 {
            let connect = Connect::new(ProtocolVersion::V5, text(&client_id));
            let bytes = numbered(left.iter().copied(), qos, ProtocolVersion::V5);
            let (acknowledged, reason) = answers(&broker, connect, &bytes);
            assert_eq!(reason, Some(ReasonCode::ReceiveMaximumExceeded), "{qos:?}");
            assert_eq!(acknowledged, left.iter().copied().take(100).collect(), "{qos:?}");
            left.retain(|id| !acknowledged.contains(id));
        }
        assert_eq!(left.len(), 50);
    }
}

#[test]
fn messages_before_an_illegal_packet_are_acknowledged() {
    let data = DataDirectory::new();
    let broker = broker_with(&data, "[connections]\npacket_bytes_maximum = 4096\nuser_properties_maximum = 1");
    let property = "26 00 01 61 00 01 62";
    let v5 = [
        ("unknown Topic Alias", "30 06 00 00 03 23 00 09".to_owned(), ReasonCode::ProtocolError),
        ("Topic Alias too high", "30 08 00 01 74 03 23 00 FF 78".to_owned(), ReasonCode::TopicAliasInvalid),
        ("second CONNECT", "10 0D 00 04 4D 51 54 54 05 02 00 3C 00 00 00".to_owned(), ReasonCode::ProtocolError),
        ("User Properties", format!("30 12 00 01 74 0E {property} {property}"), ReasonCode::QuotaExceeded),
        ("malformed", "36 00".to_owned(), ReasonCode::MalformedPacket),
        ("too large", "30 FF 7F".to_owned(), ReasonCode::PacketTooLarge),
    ];
    let older = v5[4..].iter().map(|(name, bytes, _)| (ProtocolVersion::V311, *name, bytes, None));
    let cases = v5.iter().map(|(name, bytes, reason)| (ProtocolVersion::V5, *name, bytes, Some(*reason)));
    for (version, name, bytes, reason) in cases.chain(older) {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let connect = Connect::new(version, text("client"));
            let bytes = [numbered(1..21, qos, version), hex(bytes)].concat();
            let (acknowledged, found) = answers(&broker, connect, &bytes);
            assert_eq!(acknowledged, (1..21).collect(), "{name}, {version}, {qos:?}");
            assert_eq!(found, reason, "{name}, {version}");
        }
    }
}
