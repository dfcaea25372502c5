//! `throughput`: message rate of a broker, and its processor time.
//!
//! The load is a closed loop: publishers send as fast as the broker accepts messages, but at most a window ahead of the
//! subscribers. Both sides have one thread each, to leave the other processors to the broker. All publishers and
//! subscribers use one topic.

use std::io::Write;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use clap::Args;

use super::table::{Column, Over, write_table};
use super::{Case, Figures, Sweep};
use crate::LoadgenError;
use crate::interrupt::unless_interrupted;
use crate::run::values::{qos, version};
use crate::run::{Audience, Broker, ConnectionOptions, Execution, Pace, Plan, Publishers, Schedule, Version};
use crate::target::{PORT, TargetArg};
use crate::values::positive_duration;

/// Arguments of `throughput`.
#[derive(Debug, Clone, Args)]
pub struct ThroughputArgs {
    /// A broker: [NAME=]HOST:PORT[,pid=PID], or `tenbin` or `mosquitto` to start one for each run; ratios are to
    /// the first
    #[arg(long = "target", value_name = "TARGET", required = true)]
    targets: Vec<TargetArg>,

    /// Publishing connections
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    publishers: u16,

    /// Subscribing connections
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    subscribers: u16,

    /// The subscribers form one share group: each message goes to one of them (the default)
    #[arg(long)]
    shared: bool,

    /// Each message goes to every subscriber
    #[arg(long, conflicts_with = "shared")]
    fanout: bool,

    /// Payload size in bytes, at least 8; from 20 on each message is identified, below that messages are only counted
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    payload: u32,

    /// Quality of Service of publishers and subscribers
    #[arg(long, value_name = "0|1|2", default_value = "0", value_parser = qos)]
    qos: u8,

    /// Protocol version
    #[arg(long, value_name = "5|3.1.1", default_value = "5", value_parser = version)]
    protocol: Version,

    /// How long to measure, after half a second of the same load
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_duration)]
    duration: Duration,

    /// Runs for each target, taking turns; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Maximum number of outstanding deliveries, over all connections
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,
}

/// Measures the targets in turn and reports them.
pub(crate) async fn run(args: ThroughputArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    let cases = unless_interrupted(measure(&args, out)).await?;
    write_table(out, "median", &cases.iter().collect::<Vec<_>>(), &COLUMNS)
        .and_then(|()| {
            writeln!(
                out,
                "ratio: to the first target; CPU: of the broker's process; lost, duplicated: all runs, by count"
            )
        })
        .and_then(|()| out.flush())
        .map_err(LoadgenError::Print)
}

async fn measure(args: &ThroughputArgs, out: &mut dyn Write) -> Result<Vec<Case>, LoadgenError> {
    writeln!(
        out,
        "throughput: {} publishers to {} {}, payload {} bytes, QoS {}, MQTT {}, window {}, {} runs of {:?}",
        args.publishers,
        args.subscribers,
        if args.fanout { "subscribers, each message to all" } else { "subscribers of one share group" },
        args.payload,
        args.qos,
        if args.protocol == Version::V5 { "5.0" } else { "3.1.1" },
        args.window,
        args.runs,
        args.duration,
    )
    .and_then(|()| out.flush())
    .map_err(LoadgenError::Print)?;
    let sweep =
        Sweep { runs: args.runs, sample_times: vec![WARM_UP, WARM_UP + args.duration], figures, printed: PRINTED };
    sweep.in_turns(&args.targets, PORT, |broker| Ok(plan(args, broker)), out).await
}

/// Figures of a run, from the end of the warm-up to the end of the load; losses and duplicates are those of all of it.
fn figures(execution: &Execution) -> Figures {
    let Execution { outcome, status, .. } = execution;
    let counted = execution.between(WARM_UP, outcome.plan.schedule.time_limit);
    let deliveries = counted.as_ref().map(|counted| counted.received as f64);
    let cpu_seconds = counted.as_ref().and_then(|counted| counted.cpu_seconds[0]);
    let resident_kib = counted.as_ref().and_then(|counted| counted.resident_kib[0]);
    let per_cpu_second = deliveries.zip(cpu_seconds.filter(|cpu| *cpu > 0.0)).map(|(count, cpu)| count / cpu);
    Figures::from([
        ("deliveries_per_second", Some(counted.map_or(0.0, |counted| counted.received as f64 / counted.seconds))),
        ("cpu_seconds", cpu_seconds),
        ("deliveries_per_cpu_second", per_cpu_second),
        ("resident_mib", resident_kib.map(|kib| kib as f64 / 1024.0)),
        ("lost", Some(outcome.verdict.lost as f64)),
        ("duplicated", Some(outcome.verdict.duplicated as f64)),
        // Messages that the broker refused are not expected, hence not lost.
        ("refused", Some(status.not_taken as f64).filter(|count| *count > 0.0)),
    ])
}

/// All publishers and subscribers on one topic, in a closed loop.
fn plan(args: &ThroughputArgs, broker: Broker) -> Plan {
    static RUNS: AtomicU16 = AtomicU16::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let run = format!("{}-{number}", std::process::id());
    let topic = format!("throughput/{run}");
    let publishers = Publishers {
        qos: args.qos,
        payload: args.payload,
        pace: Pace::Closed { window: args.window },
        ..Publishers::new(args.publishers.into(), topic.clone())
    };
    let subscribers = Audience {
        share: (!args.fanout).then(|| "throughput".to_owned()),
        qos: args.qos,
        ..Audience::new("subscribers", args.subscribers.into(), topic)
    };
    Plan {
        connection: ConnectionOptions { version: args.protocol, ..ConnectionOptions::new(format!("throughput-{run}")) },
        schedule: Schedule {
            time_limit: WARM_UP + args.duration,
            subscriber_timeout: DRAIN_LIMIT,
            ..Schedule::default()
        },
        ..Plan::new(number, vec![broker], publishers, vec![subscribers])
    }
}

/// Load before deliveries are counted, in which connections and broker allocate their memory.
const WARM_UP: Duration = Duration::from_millis(500);

/// If no delivery arrives for this time after the load, the rest is lost.
///
/// It is longer than a broker waits for the processor on a busy machine. The run waits only if deliveries are missing.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);

const PRINTED: &[(&str, &str, &str)] = &[
    ("", "deliveries_per_second", " deliveries/s"),
    ("", "cpu_seconds", " s of processor time"),
    ("lost ", "lost", ""),
    ("duplicated ", "duplicated", ""),
    ("refused ", "refused", ""),
];

const COLUMNS: [Column; 8] = [
    ("deliveries/s", Over::Median, "deliveries_per_second"),
    ("ratio", Over::Ratio, "deliveries_per_second"),
    ("per CPU-second", Over::Median, "deliveries_per_cpu_second"),
    ("ratio", Over::Ratio, "deliveries_per_cpu_second"),
    ("CPU s", Over::Median, "cpu_seconds"),
    ("RSS MiB", Over::Median, "resident_mib"),
    ("lost", Over::Sum, "lost"),
    ("duplicated", Over::Sum, "duplicated"),
];
