//! §2 MQTT Control Packet format.

use crate::conformance::byte_client::{ByteClient, body, packet, string};
use crate::support::BrokerProcess;

#[test]
fn mqtt_2_1_3_1_and_2_2_2_1_broker_sends_well_formed_packets() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    client.subscribe("a", 2);
    client.send(&packet(0x30, &[&string("a"), &[0], b"0"]));
    client.expect(&packet(0x30, &[&string("a"), &[0], b"0"]));
    client.send(&packet(0x32, &[&string("a"), &[0, 7, 0], b"1"]));
    let (puback, publish) = pair(&mut client);
    assert_eq!(puback[0], 0x40);
    assert_eq!(publish[0], 0x32);
    assert_eq!(body(&publish)[5], 0, "Property Length");
    client.send(&packet(0x40, &[&body(&publish)[3..5]]));
    client.send(&packet(0x34, &[&string("a"), &[0, 8, 0], b"2"]));
    let (pubrec, publish) = pair(&mut client);
    assert_eq!(pubrec[0], 0x50);
    assert_eq!(publish[0], 0x34);
    assert_eq!(body(&publish)[5], 0, "Property Length");
    client.send(&packet(0x50, &[&body(&publish)[3..5]]));
    assert_eq!(client.receive()[0], 0x62, "PUBREL");
    client.send(&packet(0x70, &[&body(&publish)[3..5]]));
    client.send(&packet(0x62, &[&[0, 8]]));
    assert_eq!(client.receive()[0], 0x70, "PUBCOMP");
    client.send(&packet(0xA2, &[&[0, 2, 0], &string("a")]));
    client.expect(&[0xB0, 4, 0, 2, 0, 0]);
    client.send(&[0xC0, 0]);
    client.expect(&[0xD0, 0]);
    client.send(&[0xC1, 0]);
    assert_eq!(client.receive()[0], 0xE0, "DISCONNECT");
}

#[test]
fn mqtt_2_2_1_2_a_qos_0_publish_has_no_packet_id() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    client.subscribe("topic", 0);
    for published in [&[0x30][..], &[0x32, 0, 9], &[0x34, 0, 10]] {
        let (first, id) = published.split_first().expect("a first byte");
        client.send(&packet(*first, &[&string("topic"), id, &[0], b"payload"]));
    }
    let came = client.all_waiting();
    let messages: Vec<_> = came.into_iter().filter(|packet| packet[0] >> 4 == 3).collect();
    let expected = packet(0x30, &[&string("topic"), &[0], b"payload"]);
    assert_eq!(messages, [&expected[..], &expected, &expected]);
}

#[test]
fn mqtt_2_2_1_5_acknowledgements_repeat_the_id_of_their_publish() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    for id in [1_u16, 0x00FF, 0x0100, 0x1234, u16::MAX] {
        let id = &id.to_be_bytes()[..];
        client.send(&packet(0x32, &[&string("a"), id, &[0]]));
        assert_is(&client.receive(), 0x40, id);
        client.send(&packet(0x34, &[&string("a"), id, &[0]]));
        assert_is(&client.receive(), 0x50, id);
        client.send(&packet(0x62, &[id]));
        assert_is(&client.receive(), 0x70, id);
    }
    // As a sender: PUBREL has the id of PUBREC.
    client.subscribe("b", 2);
    client.send(&packet(0x34, &[&string("b"), &[0, 1, 0]]));
    let (_, publish) = pair(&mut client);
    let id = body(&publish)[3..5].to_vec();
    client.send(&packet(0x50, &[&id]));
    assert_is(&client.receive(), 0x62, &id);
}

#[test]
fn mqtt_2_2_1_6_suback_and_unsuback_repeat_the_request_id() {
    let broker = BrokerProcess::start(&[]);
    for (mut client, is_v5) in [(ByteClient::v5(&broker, "new"), true), (ByteClient::v311(&broker, "old"), false)] {
        let properties: &[u8] = if is_v5 { &[0] } else { &[] };
        for id in [1_u16, 0x00FF, 0x0100, 0x1234, u16::MAX] {
            let id = &id.to_be_bytes()[..];
            client.send(&packet(0x82, &[id, properties, &string("a"), &[1]]));
            client.expect(&packet(0x90, &[id, properties, &[1]]));
            client.send(&packet(0xA2, &[id, properties, &string("a")]));
            client.expect(&packet(0xB0, &[id, properties, properties]));
            // An UNSUBSCRIBE without effect is answered, too. [MQTT-3.10.4-5]
            client.send(&packet(0xA2, &[id, properties, &string("a")]));
            let codes: &[u8] = if is_v5 { &[0x11] } else { &[] };
            client.expect(&packet(0xB0, &[id, properties, codes]));
        }
    }
}

/// Receives an acknowledgement and a PUBLISH, in either order.
pub(crate) fn pair(client: &mut ByteClient) -> (Vec<u8>, Vec<u8>) {
    let (first, second) = (client.receive(), client.receive());
    if first[0] >> 4 == 3 { (second, first) } else { (first, second) }
}

fn assert_is(packet: &[u8], first: u8, id: &[u8]) {
    assert_eq!((packet[0], &body(packet)[..2]), (first, id), "{packet:02X?}");
}
