//! MsgIds that are in flight already, and that never are.

use crate::sn_abuse::attack;
use crate::sn_abuse::sensor::{QOS_1, QOS_2};
use crate::sn_abuse::source::{Source, publish, sn, subscribe};

/// Bits of a topic field that holds a short name.
const SHORT: u8 = 0x02;

/// Messages with ids of others under way, QoS 2 messages that are never released, and releases of nothing.
#[test]
fn message_ids_in_flight() {
    attack("MsgIds in flight", "", |target| {
        let mut source = Source::new(target.address);
        source.connect("careless");
        let payload = |number: u32| number.to_be_bytes();
        let one_id = (0..20_000).map(|number| {
            let flags = if number % 2 == 0 { QOS_1 } else { QOS_2 };
            publish(flags | SHORT, *b"xy", 1, &payload(number))
        });
        target.flood(&mut source, one_id);
        target.flood(&mut source, (0..20_000).map(|number| subscribe(QOS_1, 1, &format!("of/{number}"))));
        let unreleased = (1..=u16::MAX).map(|id| publish(QOS_2 | SHORT, *b"xy", id, &payload(id.into())));
        target.flood(&mut source, unreleased);
        for kind in [0x10, 0x0E, 0x0F] {
            target.flood(&mut source, (1..=u16::MAX).map(|id| sn(kind, &id.to_be_bytes())));
        }
        let acknowledged_topics = (1..=u16::MAX).map(|id| sn(0x0D, &[&id.to_be_bytes()[..], &[0, 1, 2]].concat()));
        target.flood(&mut source, acknowledged_topics);
        let refused_topics = (1..=u16::MAX).map(|id| sn(0x0B, &[&id.to_be_bytes()[..], &[0, 1, 3]].concat()));
        target.flood(&mut source, refused_topics);
    });
}
