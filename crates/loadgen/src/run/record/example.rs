//! Plans for tests.

use std::time::Duration;

use crate::run::{Audience, Broker, ConnectionOptions, Pace, Plan, Publishers, Schedule, Spread, Stamp, Version};

/// One publisher that sends 20 bytes to `t/0/0` of the one broker `a`, as fast as it goes.
pub(crate) fn plan(audiences: Vec<Audience>) -> Plan {
    Plan {
        tag: 7,
        brokers: vec![broker("a")],
        connection: ConnectionOptions {
            version: Version::V5,
            user_name: None,
            password: None,
            tls: None,
            keep_alive: 0,
            session_expiry: None,
            client_id_prefix: "x".into(),
            will: None,
        },
        publishers: Publishers {
            count: 1,
            qos: 0,
            retain: false,
            topic: "t/{publisher}/{topic}".into(),
            topics: 1,
            payload: Stamp::LEN as u32,
            messages: None,
            pace: Pace::Unlimited,
            in_flight: 1,
            spread: Spread::InTurns,
        },
        audiences,
        idle: None,
        cuts: None,
        schedule: Schedule {
            time_limit: Duration::from_secs(60),
            ramp_up: 0,
            ramp_down: 0,
            subscriber_timeout: Duration::from_secs(5),
        },
        threads: 1,
        records: false,
    }
}

pub(crate) fn broker(name: &str) -> Broker {
    Broker { name: name.into(), host: "localhost".into(), port: 1883 }
}

/// One subscriber.
pub(crate) fn audience(name: &str, filter: &str) -> Audience {
    Audience {
        name: name.into(),
        count: 1,
        filter: filter.into(),
        share: None,
        qos: 0,
        spread: Spread::InTurns,
        work: None,
        slow: None,
    }
}

/// A share group of so many members.
pub(crate) fn group(name: &str, filter: &str, count: u32) -> Audience {
    Audience { share: Some(name.into()), count, ..audience(name, filter) }
}

/// What a message of the plan carries.
pub(crate) fn payload(plan: &Plan, stream: u32, sequence: u32, due_ns: u64) -> Vec<u8> {
    let mut payload = vec![0; plan.publishers.payload as usize];
    Stamp { due_ns, tag: plan.tag, stream, sequence, late_us: 0 }.encode(&mut payload);
    payload
}
