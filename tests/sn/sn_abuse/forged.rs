//! Sources that claim to be other clients.

use tenbin_codec::{ProtocolVersion, QoS};

use crate::sn_abuse::attack;
use crate::sn_abuse::canary::CANARY;
use crate::sn_abuse::sensor::{CLEAN, QOS_1, QOS_2, Sensor, WILL};
use crate::sn_abuse::source::{Source, connect, publish, register, sn, subscribe};
use crate::support::{RawClient, lasting};

/// Messages of a sleeping client before it wakes.
const MESSAGES: usize = 20;

/// CONNECT with the id of a connected client, and its messages from other addresses. The canary, which is that client,
/// keeps its connection.
#[test]
fn forged_messages_of_a_connected_client() {
    attack("forged client", "connects_per_second_per_address = 0\nunknown_answers_per_second = 10\n", |target| {
        for round in 0..20_u8 {
            let mut source = Source::at([127, 0, 3, round + 1], target.address);
            for flags in [CLEAN, 0] {
                source.send(&connect(CANARY, flags, 60));
            }
            let messages = [
                sn(0x18, b""),
                sn(0x18, b"\x00\x01"),
                sn(0x16, CANARY.as_bytes()),
                publish(QOS_1 | 0x02, *b"xy", 1, b"forged"),
                sn(0x0D, b"\x00\x01\x00\x01\x03"),
            ];
            target.flood(&mut source, messages.into_iter().cycle().take(1000));
            target.look();
            // Congestion, and the bounded answers to a stranger.
            assert!(source.take().iter().all(|answer| answer[..] == *b"\x03\x05\x01" || answer[..] == *b"\x02\x18"));
        }
    });
}

/// Forged wakes of a sleeping client, from other networks and from the client's network. It loses no messages.
#[test]
fn forged_messages_of_a_sleeping_client() {
    attack("forged sleeper", "connects_per_second_per_address = 0\n", |target| {
        let mut sleeper = Sensor::connect(target.address, "sleeper", CLEAN, 600);
        sleeper.subscribe("to/sleeper", QOS_2);
        sleeper.sleep(600);
        let mut publisher = target.broker.v5("publisher");
        let mut expected = Vec::new();
        for number in 0..MESSAGES {
            publisher.publish("to/sleeper", &number.to_string(), QoS::AtLeastOnce);
            expected.push(number.to_string());
        }
        let wake = sn(0x16, b"sleeper");
        let mut foreign = Source::at([127, 0, 1, 1], target.address);
        target.flood(&mut foreign, (0..2000).map(|_| wake.clone()));
        for address in 2..50 {
            let mut near = Source::at([127, 0, 0, address], target.address);
            near.send(&wake);
            target.metronome.tick();
            near.take();
            // One message that requires an answer fits three times the request.
            assert!(near.answer_bytes <= 3 * wake.len(), "{} bytes", near.answer_bytes);
        }
        target.look();
        assert_eq!(sleeper.wake("sleeper"), expected);
    });
}

/// Every message of MQTT-SN, as a client with this id may send it.
fn every_message(client_id: &str) -> Vec<Vec<u8>> {
    let id = client_id.as_bytes();
    let mut messages = vec![
        connect(client_id, CLEAN, 60),
        connect(client_id, 0, 0),
        connect(client_id, CLEAN | WILL, 60),
        sn(0x07, b"\x10forged"),
        sn(0x09, b"forged"),
        connect(client_id, WILL, 60),
        sn(0x07, b"\x10forged"),
        sn(0x09, b"forged"),
        register(1, "forged"),
        subscribe(QOS_1, 2, "#"),
        sn(0x14, b"\x00\x00\x03to/victims"),
        publish(QOS_1 | 0x02, *b"xy", 4, b"forged"),
        publish(QOS_2, [0, 1], 5, b"forged"),
        sn(0x10, &[0, 5]),
        sn(0x1A, b"\x10forged"),
        sn(0x1C, b"forged"),
        sn(0x1A, b""),
        sn(0x16, id),
        sn(0x16, b""),
        sn(0x17, b""),
        sn(0x18, b"\x00\x01"),
        sn(0x18, b""),
        sn(0x16, id),
        sn(0x18, b""),
        connect(client_id, CLEAN, 1),
        sn(0x01, b"\x00"),
        sn(0x00, b"\x01\x00\x01"),
        sn(0x02, b"\x01"),
        sn(0x03, b"\x00PLAIN\x00u\x00p"),
        sn(0x05, b"\x00"),
        sn(0x06, b""),
        sn(0x08, b""),
        sn(0x11, b"\x00\x01"),
        sn(0x13, b"\x20\x00\x01\x00\x02\x00"),
        sn(0x15, b"\x00\x03"),
        sn(0x1B, b"\x00"),
        sn(0x1D, b"\x00"),
    ];
    for number in 1..=8_u8 {
        messages.push(sn(0x0B, &[0, number, 0, number, 0]));
        messages.push(sn(0x0D, &[0, number, 0, number, 3]));
        messages.push(sn(0x0F, &[0, number]));
        messages.push(sn(0x0E, &[0, number]));
    }
    messages.push(sn(0xFE, &[&[0][..], b"node", &connect(client_id, CLEAN, 60)].concat()));
    messages
}

/// Every message with the id of a client of each kind: connected, asleep and offline, of MQTT-SN and of TCP. All sessions
/// stay, with their queues.
#[test]
fn forged_messages_of_every_type_change_no_session() {
    let keys = "connects_per_second_per_address = 0\nunknown_answers_per_second = 1000\n";
    attack("every forged message", keys, |target| {
        let (gateway, broker) = (target.address, target.broker.address());
        let mut active = Sensor::connect(gateway, "active", 0, 600);
        active.subscribe("to/victims", QOS_1);
        let mut active_got = Vec::new();
        let mut sleeper = Sensor::connect(gateway, "sleeper", 0, 600);
        sleeper.subscribe("to/victims", QOS_1);
        sleeper.sleep(6000);
        let mut offline = Sensor::connect(gateway, "offline", 0, 600);
        offline.subscribe("to/victims", QOS_1);
        offline.disconnect();
        let mut tcp = RawClient::connect(broker, lasting(ProtocolVersion::V5, "tcp")).0;
        tcp.subscribe("to/victims", QoS::AtLeastOnce);
        let mut tcp_offline = RawClient::connect(broker, lasting(ProtocolVersion::V5, "tcp-offline")).0;
        tcp_offline.subscribe("to/victims", QoS::AtLeastOnce);
        tcp_offline.cut();
        let mut listener = target.broker.v5("listener");
        listener.subscribe("forged", QoS::AtLeastOnce);
        let mut publisher = target.broker.v5("publisher");
        publisher.publish("to/victims", "before", QoS::AtLeastOnce);

        for client_id in ["active", "sleeper", "offline", "tcp", "tcp-offline"] {
            let messages = every_message(client_id);
            for address in [[127, 0, 0, 1], [127, 0, 0, 77], [127, 1, 2, 3]] {
                // Each alone, and all of them in a row.
                for message in &messages {
                    Source::at(address, gateway).send(message);
                    active_got.extend(active.attend());
                }
                let mut source = Source::at(address, gateway);
                target.flood(&mut source, messages.clone());
                let received: usize = messages.iter().map(Vec::len).sum();
                assert!(source.answer_bytes <= 3 * received, "{} bytes", source.answer_bytes);
                // The active client is asked at most.
                active_got.extend(active.attend());
            }
        }
        // More than the time in which a client may answer before another one gets its session.
        for _ in 0..30 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            active_got.extend(active.attend());
        }
        target.look();

        publisher.publish("to/victims", "after", QoS::AtLeastOnce);
        let both = ["before".to_owned(), "after".to_owned()];
        while active_got.len() < 2 {
            active_got.extend(active.next_message());
        }
        assert_eq!(active_got, both);
        assert_eq!(sleeper.wake("sleeper"), both);
        assert_eq!(
            [tcp.receive_message(), tcp.receive_message()].map(|of| of.payload),
            both.clone().map(Into::<bytes::Bytes>::into)
        );
        let (mut tcp_offline, connack) = RawClient::connect(broker, lasting(ProtocolVersion::V5, "tcp-offline"));
        assert!(connack.session_present);
        assert_eq!(
            [tcp_offline.receive_message(), tcp_offline.receive_message()].map(|of| of.payload),
            both.clone().map(Into::<bytes::Bytes>::into)
        );
        let mut offline = Sensor::connect(gateway, "offline", 0, 600);
        assert_eq!([offline.next_message(), offline.next_message()].map(|text| text.expect("a message")), both);
        listener.expect_nothing_waiting();
    });
}
