//! One run against one broker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenbin_codec::ProtocolVersion;

use crate::progress::Progress;
use crate::run::{
    Audience, ConnectionOptions, ExecuteOptions, Execution, Pace, Plan, Publishers, Schedule, Version, execute_closely,
};
use crate::target::RunningBroker;
use crate::{LoadgenError, ThroughputArgs};

/// Results of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measurement {
    pub(super) deliveries_per_second: f64,
    /// The broker's processor time while deliveries were counted; `None` if its process is unknown.
    pub(super) cpu_seconds: Option<f64>,
    pub(super) deliveries_per_cpu_second: Option<f64>,
    /// At the end of the load.
    pub(super) resident_kib: Option<u64>,
    /// Deliveries that never arrived, in the whole run.
    pub(super) lost: u64,
    /// Deliveries that arrived more than once.
    pub(super) duplicated: u64,
    /// Messages that the broker refused; they are not expected.
    pub(super) refused: u64,
}

/// Runs the load of `args` on `broker`.
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

/// All publishers and subscribers on one topic, in a closed loop.
fn plan(args: &ThroughputArgs, broker: &RunningBroker) -> Plan {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let run = format!("{}-{number}", std::process::id());
    let topic = format!("throughput/{run}");
    let publishers = Publishers {
        qos: args.qos.bits(),
        payload: args.payload,
        pace: Pace::Closed { window: args.window },
        ..Publishers::new(args.publishers.into(), topic.clone())
    };
    let subscribers = Audience {
        share: (!args.fanout).then(|| "throughput".to_owned()),
        qos: args.qos.bits(),
        ..Audience::new("subscribers", args.subscribers.into(), topic)
    };
    let version = match args.protocol {
        ProtocolVersion::V5 => Version::V5,
        ProtocolVersion::V31 | ProtocolVersion::V311 => Version::V311,
    };
    Plan {
        connection: ConnectionOptions { version, ..ConnectionOptions::new(format!("throughput-{run}")) },
        schedule: Schedule {
            time_limit: WARM_UP + args.duration,
            subscriber_timeout: DRAIN_LIMIT,
            ..Schedule::default()
        },
        ..Plan::new(number as u16, vec![broker.place()], publishers, vec![subscribers])
    }
}

/// Load before deliveries are counted, in which connections and broker allocate their memory.
const WARM_UP: Duration = Duration::from_millis(500);

/// If no delivery arrives for this time after the load, the rest is lost.
///
/// It is longer than a broker waits for the processor on a busy machine. The run waits only if deliveries are missing.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);
