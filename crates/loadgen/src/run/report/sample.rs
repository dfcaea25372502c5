//! Invented runs, the same at every call.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tenbin_simulator::Rng;

use crate::run::{
    Audience, Broker, BrokerUsage, ConnectionOptions, Layout, MessageRecord, Outcome, Pace, Plan, Publishers, Recorder,
    Schedule, Stamp, Work, WorkerKind,
};

/// A run of twenty seconds with a broker that stalls from 8 s to 10 s.
///
/// It has four publishers with a message every 4 ms each, and three workers in a share group, the third half as fast.
pub(crate) fn stalled_run() -> (Outcome, Vec<MessageRecord>) {
    let plan = plan();
    let layout = Arc::new(Layout::of(&plan).expect("the plan is legal"));
    let mut recorder = Recorder::new(Arc::clone(&layout), &plan, START_NS);
    for took_us in [310, 420, 290, 350, 330, 300, 360] {
        recorder.connected(Duration::from_micros(took_us), START_NS);
    }
    let mut rng = Rng::new(1);
    let mut arrivals = Vec::new();
    for number in 0..MESSAGES {
        let due_ns = START_NS + u64::from(number) * 1_000_000;
        let second = f64::from(number) / 1000.0;
        let uniform = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let is_stalled = (8.0..10.0).contains(&second);
        // The socket buffers some messages while the broker stalls; then publishers wait.
        let stalled_ns = if is_stalled { ((10.0 - second) * 1e9) as u64 } else { 0 };
        let late_us = if second > 8.4 { (stalled_ns / 1000) as u32 } else { 0 };
        let way_ns = match is_stalled {
            true => 50.0 * f64::from(number - 8000),
            false => 150_000.0 - 120_000.0 * (1.0 - uniform).ln() * (1.0 + (second * 3.0).sin().abs()),
        };
        let receiver = if is_stalled { number % 3 } else { [0, 1, 0, 1, 2][(number % 5) as usize] };
        let (stream, sequence) = (number % 4, number / 4);
        recorder.sent_late(late_us);
        recorder.published(stream, sequence..sequence + 1, due_ns + u64::from(late_us) * 1000);
        arrivals.push((
            due_ns + stalled_ns + way_ns as u64,
            receiver,
            Stamp { due_ns, tag: plan.tag, stream, sequence, late_us },
        ));
    }
    arrivals.sort_by_key(|(received_ns, ..)| *received_ns);
    for (received_ns, receiver, stamp) in arrivals {
        let mut payload = vec![0; plan.publishers.payload as usize];
        stamp.encode(&mut payload);
        recorder.arrived(receiver, &payload, false, received_ns);
    }
    for (receiver, second) in
        (0..3).flat_map(|receiver| (0..20).filter(|second| *second != 9).map(move |second| (receiver, second)))
    {
        let ms = (1.1 + 0.2 * f64::from(second).sin()) * if receiver == 2 { 2.0 } else { 1.0 };
        recorder.processed(receiver, Duration::from_secs_f64(ms / 1e3), START_NS + second as u64 * 1_000_000_000);
    }
    let mut part = recorder.into_part();
    let records = part.take_records();
    let usage = BrokerUsage {
        broker: "tenbin".to_owned(),
        pid: 4242,
        cpu_seconds: 0.41,
        deliveries_per_cpu_second: Some(41_400.0),
        resident_kib: 9_800,
        resident_peak_kib: 14_200,
    };
    let outcome = Outcome {
        broker_usage: vec![usage],
        own_cpu_seconds: 0.63,
        notes: vec!["a sample: none of this was measured".to_owned()],
        ..Outcome::of(&plan, &layout, part)
    };
    (outcome, records)
}

/// Directory of a sample that `.ci/report_check` looks at.
pub(crate) fn shown(name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "../../target".into(), PathBuf::from);
    target.join("report").join(name)
}

/// Text of a file that a report has left in `directory`.
pub(crate) fn read(directory: &TempDir, name: &str) -> String {
    std::fs::read_to_string(directory.path().join(name)).expect(name)
}

fn plan() -> Plan {
    let publishers = Publishers {
        qos: 1,
        payload: 100,
        messages: Some(u64::from(MESSAGES / 4)),
        pace: Pace::Open { interval: Duration::from_millis(4) },
        ..Publishers::new(4, "load/{publisher}")
    };
    let work = Work::new(vec![WorkerKind::of(tenbin_simulator::Span::from_ms(1.0))]);
    let workers = Audience {
        share: Some("workers".to_owned()),
        qos: 1,
        work: Some(work),
        ..Audience::new("workers", 3, "load/#")
    };
    Plan {
        connection: ConnectionOptions::new("sample"),
        schedule: Schedule { ramp_up: 2, ramp_down: 1, ..Schedule::default() },
        records: true,
        ..Plan::new(7, vec![Broker::new("tenbin", "localhost", 1883)], publishers, vec![workers])
    }
}

const START_NS: u64 = 1_763_756_947_000_000_000;

const MESSAGES: u32 = 19_900;
