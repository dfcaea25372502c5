//! §3.4 to §3.7 PUBACK, PUBREC, PUBREL, PUBCOMP.

use tenbin_codec::{ProtocolVersion, QoS};

use crate::conformance::byte_client::{ByteClient, ack_reason, body, connect_v5, disconnect_reason, packet, string};
use crate::support::{BrokerProcess, ConfigFile, lasting};

/// Acknowledgement, statement, and the codes of its table.
const TABLES: [(&str, u8, &[u8]); 4] = [
    ("PUBACK [MQTT-3.4.2-1]", 0x40, &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]),
    ("PUBREC [MQTT-3.5.2-1]", 0x50, &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]),
    ("PUBREL [MQTT-3.6.2-1]", 0x62, &[0x00, 0x92]),
    ("PUBCOMP [MQTT-3.7.2-1]", 0x70, &[0x00, 0x92]),
];

#[test]
fn mqtt_3_4_2_1_and_alike_illegal_ack_codes_are_refused() {
    let broker = BrokerProcess::start(&[]);
    for (what, first, table) in TABLES {
        let mut lawful = ByteClient::v5(&broker, "lawful");
        for code in 0..=u8::MAX {
            let ack = packet(first, &[&[0, 9, code]]);
            if table.contains(&code) {
                lawful.send(&ack);
                let answers = lawful.all_waiting();
                assert!(answers.iter().all(|packet| packet[0] != 0xE0), "{what} {code:#X}: {answers:02X?}");
                continue;
            }
            let mut client = ByteClient::v5(&broker, "client");
            client.send(&ack);
            assert!([0x81, 0x82].contains(&disconnect_reason(&client.receive())), "{what} {code:#X}");
            assert_eq!(client.receive_or_end(), None, "{what} {code:#X}");
        }
    }
}

/// A refusal has a Reason String, or none if it exceeds the client's Maximum Packet Size.
#[test]
fn mqtt_3_4_2_2_and_alike_refusal_has_reason_string_if_it_fits() {
    let config = ConfigFile::new("[retained]\nmessages_maximum = 0\n[capabilities]\npayload_format_check = true");
    let broker = BrokerProcess::start(&["--config", config.path()]);
    let (sys, deep) = (string("$SYS/secret"), string("secret/".repeat(200)));
    let refused = [
        (0x40, 0x87, packet(0x32, &[&sys, &[0, 1, 0]])),
        (0x50, 0x87, packet(0x34, &[&sys, &[0, 2, 0]])),
        (0x40, 0x90, packet(0x32, &[&deep, &[0, 3, 0]])),
        (0x50, 0x97, packet(0x35, &[&string("secret"), &[0, 4, 0, 1]])),
        (0x40, 0x99, packet(0x32, &[&string("secret"), &[0, 5, 2, 1, 1, 0xFF]])),
        (0x90, 0x8F, packet(0x82, &[&[0, 6, 0], &string("a"), &[0], &deep, &[0], &string("b"), &[0]])),
    ];
    for (first, code, request) in &refused {
        let (mut without, mut with) = (0, 0);
        for maximum in 32..100 {
            let connect = connect_v5(0x02, &[0x27, 0, 0, 0, maximum], &[&string("client")]);
            let (mut client, _) = ByteClient::connect(&broker, &connect);
            client.send(request);
            let answer = client.receive();
            assert_eq!(answer[0], *first);
            assert!(answer.len() <= usize::from(maximum), "{maximum}: {answer:02X?}");
            let (words, codes) = words_and_codes(&answer);
            assert!(codes.contains(code), "{answer:02X?}");
            assert!(with == 0 || words.is_some(), "what fits in less fits in more: {answer:02X?}");
            let Some(words) = words else {
                without += 1;
                continue;
            };
            with += 1;
            assert!(!words.is_empty() && !words.contains("secret"), "{words}");
        }
        assert!(without > 0 && with > 0, "{first:#X} {code:#X}: {without} without, {with} with");
    }
    // A success has no Reason String, and neither has 3.1.1.
    let mut client = ByteClient::v5(&broker, "client");
    client.send(&packet(0x32, &[&string("nobody's"), &[0, 1, 0]]));
    client.expect(&[0x40, 3, 0, 1, 0x10]);
    client.send(&packet(0x82, &[&[0, 2, 0], &string("a"), &[1]]));
    client.expect(&[0x90, 4, 0, 2, 0, 1]);
    let mut client = ByteClient::v311(&broker, "client");
    client.send(&packet(0x32, &[&sys, &[0, 1]]));
    client.expect(&[0x40, 2, 0, 1]);
    client.send(&packet(0x82, &[&[0, 2], &deep, &[1]]));
    client.expect(&[0x90, 3, 0, 2, 0x80]);
}

/// Reason String and Reason Codes of a PUBACK, PUBREC or SUBACK of less than 130 bytes.
fn words_and_codes(answer: &[u8]) -> (Option<&str>, &[u8]) {
    let body = body(answer);
    let (codes_first, properties) = if answer[0] == 0x90 { (&[][..], &body[2..]) } else { (&body[2..3], &body[3..]) };
    let (length, rest) = properties.split_first().unwrap_or((&0, &[]));
    let (properties, codes_last) = rest.split_at(usize::from(*length));
    let words = match properties {
        [] => None,
        [0x1F, high, low, words @ ..] => {
            assert_eq!(usize::from(u16::from_be_bytes([*high, *low])), words.len(), "nothing but a Reason String");
            Some(std::str::from_utf8(words).expect("UTF-8"))
        }
        other => panic!("{other:02X?}"),
    };
    (words, if codes_first.is_empty() { codes_last } else { codes_first })
}

/// The broker's own acknowledgements: in each situation a code of the table.
#[test]
fn mqtt_3_5_2_1_broker_ack_codes_are_legal() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    client.subscribe("mine", 0);
    for (topic, codes) in [("mine", &[0x00][..]), ("nobody's", &[0x00, 0x10]), ("$SYS/x", &[0x87, 0x90])] {
        client.send(&packet(0x32, &[&string(topic), &[0, 1, 0]]));
        client.send(&packet(0x34, &[&string(topic), &[0, 2, 0]]));
        let came = client.all_waiting();
        let acks: Vec<_> = came.iter().filter(|packet| packet[0] != 0x30).collect();
        let mut kinds: Vec<u8> = acks.iter().map(|packet| packet[0]).collect();
        kinds.sort_unstable(); // ordered by kind only
        assert_eq!(kinds, [0x40, 0x50], "{topic}");
        assert!(acks.iter().all(|packet| codes.contains(&ack_reason(packet))), "{topic}: {acks:02X?}");
        client.send(&packet(0x62, &[&[0, 2]]));
        let pubcomp = client.receive();
        assert_eq!(pubcomp[0], 0x70);
        assert!([0x00, 0x92].contains(&ack_reason(&pubcomp)), "{topic}: {pubcomp:02X?}");
    }
    client.send(&packet(0x50, &[&[0, 99]]));
    let pubrel = client.receive();
    assert_eq!(pubrel[0], 0x62);
    assert!([0x00, 0x92].contains(&ack_reason(&pubrel)), "{pubrel:02X?}");
}

/// §3.4.2.1, §3.4.2.2.1 and alike: code and Property Length are optional.
#[test]
fn short_acks_mean_success_and_no_properties() {
    let tails: [&[u8]; 4] = [&[], &[0], &[0, 0], &[0, 8, 0x1F, 0, 5, b'h', b'e', b'l', b'l', b'o']];
    for tail in tails {
        let broker = BrokerProcess::start(&[]);
        let mut subscriber = ByteClient::v5(&broker, "subscriber");
        subscriber.subscribe("a", 2);
        let mut publisher = ByteClient::v5(&broker, "publisher");
        // QoS 1, then QoS 2 in both roles.
        publisher.send(&packet(0x32, &[&string("a"), &[0, 1, 0]]));
        let id = body(&subscriber.receive())[3..5].to_vec();
        subscriber.send(&packet(0x40, &[&id, tail]));
        publisher.send(&packet(0x34, &[&string("a"), &[0, 2, 0]]));
        assert_eq!((publisher.receive()[0], publisher.receive()[0]), (0x40, 0x50));
        publisher.send(&packet(0x62, &[&[0, 2], tail]));
        assert_eq!(publisher.receive()[0], 0x70);
        let publish = subscriber.receive();
        assert_eq!(publish[0], 0x34);
        let id = body(&publish)[3..5].to_vec();
        subscriber.send(&packet(0x50, &[&id, tail]));
        assert_eq!(subscriber.receive()[0], 0x62);
        subscriber.send(&packet(0x70, &[&id, tail]));
        assert_eq!(subscriber.all_waiting(), Vec::<Vec<u8>>::new(), "{tail:02X?}");
    }
}

/// §3.4.2.2: acknowledgements may have one Reason String and User Properties.
#[test]
fn illegal_properties_of_acks_are_refused() {
    let broker = BrokerProcess::start(&[]);
    for (_, first, _) in TABLES {
        for (what, properties) in [
            ("Reason String twice", &b"\x1F\0\x01a\x1F\0\x01a"[..]),
            ("another packet's", b"\x21\0\x01"),
            ("unknown", b"\x7F\0"),
            ("half of one", b"\x1F\0"),
        ] {
            let mut client = ByteClient::v5(&broker, "client");
            client.send(&packet(first, &[&[0, 9, 0, properties.len() as u8], properties]));
            assert!([0x81, 0x82].contains(&disconnect_reason(&client.receive())), "{first:#X} {what}");
            assert_eq!(client.receive_or_end(), None, "{first:#X} {what}");
        }
    }
}

#[test]
fn mqtt_3_6_1_1_illegal_flags_of_pubrel_are_refused() {
    let broker = BrokerProcess::start(&[]);
    for first in (0x60..=0x6F).filter(|&first| first != 0x62) {
        let mut client = ByteClient::v5(&broker, "client");
        client.send(&[first, 2, 0, 1]);
        assert_eq!(disconnect_reason(&client.receive()), 0x81, "{first:#X}");
        assert_eq!(client.receive_or_end(), None);
    }
}

/// A refusal ends the handshake for both sides.
#[test]
fn mqtt_4_4_0_2_each_refusal_ends_its_message() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    for (_, first, table) in &TABLES[..2] {
        let qos = if *first == 0x40 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        for code in table.iter().filter(|&&code| code >= 0x80) {
            let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
            client.subscribe("a", QoS::ExactlyOnce);
            publisher.publish("a", "x", qos);
            let id = client.receive_publish().packet_id.expect("QoS 1 or 2").get().to_be_bytes();
            client.send_bytes(&packet(*first, &[&id, &[*code]]));
            client.expect_nothing_waiting();
            client.cut();
            let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
            client.expect_nothing_waiting();
            client.cut();
        }
    }
}
