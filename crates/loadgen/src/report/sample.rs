//! Invented runs, the same at every call.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, FromArgMatches};
use hdrhistogram::Histogram;
use tenbin_simulator::Rng;

use super::chart::Scale;
use super::scenario::Run;
use super::scenario_trace::RunTrace;
use crate::run::{
    Audience, AudienceOutcome, Broker, BrokerUsage, ConnectionOptions, Connections, CurvePoint, Latency, MessageRecord,
    Outcome, Pace, Plan, Publishers, Schedule, Second, SubscriberOutcome, Throughput, Verdict, Work, WorkerKind,
};
use crate::statistics::Summary;
use crate::{ScenarioArgs, scenario};

/// A run of twenty seconds with a broker that stalls from 8 s to 10 s.
///
/// It has four publishers with a message every 4 ms each, and three workers in a share group, the third half as fast.
pub(super) fn stalled_run() -> (Outcome, Vec<MessageRecord>) {
    let plan = plan();
    let start_ns = STARTED_MS * 1_000_000;
    let mut rng = Rng::new(1);
    let mut records = Vec::new();
    for number in 0..MESSAGES {
        let due_ns = start_ns + u64::from(number) * 1_000_000;
        let second = f64::from(number) / 1000.0;
        let luck = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        // The socket buffers some messages while the broker stalls; then publishers wait.
        let stalled_ns = if (8.0..10.0).contains(&second) { ((10.0 - second) * 1e9) as u64 } else { 0 };
        let late_us = if second > 8.4 { (stalled_ns / 1000) as u32 } else { 0 };
        let way_ns = 150_000.0 - 120_000.0 * (1.0 - luck).ln() * (1.0 + (second * 3.0).sin().abs());
        let receiver = if stalled_ns > 0 { number % 3 } else { [0, 1, 0, 1, 2][(number % 5) as usize] };
        let received_ns = due_ns + stalled_ns + way_ns as u64;
        records.push(MessageRecord {
            stream: number % 4,
            sequence: number / 4,
            receiver,
            due_ns,
            late_us,
            received_ns,
        });
    }
    records.sort_by_key(|record| record.received_ns);
    (outcome(plan, start_ns, &records), records)
}

/// The thesis' second scenario with its three policies and `adaptive`, twice each; every message waits for the mean time.
pub(super) fn thesis_runs() -> (scenario::Plan, Vec<Run>) {
    let command = ScenarioArgs::augment_args(clap::Command::new("scenario"));
    let matches = command.get_matches_from(["scenario", "2", "--all", "--runs", "2"]);
    let args = ScenarioArgs::from_arg_matches(&matches).expect("arguments have been checked");
    let plan = scenario::Plan::new(&args).expect("the scenario is shipped");
    let waits = [
        ("random", [40.0, 41.0, 4100.0]),
        ("round_robin", [1.0, 1.1, 4400.0]),
        ("thesis_score", [20.0, 10.0, 60.0]),
        ("adaptive", [1.0, 1.2, 3.0]),
    ];
    let runs = waits.into_iter().flat_map(|(policy, waits)| {
        (1..=2).map(move |number| thesis_run(policy, number, waits.map(|wait| wait + f64::from(number))))
    });
    (plan, runs.collect())
}

/// A directory for one test's files, removed at its end.
pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tenbin-report-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).expect(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn thesis_run(policy: &str, number: u32, waits: [f64; 3]) -> Run {
    let of = |wait: f64, n: usize| Summary::of(&vec![wait; n]);
    let subscriber = |(place, wait): (usize, f64)| scenario::SubscriberFigures {
        name: format!("sub-{place}"),
        service_ms: if place == 2 { 50.0 } else { 25.0 },
        latency: of(wait, 500),
        stable: of(wait, 166),
        per_second: vec![33; 15],
        messages_per_second: 33.3,
    };
    let none = scenario::Delays { p50_ms: 0.0, p99_ms: 0.1, max_ms: 0.2 };
    let points = |place: usize, wait: f64| (0..500).map(|n| ((n * 3 + place) as f64, wait)).collect();
    let figures = scenario::RunFigures {
        latency: of(waits.iter().sum::<f64>() / 3.0, 1500),
        best_possible: scenario::BestPossible { as_made: of(1.0, 1500), as_received: of(1.0, 1500) },
        subscribers: waits.into_iter().enumerate().map(subscriber).collect(),
        totals: scenario::Totals { published: 1500, received: 1500, ..Default::default() },
        not_taken: 0,
        died: 0,
        lateness: none,
        wake_up: none,
    };
    let trace = RunTrace {
        seconds: 15.0,
        latencies: waits.into_iter().enumerate().map(|(place, wait)| points(place, wait)).collect(),
        latency_scale: Scale::log(1.0, 5000.0),
        reported_ms: vec![vec![(0.0, 0.0), (1.0, 12.5), (15.0, 25.0)]; 3],
        processing_ms: vec![vec![25.0; 15]; 3],
    };
    Run { policy: policy.to_owned(), number, figures, trace: Some(trace) }
}

fn outcome(plan: Plan, start_ns: u64, records: &[MessageRecord]) -> Outcome {
    let second_of = |ns: u64| ((ns - start_ns) / 1_000_000_000) as u32;
    let corrected = |record: &&MessageRecord| record.received_ns - record.due_ns;
    let uncorrected = |record: &&MessageRecord| record.received_ns - record.due_ns - u64::from(record.late_us) * 1000;
    let per_second = (0..20).map(|second| {
        let came = records.iter().filter(|record| second_of(record.received_ns) == second);
        let went =
            records.iter().filter(|record| second_of(record.due_ns + u64::from(record.late_us) * 1000) == second);
        Second {
            second,
            counts: (2..19).contains(&second),
            published: went.count() as u64,
            received: came.clone().count() as u64,
            latency: latency(&histogram(came.map(|record| corrected(&record)))),
        }
    });
    let subscriber = |number: u32| {
        let mine = || records.iter().filter(move |record| record.receiver == number);
        let per_second = (0..20).map(|second| mine().filter(|one| second_of(one.received_ns) == second).count() as u32);
        let slow = if number == 2 { 2.0 } else { 1.0 };
        let processing = (0..20).map(|second| (second != 9).then(|| slow * (1.1 + 0.2 * f64::from(second).sin())));
        SubscriberOutcome {
            name: format!("sample-sub-{number}"),
            received: mine().count() as u64,
            per_second: per_second.collect(),
            latency: latency(&histogram(mine().map(|record| corrected(&record)))),
            waiting: None,
            processing_ms: processing.collect(),
        }
    };
    let (whole, sent) =
        (histogram(records.iter().map(|r| corrected(&r))), histogram(records.iter().map(|r| uncorrected(&r))));
    let sum = u64::from(MESSAGES);
    let verdict = Verdict { expected: sum, received: sum, exact: true, ..Verdict::default() };
    let throughput =
        Throughput { messages: sum, average_per_second: 1000.0, maximum_per_second: 3020, from_second: 2, seconds: 17 };
    let audience = AudienceOutcome {
        name: "workers".to_owned(),
        broker: "tenbin".to_owned(),
        shared: true,
        verdict,
        latency: latency(&whole),
        waiting: None,
        jain: Some(0.9009),
        subscribers: (0..3).map(subscriber).collect(),
    };
    Outcome {
        plan,
        started_unix_ms: STARTED_MS,
        seconds: 20.0,
        published: throughput,
        received: throughput,
        latency: latency(&whole),
        latency_uncorrected: latency(&sent),
        latency_curve: CurvePoint::curve(&whole, 1e-6),
        latency_uncorrected_curve: CurvePoint::curve(&sent, 1e-6),
        connects: latency(&histogram([310_000, 420_000, 290_000, 350_000].into_iter())),
        per_second: per_second.collect(),
        audiences: vec![audience],
        verdict,
        broker_usage: vec![BrokerUsage {
            broker: "tenbin".to_owned(),
            pid: 4242,
            cpu_seconds: 0.41,
            deliveries_per_cpu_second: Some(41_400.0),
            resident_kib: 9_800,
            resident_peak_kib: 14_200,
        }],
        own_cpu_seconds: 0.63,
        unacknowledged: 0,
        not_taken: 0,
        unsent: 0,
        latest_send_ms: 1599.0,
        connections: Connections { accepted: 7, accepted_per_second: 2100.0, ..Connections::default() },
        notes: vec!["a sample: none of this was measured".to_owned()],
    }
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

fn histogram(ns: impl Iterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits are supported");
    ns.for_each(|ns| histogram.record(ns).expect("the histogram grows"));
    histogram
}

fn latency(ns: &Histogram<u64>) -> Option<Latency> {
    let quantile = |share| ns.value_at_quantile(share) as f64 / 1e6;
    (!ns.is_empty()).then(|| Latency {
        count: ns.len(),
        mean: ns.mean() / 1e6,
        min: quantile(0.0),
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
        p999: quantile(0.999),
        max: quantile(1.0),
    })
}

const STARTED_MS: u64 = 1_763_756_947_000;

const MESSAGES: u32 = 19_900;
