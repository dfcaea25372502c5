//! An outcome for tests of reports.

use super::{
    Audience, AudienceOutcome, Broker, BrokerUsage, ConnectionOptions, Connections, Latency, Outcome, Plan, Publishers,
    Schedule, Second, SubscriberOutcome, Throughput, Verdict,
};

/// Two members of one share group at one broker, for four seconds: 1000 messages, of which 3 were lost.
pub(crate) fn outcome() -> Outcome {
    let verdict =
        Verdict { expected: 1000, received: 997, lost: 3, out_of_order: 2, exact: true, ..Verdict::default() };
    let audience = AudienceOutcome {
        name: "workers".into(),
        broker: "b".into(),
        shared: true,
        verdict,
        latency: Some(latency()),
        waiting: None,
        jain: Some(0.96),
        subscribers: vec![subscriber("sub-0", 600), subscriber("sub-1", 397)],
    };
    let counts = [(false, 100, 90), (true, 400, 390), (true, 400, 407), (false, 100, 110)];
    let second = |(number, (counts, published, received))| Second {
        second: number,
        counts,
        published,
        received,
        latency: Some(Latency { count: received, mean: 10.0 * f64::from(number + 1), ..latency() }),
        ..Second::default()
    };
    Outcome {
        plan: plan(),
        started_unix_ms: 1_604_485_118_169,
        seconds: 4.0,
        published: throughput(1000, 400.0, 400),
        received: throughput(997, 398.5, 407),
        latency: Some(latency()),
        latency_uncorrected: Some(Latency { p99: 20.5, ..latency() }),
        latency_curve: Vec::new(),
        latency_uncorrected_curve: Vec::new(),
        connects: None,
        per_second: (0..).zip(counts).map(second).collect(),
        audiences: vec![audience],
        verdict,
        broker_usage: vec![BrokerUsage {
            broker: "b".into(),
            pid: 42,
            cpu_seconds: 0.5,
            deliveries_per_cpu_second: Some(1594.0),
            resident_kib: 4096,
            resident_peak_kib: 5120,
        }],
        own_cpu_seconds: 0.25,
        unacknowledged: 0,
        not_taken: 0,
        unsent: 0,
        latest_send_ms: 1.5,
        connections: Connections { accepted: 3, accepted_per_second: 300.0, ..Connections::default() },
        notes: vec!["a note".into()],
    }
}

fn subscriber(name: &str, received: u64) -> SubscriberOutcome {
    SubscriberOutcome {
        name: name.into(),
        received,
        per_second: vec![(received / 4) as u32; 4],
        latency: Some(latency()),
        waiting: None,
        processing_ms: Vec::new(),
    }
}

/// Without the first and the last of the four seconds.
fn throughput(messages: u64, average_per_second: f64, maximum_per_second: u64) -> Throughput {
    Throughput { messages, average_per_second, maximum_per_second, from_second: 1, seconds: 2 }
}

pub(crate) fn latency() -> Latency {
    Latency { count: 997, mean: 12.25, min: 0.5, p50: 10.0, p90: 40.0, p99: 61.2, p999: 150.0, max: 200.0 }
}

fn plan() -> Plan {
    let publishers = Publishers { messages: Some(1000), ..Publishers::new(1, "a") };
    let workers = Audience { share: Some("workers".into()), ..Audience::new("workers", 2, "a") };
    Plan {
        connection: ConnectionOptions::new("t"),
        schedule: Schedule { ramp_up: 1, ramp_down: 1, ..Schedule::default() },
        ..Plan::new(1, vec![Broker::new("b", "127.0.0.1", 1883)], publishers, vec![workers])
    }
}
