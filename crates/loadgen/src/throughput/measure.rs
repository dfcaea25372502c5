//! One run against one broker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenbin_codec::ProtocolVersion;

use crate::progress::Progress;
use crate::run::{
    Audience, ConnectionOptions, ExecuteOptions, Execution, Pace, Plan, Publishers, Schedule, Spread, Version,
    execute_closely,
};
use crate::target::RunningBroker;
use crate::{LoadgenError, ThroughputArgs};

/// What one run found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measurement {
    pub(super) deliveries_per_second: f64,
    /// Of the broker, while deliveries were counted; `None` where its process is unknown.
    pub(super) cpu_seconds: Option<f64>,
    pub(super) deliveries_per_cpu_second: Option<f64>,
    /// At the end of the load.
    pub(super) resident_kib: Option<u64>,
    /// Deliveries that never came, of the whole run.
    pub(super) lost: u64,
    /// Deliveries that came more than once.
    pub(super) duplicated: u64,
    /// Messages that the broker did not take; they are not expected.
    pub(super) refused: u64,
}

/// Loads `broker` as `args` say.
pub(super) async fn measure(
    args: &ThroughputArgs,
    broker: &mut RunningBroker,
    number: u32,
    progress: &mut Progress,
) -> Result<Measurement, LoadgenError> {
    let options = ExecuteOptions {
        pids: vec![broker.pid],
        title: format!("{} {number}/{}: ", broker.name, args.runs),
        looks: vec![WARM_UP, WARM_UP + args.duration],
        ..ExecuteOptions::default()
    };
    match execute_closely(&plan(args, broker), &options, progress).await {
        Ok(execution) => Ok(measurement(args, &execution)),
        Err(error) => Err(broker.blame(error)),
    }
}

fn measurement(args: &ThroughputArgs, execution: &Execution) -> Measurement {
    let counted = execution.between(WARM_UP, WARM_UP + args.duration);
    let deliveries = counted.as_ref().map_or(0.0, |counted| counted.received as f64);
    let seconds = counted.as_ref().map_or(f64::INFINITY, |counted| counted.seconds);
    let cpu_seconds = counted.as_ref().and_then(|counted| counted.cpu_seconds[0]);
    let per_cpu_second = |cpu: f64| (cpu > 0.0).then(|| deliveries / cpu);
    let verdict = execution.outcome.verdict;
    Measurement {
        deliveries_per_second: deliveries / seconds,
        cpu_seconds,
        deliveries_per_cpu_second: cpu_seconds.and_then(per_cpu_second),
        resident_kib: counted.and_then(|counted| counted.resident_kib[0]),
        lost: verdict.lost,
        duplicated: verdict.duplicated,
        refused: execution.status.not_taken,
    }
}

/// All publishers to one topic, and all subscribers of it, in a closed loop.
fn plan(args: &ThroughputArgs, broker: &RunningBroker) -> Plan {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let run = format!("{}-{number}", std::process::id());
    let topic = format!("throughput/{run}");
    Plan {
        tag: number as u16,
        brokers: vec![broker.place()],
        connection: ConnectionOptions {
            version: match args.protocol {
                ProtocolVersion::V5 => Version::V5,
                ProtocolVersion::V31 | ProtocolVersion::V311 => Version::V311,
            },
            user_name: None,
            password: None,
            tls: None,
            // A subscriber of a long run has nothing to send.
            keep_alive: 0,
            session_expiry: None,
            client_id_prefix: format!("throughput-{run}"),
            will: None,
        },
        publishers: Publishers {
            count: args.publishers.into(),
            qos: args.qos.bits(),
            retain: false,
            topic: topic.clone(),
            topics: 1,
            payload: args.payload,
            messages: None,
            pace: Pace::Closed { window: args.window },
            in_flight: IN_FLIGHT,
            spread: Spread::InTurns,
        },
        audiences: vec![Audience {
            name: "subscribers".into(),
            count: args.subscribers.into(),
            filter: topic,
            share: (!args.fanout).then(|| "throughput".to_owned()),
            qos: args.qos.bits(),
            spread: Spread::InTurns,
            work: None,
            slow: None,
        }],
        idle: None,
        cuts: None,
        schedule: Schedule {
            time_limit: WARM_UP + args.duration,
            ramp_up: 0,
            ramp_down: 0,
            subscriber_timeout: DRAIN_LIMIT,
        },
        threads: 2,
        records: false,
    }
}

/// The load before deliveries are counted: connections get their buffers, the broker its memory.
const WARM_UP: Duration = Duration::from_millis(500);

/// When nothing has come for so long after the load, the rest is lost. Longer than a busy machine makes a broker wait
/// for its turn, and waited for only where something is missing.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);

/// Messages above QoS 0 that a publisher has unacknowledged, if the broker allows so many.
const IN_FLIGHT: u16 = 100;
