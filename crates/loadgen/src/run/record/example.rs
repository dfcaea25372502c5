//! Plans for tests.

use crate::run::{Audience, Broker, ConnectionOptions, Plan, Publishers, Stamp};

/// A plan with one publisher that sends 20 bytes to `t/0/0` of the only broker `a`, as fast as possible.
pub(crate) fn plan(audiences: Vec<Audience>) -> Plan {
    let publishers = Publishers::new(1, "t/{publisher}/{topic}");
    let connection = ConnectionOptions::new("x");
    Plan { connection, threads: 1, ..Plan::new(7, vec![broker("a")], publishers, audiences) }
}

pub(crate) fn broker(name: &str) -> Broker {
    Broker::new(name, "localhost", 1883)
}

/// An audience of one subscriber.
pub(crate) fn audience(name: &str, filter: &str) -> Audience {
    Audience::new(name, 1, filter)
}

/// A share group of `count` members.
pub(crate) fn group(name: &str, filter: &str, count: u32) -> Audience {
    Audience { share: Some(name.into()), count, ..audience(name, filter) }
}

/// Payload of one message of the plan.
pub(crate) fn payload(plan: &Plan, stream: u32, sequence: u32, due_ns: u64) -> Vec<u8> {
    let mut payload = vec![0; plan.publishers.payload as usize];
    Stamp { due_ns, tag: plan.tag, stream, sequence, late_us: 0 }.encode(&mut payload);
    payload
}
