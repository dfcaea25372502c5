//! Answers to addresses that may be forged.

use tenbin_codec::QoS;

use crate::attack;
use crate::sensor::{CLEAN, QOS_1, QOS_2, RETAIN, Sensor, WILL};
use crate::source::{Source, connect, publish, register, sn, subscribe};
use crate::target::Target;

/// Bytes that a gateway may send to an unconfirmed address for each received byte.
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
    let published: Vec<_> = messages.iter().filter(|message| message[1] == PUBLISH).collect();
    assert!(published.iter().all(|message| message[2] & (QOS_1 | QOS_2) != 0), "none at QoS 0: {messages:?}");
    let distinct: std::collections::HashSet<_> = published.iter().map(|message| &message[3..]).collect();
    assert!(distinct.len() <= 1, "one stored message at most: {messages:?}");
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
