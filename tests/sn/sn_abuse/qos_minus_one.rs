//! Messages without a connection.

use crate::sn_abuse::attack;
use crate::sn_abuse::source::{Source, publish};

/// Flags of QoS −1 with a predefined topic id, and with a short name.
const PREDEFINED: u8 = 0x61;
const SHORT: u8 = 0x62;

/// 50,000 messages at QoS −1 from one address, and one each from 20,000, with legal, unknown and forbidden topics.
#[test]
fn messages_at_qos_minus_one() {
    attack("QoS -1", "qos_minus_one = true\ntopics.7 = \"minus/one\"\n", |target| {
        let payload = [b'x'; 1000];
        let mut source = Source::new(target.address);
        let topics = [(PREDEFINED, [0, 7]), (SHORT, *b"xy"), (PREDEFINED, [0, 8]), (SHORT, *b"#x"), (0x60, [0, 1])];
        let floods = topics.into_iter().cycle().take(50_000);
        target.flood(&mut source, floods.map(|(flags, topic)| publish(flags, topic, 0, &payload)));
        for number in 0..20_000_u16 {
            let [high, low] = number.to_be_bytes();
            let source = Source::at([127, 2, high, low], target.address);
            source.send(&publish(PREDEFINED, [0, 7], 0, &payload));
            target.pace(usize::from(number) + 1);
        }
    });
}
