//! Sources that claim to be other clients.

use tenbin_codec::QoS;

use crate::attack;
use crate::canary::CANARY;
use crate::sensor::{CLEAN, QOS_1, QOS_2, Sensor};
use crate::source::{Source, connect, publish, sn};

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

/// Forged wakes of a sleeping client, of other networks and of its own. It loses none of its messages.
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
