//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use tenbin_client::ReportCarrier;
use tenbin_codec::{ProtocolVersion, QoS};

use crate::throughput::TargetArg;

/// What the load generator can do.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Repeat a published experiment on share groups and print the figures beside the published ones
    Scenario(ScenarioArgs),
    /// Find how many messages a second one or more brokers move, and the processor time they take for it
    Throughput(ThroughputArgs),
}

/// Arguments of `scenario`. What is not given is as the scenario has it.
#[derive(Debug, Clone, Args)]
pub struct ScenarioArgs {
    /// 1: all workers take 25 ms a message; 2: 25, 25 and 50 ms; step, pause, churn, burst and others of scenarios/; or
    /// a file
    #[arg(value_name = "1|2|NAME|FILE.toml")]
    pub(crate) scenario: String,

    /// Policies of the brokers that are started, one after the other; with --broker only a label [default: the broker's]
    #[arg(long = "policy", value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) policies: Vec<String>,

    /// Run the policies that were published: random, round_robin and thesis_score
    #[arg(long, conflicts_with = "policies")]
    pub(crate) all: bool,

    /// Use a running broker instead of starting one for each run
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) broker: Option<String>,

    /// Time from one message, or one burst, to the next
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(crate) interval: Option<Duration>,

    /// How long to publish, instead of the scenario's number of messages
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(crate) duration: Option<Duration>,

    /// Quality of Service of publisher and workers [default: the first that the scenario names]
    #[arg(long, value_name = "0|1|2", value_parser = qos)]
    pub(crate) qos: Option<QoS>,

    /// When a worker acknowledges a message of QoS 1 or 2
    #[arg(long, value_name = "WHEN")]
    pub(crate) acks: Option<Acks>,

    /// What carries the workers' load reports [default: what the broker says it takes]
    #[arg(long, value_name = "CARRIER")]
    pub(crate) reports: Option<Reports>,

    /// Time between two load reports of a worker
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(crate) ping_interval: Option<Duration>,

    /// Workers also report before the interval ends where much has changed; the published experiment has no such reports
    #[arg(long)]
    pub(crate) eager_pings: bool,

    /// The same workers have been in the group before, for so long, so that the broker can know their speed
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "3s")]
    #[arg(value_parser = positive_duration)]
    pub(crate) warm: Option<Duration>,

    /// Workers that are programs of their own, see docs/LOADGEN.md; started as
    /// COMMAND HOST PORT CLIENT_ID FILTER QOS SERVICE_MS
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["acks", "reports", "ping_interval", "eager_pings", "warm"])]
    pub(crate) worker_command: Option<String>,

    /// Runs for each policy; the medians count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Show what `simulate` makes of the same scenario beside it
    #[arg(long)]
    pub(crate) compare: bool,

    /// Write POLICY-runK.csv (a row for each message), summary.json, report.html and its figures as SVG files into this
    /// directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// When a worker acknowledges a message of QoS 1 or 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Acks {
    /// Once it has processed it
    Processed,
    /// As soon as it has it, before it waits in the worker's queue
    Received,
}

/// How a worker reports its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reports {
    /// Nothing: they do not report, like any other MQTT client
    None,
    /// Extended PINGREQs
    Pingreq,
    /// Acknowledgements, at QoS 1 and 2
    Ack,
    /// Messages to $load
    Publish,
}

impl Reports {
    pub(crate) fn carrier(self) -> Option<ReportCarrier> {
        match self {
            Self::None => None,
            Self::Pingreq => Some(ReportCarrier::PingReq),
            Self::Ack => Some(ReportCarrier::Ack),
            Self::Publish => Some(ReportCarrier::Publish),
        }
    }
}

/// Arguments of `throughput`.
#[derive(Debug, Clone, Args)]
pub struct ThroughputArgs {
    /// A broker: NAME=HOST:PORT[,pid=PID], or `tenbin` or `mosquitto` to start one for each run; ratios are to
    /// the first
    #[arg(long = "target", value_name = "TARGET", required = true)]
    pub(crate) targets: Vec<TargetArg>,

    /// Publishing connections
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) publishers: u16,

    /// Subscribing connections
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) subscribers: u16,

    /// The subscribers form one share group: each message goes to one of them (the default)
    #[arg(long)]
    pub(crate) shared: bool,

    /// Each message goes to every subscriber
    #[arg(long, conflicts_with = "shared")]
    pub(crate) fanout: bool,

    /// Bytes of a payload, at least 1
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) payload: u32,

    /// Quality of Service of publishers and subscribers
    #[arg(long, value_name = "0|1|2", default_value = "0", value_parser = qos)]
    pub(crate) qos: QoS,

    /// Protocol version
    #[arg(long, value_name = "5|3.1.1", default_value = "5", value_parser = version)]
    pub(crate) protocol: ProtocolVersion,

    /// How long to measure, after half a second of the same load
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_duration)]
    pub(crate) duration: Duration,

    /// Runs for each target, taking turns; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Deliveries that may be outstanding, over all connections
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) window: u64,
}

/// Reads `250us`, `10.7ms`, `15s` or `2m`.
fn positive_duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err("want a number and a unit: us, ms, s or m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(Duration::ZERO) => Err("want more than zero".to_owned()),
        Ok(duration) if duration <= LONGEST => Ok(duration),
        _ => Err("want more than zero and at most 24 h".to_owned()),
    }
}

fn qos(text: &str) -> Result<QoS, String> {
    let bits = text.parse().map_err(|_| "want 0, 1 or 2".to_owned())?;
    QoS::from_bits(bits).ok_or_else(|| "want 0, 1 or 2".to_owned())
}

fn version(text: &str) -> Result<ProtocolVersion, String> {
    match text {
        "5" | "5.0" => Ok(ProtocolVersion::V5),
        "3.1.1" => Ok(ProtocolVersion::V311),
        _ => Err("want 5 or 3.1.1".to_owned()),
    }
}

const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        for (text, expected) in [
            ("10ms", Duration::from_millis(10)),
            ("10.7ms", Duration::from_micros(10_700)),
            ("250us", Duration::from_micros(250)),
            ("15s", Duration::from_secs(15)),
            ("1.5m", Duration::from_secs(90)),
        ] {
            assert_eq!(positive_duration(text), Ok(expected), "{text}");
        }
        for text in ["", "10", "ms", "0ms", "-1s", "1e99s", "10 ms", "1h", "NaNs", "infs", "0.0000001us"] {
            assert!(positive_duration(text).is_err(), "{text}");
        }
    }
}
