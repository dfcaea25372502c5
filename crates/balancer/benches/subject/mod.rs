//! The groups and messages of the benches.

use std::{sync::Arc, time::Duration};

use tenbin_balancer::{Acknowledged, Dispatch, Group, LoadReport, MemberId, MemberLoad, Nanos, Rules};

/// Time of the first pick.
pub(crate) const START: Nanos = Nanos(1_000_000_000);

/// Creates a group of ready members that all report; every second one acknowledges.
pub(crate) fn group_of(rules: impl Into<Rules>, len: u64) -> Group<u64> {
    filled(Group::new(rules), len)
}

/// Adds such members to an empty group.
pub(crate) fn filled(group: Group<u64>, len: u64) -> Group<u64> {
    for id in 0..len {
        let load = Arc::new(MemberLoad::new(Nanos(id)));
        let report = LoadReport {
            messages_in_queue: id * 7 % 5,
            processing_time: Duration::from_micros(20 + id * 13 % 17),
            draining: false,
        };
        load.report(&report, START);
        if id % 2 == 0 {
            // Known by its acknowledgements; the others by their reports.
            load.acknowledged(&Acknowledged::one(Nanos(START.0 - 30_000), 100, START));
        }
        group.join(MemberId(id), load, 1, id, Nanos(id));
    }
    group
}

/// Returns a message of some publisher on some topic, one for each microsecond.
pub(crate) fn at_step(step: u64) -> Dispatch {
    let now = Nanos(START.0 + step * 1_000);
    // Many publishers and topics, like hashes.
    let (publisher, topic) = (now.0.wrapping_mul(0x9E37_79B9_7F4A_7C15), now.0.wrapping_mul(0xBF58_476D_1CE4_E5B9));
    Dispatch { at: now, bytes: 100, publisher, topic, ..Dispatch::default() }
}
