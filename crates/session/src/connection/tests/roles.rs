//! Packets of one side only, the end of a connection, and differences of 3.1.1.

use super::*;
use tenbin_codec::{Auth, ConnAck, DisconnectProperties, SubAck, Subscribe, UnsubAck, Unsubscribe};

fn connect(version: ProtocolVersion) -> Packet {
    Packet::Connect(Box::new(Connect::new(version, Text::EMPTY)))
}

fn packets_of_a_server() -> [Packet; 4] {
    let (packet_id, reasons) = (packet_id(1), vec![ReasonCode::Success]);
    [
        Packet::ConnAck(Box::new(ConnAck {
            session_present: false,
            reason: ReasonCode::Success,
            properties: Default::default(),
        })),
        Packet::SubAck(SubAck { packet_id, properties: Default::default(), reasons: reasons.clone() }),
        Packet::UnsubAck(UnsubAck { packet_id, properties: Default::default(), reasons }),
        Packet::PingResp,
    ]
}

fn packets_of_a_client() -> [Packet; 4] {
    let (packet_id, user_properties) = (packet_id(1), Vec::new());
    [
        connect(ProtocolVersion::V5),
        Packet::Subscribe(Subscribe {
            packet_id,
            subscription_identifier: None,
            user_properties: user_properties.clone(),
            subscriptions: Vec::new(),
        }),
        Packet::Unsubscribe(Unsubscribe { packet_id, user_properties, filters: Vec::new() }),
        Packet::PingReq(PingReq::PLAIN),
    ]
}

#[test]
fn a_packet_of_the_wrong_side_is_a_protocol_error() {
    for packet in packets_of_a_server() {
        let kind = packet.packet_type();
        assert_violation(Side::server(Limits::default()).take(packet), Violation::Unexpected(kind), 0x82);
    }
    for packet in packets_of_a_client() {
        let kind = packet.packet_type();
        assert_violation(Side::client(Limits::default()).take(packet), Violation::Unexpected(kind), 0x82);
    }
}

#[test]
fn a_packet_of_the_right_side_is_an_event() {
    let [_, subscribe, unsubscribe, ping] = packets_of_a_client();
    let mut server = Side::server(Limits::default());
    assert!(matches!(server.take(subscribe), Ok(Event::Subscribe(_))));
    assert!(matches!(server.take(unsubscribe), Ok(Event::Unsubscribe(_))));
    assert!(matches!(server.take(ping), Ok(Event::Ping(_))));
    let [connack, suback, unsuback, pingresp] = packets_of_a_server();
    let mut client = Side::client(Limits::default());
    assert!(matches!(client.take(suback), Ok(Event::SubAck(_))));
    assert!(matches!(client.take(unsuback), Ok(Event::UnsubAck(_))));
    assert!(matches!(client.take(pingresp), Ok(Event::PingResp)));
    // A connection has one CONNACK, which came before [MQTT-3.2.0-2].
    assert_violation(client.take(connack), Violation::Unexpected(PacketType::ConnAck), 0x82);
    for mut side in [server, client] {
        let auth = Auth { reason: ReasonCode::ContinueAuthentication, properties: Default::default() };
        assert!(matches!(side.take(Packet::Auth(Box::new(auth))), Ok(Event::Auth(_))));
    }
}

#[test]
fn mqtt_3_1_0_2_a_second_connect_is_a_protocol_error() {
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let mut side = Side::new(Role::Server, version, Limits::default(), Session::new(), epoch());
        assert_violation(side.take(connect(version)), Violation::SecondConnect, 0x82);
    }
}

#[test]
fn disconnect_is_an_event_and_server_only_content_is_refused() {
    for mut side in [Side::server(Limits::default()), Side::client(Limits::default())] {
        let event = side.take(Packet::Disconnect(Disconnect::new(ReasonCode::UnspecifiedError)));
        assert!(matches!(event, Ok(Event::Disconnect(disconnect)) if disconnect.reason.byte() == 0x80));
    }
    let moved = || {
        let properties = DisconnectProperties { server_reference: Some(Text::from_static("b")), ..Default::default() };
        Packet::Disconnect(Disconnect { reason: ReasonCode::Success, properties: Some(Box::new(properties)) })
    };
    assert_violation(Side::server(Limits::default()).take(moved()), Violation::ServerReference, 0x82);
    assert!(matches!(Side::client(Limits::default()).take(moved()), Ok(Event::Disconnect(_))));
}

#[test]
fn mqtt_3_14_2_1_disconnect_has_only_valid_reason_codes() {
    for reason in ReasonCode::ALL {
        let mut side = Side::server(Limits::default());
        side.connection.disconnect(reason, &mut side.out);
        let Packet::Disconnect(disconnect) = side.answer() else { panic!() };
        let is_sayable = reason.is_valid_in(PacketType::Disconnect);
        assert_eq!(disconnect.reason, if is_sayable { reason } else { ReasonCode::ProtocolError });
    }
}

#[test]
fn v3_1_1_has_no_server_disconnect_and_no_reason_codes() {
    let v311 = |role| Side::new(role, ProtocolVersion::V311, Limits::default(), Session::new(), epoch());
    let mut server = v311(Role::Server);
    server.connection.disconnect(ReasonCode::ProtocolError, &mut server.out);
    assert!(server.written().is_empty());
    let mut client = v311(Role::Client);
    client.connection.disconnect(ReasonCode::UnspecifiedError, &mut client.out);
    assert_eq!(client.out.to_bytes()[..], [0xE0, 0]);
    let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::Success));
    assert_violation(client.take(disconnect), Violation::Unexpected(PacketType::Disconnect), 0x82);

    let mut server = v311(Role::Server);
    for (qos, first_byte) in [(QoS::AtLeastOnce, 0x40), (QoS::ExactlyOnce, 0x50)] {
        assert_new(server.take(Packet::Publish(publish(7, qos))));
        server.acknowledge(7, qos, ReasonCode::NotAuthorized);
        assert_eq!(server.out.to_bytes()[..], [first_byte, 2, 0, 7]);
        server.out.clear();
    }
    server.handle(pubrel(9));
    server.handle(pubrec(9));
    assert_eq!(server.out.to_bytes()[..], [0x70, 2, 0, 9, 0x62, 2, 0, 9]);
}

#[test]
fn version_3_1_1_delivers_without_properties() {
    let mut side = Side::new(Role::Server, ProtocolVersion::V311, Limits::default(), Session::new(), epoch());
    let delivery = Delivery {
        extras: crate::Extras::identifiers([1]),
        expires_at: Some(side.now + Duration::from_secs(9)),
        ..delivery("topic", QoS::AtLeastOnce)
    };
    assert!(matches!(side.send(delivery), Sent::Written(Some(_))));
    assert_eq!(side.out.to_bytes()[..], *b"\x32\x10\x00\x05topic\x00\x01payload");
}
