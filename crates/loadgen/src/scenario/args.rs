//! Arguments of `scenario`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use tenbin_codec::QoS;

use super::SlowArgs;
use crate::values::{Reports, positive_duration, qos};

/// `scenario`: an experiment on a share group, by name or file, or another experiment.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ScenarioCommand {
    #[command(subcommand)]
    pub(crate) other: Option<OtherScenario>,

    #[command(flatten)]
    pub(crate) shared: Option<ScenarioArgs>,
}

/// Scenarios without a share group.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum OtherScenario {
    /// Receivers with lasting sessions, of which half become slow: their effect on the latency of the others
    Slow(SlowArgs),
}

/// Arguments of `scenario` on a share group. Omitted ones are taken from the scenario.
#[derive(Debug, Clone, Args)]
pub struct ScenarioArgs {
    /// 1: all workers take 25 ms a message; 2: 25, 25 and 50 ms; step, pause, churn, burst and others of scenarios/; or
    /// a file
    #[arg(value_name = "1|2|NAME|FILE.toml")]
    pub(crate) scenario: String,

    /// Policies of the started brokers, one after the other; with --broker only a label [default: the broker's]
    #[arg(long = "policy", value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) policies: Vec<String>,

    /// Run the published policies, random, round_robin and thesis_score, and adaptive; scenario 2 then has an interval of
    /// 10.7 ms, as in the published figures
    #[arg(long, conflicts_with = "policies")]
    pub(crate) all: bool,

    /// Use a running broker instead of starting one for each run
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) broker: Option<String>,

    /// Time from one message or burst to the next
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(crate) interval: Option<Duration>,

    /// How long to publish, instead of the scenario's number of messages
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(crate) duration: Option<Duration>,

    /// Quality of Service of publisher and workers [default: the first one in the scenario]
    #[arg(long, value_name = "0|1|2", value_parser = qos)]
    pub(crate) qos: Option<QoS>,

    /// When a worker acknowledges a message of QoS 1 or 2
    #[arg(long, value_name = "WHEN")]
    pub(crate) acks: Option<Acks>,

    /// Carrier of the workers' load reports [default: one that the broker announces]
    #[arg(long, value_name = "CARRIER")]
    pub(crate) reports: Option<Reports>,

    /// Time between two load reports of a worker
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(crate) ping_interval: Option<Duration>,

    /// Let workers also report early when their load has changed much; the published experiment has no such reports
    #[arg(long)]
    pub(crate) eager_pings: bool,

    /// Let the same workers join the group for this time before the run, so that the broker can learn their speed
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "3s")]
    #[arg(value_parser = positive_duration)]
    pub(crate) warm: Option<Duration>,

    /// Start external worker programs, see docs/LOADGEN.md, as COMMAND HOST PORT CLIENT_ID FILTER QOS SERVICE_MS
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["acks", "reports", "ping_interval", "eager_pings", "warm"])]
    pub(crate) worker_command: Option<String>,

    /// Runs for each policy; the medians count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Show simulated figures of the same scenario beside the measured ones
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
    /// After processing it
    Processed,
    /// On receipt, before it waits in the worker's queue
    Received,
}
