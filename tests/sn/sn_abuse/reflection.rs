//! Answers to addresses that may be forged.

use tenbin_codec::QoS;

use crate::sn_abuse::attack;
use crate::sn_abuse::sensor::{CLEAN, QOS_1, QOS_2, RETAIN, Sensor, WILL};
use crate::sn_abuse::source::{Source, connect, publish, register, sn, subscribe};
use crate::sn_abuse::target::Target;

/// Bytes that a gateway may send to an unproven address for each received byte.
const REFLECTION_MAXIMUM: usize = 3;
const PUBLISH: u8 = 0x0C;

/// Repetitions of the gateway's unanswered messages are over when the client is lost.
const KEYS: &str = "connects_per_second_per_address = 0\nunknown_answers_per_second = 1000000\nrebind = \"any\"\n";

/// Leaves a session with stored messages at QoS 0, 1 and 2, and asleep if it is said.
fn stored_session(target: &Target, client_id: &str, is_asleep: bool) {
    let mut client = Sensor::connect(target.address, client_id, 0, 600);
    client.subscribe("stored/+", QOS_2);
    client.subscribe(&format!("retained/{client_id}"), QOS_2);
    if is_asleep {
        client.sleep(6000);
    } else {
        client.send(0x18, b"");
        assert_eq!(client.receive(), [0x18]);
    }
    let mut publisher = target.broker.v5(&format!("publisher-{client_id}"));
    publisher.publish_with(crate::support::retained(&format!("retained/{client_id}"), &"r".repeat(500)));
    for (number, qos) in crate::support::QOS_ALL.into_iter().cycle().take(30).enumerate() {
        publisher.publish(&format!("stored/{}", number % 3), &"s".repeat(10 * number), qos);
    }
    publisher.publish("stored/0", "s", QoS::AtLeastOnce);
}

/// Sends a datagram from a fresh address, as a forger would, and counts the answers with all their repetitions.
fn reflect(target: &mut Target, address: [u8; 4], datagram: &[u8]) {
    let mut victim = Source::at(address, target.address);
    victim.send(datagram);
    // Each song lasts for a round trip at least; the gateway repeats in the meantime.
    let mut messages = Vec::new();
    let until = std::time::Instant::now() + std::time::Duration::from_millis(1200);
    while std::time::Instant::now() < until {
        target.look();
        messages.extend(victim.take());
    }
    let allowed = REFLECTION_MAXIMUM * datagram.len();
    assert!(victim.answer_bytes <= allowed, "{datagram:?}: {messages:?} are more than {allowed} bytes");
    assert!(messages.iter().all(|message| message[1] != PUBLISH), "no stored message: {messages:?}");
}

/// Requests from addresses that send nothing further: no answer is larger than three times the request.
#[test]
fn reflected_bytes_are_bounded() {
    attack("reflection", KEYS, |target| {
        stored_session(target, "away", false);
        stored_session(target, "asleep", true);
        let requests = [
            connect("fresh", CLEAN, 60),
            connect("f", CLEAN, 60),
            connect("with-will", CLEAN | WILL, 60),
            connect("away", 0, 60),
            connect("asleep", 0, 60),
            sn(0x16, b"asleep"),
            sn(0x16, b"nobody"),
            sn(0x16, b""),
            sn(0x18, b""),
            sn(0x01, b"\x00"),
            register(1, "plant/1"),
            subscribe(QOS_2, 1, "retained/+"),
            publish(QOS_1 | RETAIN | 0x02, *b"xy", 1, b"x"),
            sn(0x10, b"\x00\x01"),
            b"\x07\x04\x04\x02\x00\x3Cc".to_vec(),
        ];
        for (number, request) in requests.iter().enumerate() {
            reflect(target, [127, 0, 7, number as u8 + 1], request);
        }
    });
}

/// A forger sends all messages of a subscriber, but for answers to datagrams that it does not get.
#[test]
fn forger_that_goes_on_reflects_nothing() {
    attack("reflection by a forger that goes on", KEYS, |target| {
        let mut publisher = target.broker.v5("publisher-of-all");
        for (number, filter) in ["#", "xy", "plant/1"].into_iter().enumerate() {
            let mut victim = Source::at([127, 0, 8, number as u8 + 1], target.address);
            let mut sent = 0;
            for (datagram, answer) in
                [(connect(&format!("victim-{number}"), CLEAN, 600), 0x05), (subscribe(QOS_2, 1, filter), 0x13)]
            {
                victim.send(&datagram);
                sent += datagram.len();
                assert_eq!(victim.wait()[1], answer);
            }
            for round in 1..=200_u16 {
                for topic in ["xy", "plant/1"] {
                    publisher.publish(topic, &"x".repeat(500), crate::support::QOS_ALL[usize::from(round) % 3]);
                }
                let id = round.to_be_bytes();
                for datagram in [
                    sn(0x16, b""),
                    sn(0x17, b""),
                    sn(0x0D, &[&b"xy"[..], &id, &[0]].concat()),
                    sn(0x0B, &[&[0, 1], &id[..], &[0]].concat()),
                    sn(0x0F, &id),
                ] {
                    victim.send(&datagram);
                    sent += datagram.len();
                }
                target.metronome.tick();
            }
            target.look();
            let messages = victim.take();
            assert!(victim.answer_bytes <= REFLECTION_MAXIMUM * sent, "{} for {sent} bytes", victim.answer_bytes);
            assert!(messages.iter().all(|message| message[1] != PUBLISH), "{filter}");
        }
    });
}
