use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Serialize, Serializer};

use crate::run::{
    Audience, ConnectionOptions, Pace, Plan, Publishers, Schedule, Spread, Stamp, Version, planning, values::qos,
};
use crate::target::{RunningBroker, TargetList};
use crate::values::{positive_seconds, positive_whole_seconds};

/// Arguments of `pattern`.
#[derive(Debug, Clone, Args)]
pub struct PatternArgs {
    /// Which patterns: one broker (SGL-…) or several (MLT-…), one subscriber on each (…-SGL) or a share group (…-SHD)
    #[arg(value_name = "PATTERN", value_enum, required = true)]
    patterns: Vec<PatternArg>,

    /// The brokers, of which SGL-… uses the first: [NAME=]HOST[:PORT][,pid=PID],…; a single name with several addresses;
    /// or tenbin and mosquitto, of each of which two are started
    #[arg(long, value_name = "BROKER,…")]
    pub(super) brokers: TargetList,

    /// QoS of publishers and subscribers
    #[arg(long, value_name = "0|1|2,…", value_delimiter = ',', value_parser = qos, default_value = "0,1,2")]
    pub(super) qos: Vec<u8>,

    /// Publishing connections
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) publishers: u32,

    /// Bytes of a payload
    #[arg(long, value_name = "BYTES", default_value_t = 600, value_parser = clap::value_parser!(u32).range(Stamp::LEN as i64..))]
    pub(super) payload: u32,

    /// Members of each share group
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) members: u32,

    /// Whole seconds for which to publish
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_whole_seconds)]
    pub(super) time: u32,

    /// Runs, of which the mean is taken
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,

    /// Unacknowledged messages of a publisher at QoS 1 and 2; MQTTLoader's clients wait for each acknowledgement
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) in_flight: u16,

    /// When all is published: end when nothing has come for so long
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_seconds)]
    pub(super) subscriber_timeout: Duration,

    /// Threads: 1 for all connections, 2 for publishers and subscribers apart, or more
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) threads: u16,

    /// Write all figures into pattern.json in this directory
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}

/// A pattern as the command line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PatternArg {
    SglSgl,
    SglShd,
    MltSgl,
    MltShd,
    All,
}

/// Brokers and subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Several brokers, or the first alone.
    pub(super) several: bool,
    /// A share group on each broker, or one subscriber.
    pub(super) shared: bool,
}

impl PatternArgs {
    /// In the order of the document, each once.
    pub(super) fn patterns(&self) -> Vec<Pattern> {
        let of = |several, shared, arg| (Pattern { several, shared }, arg);
        [
            of(false, false, PatternArg::SglSgl),
            of(false, true, PatternArg::SglShd),
            of(true, false, PatternArg::MltSgl),
            of(true, true, PatternArg::MltShd),
        ]
        .into_iter()
        .filter(|(_, arg)| self.patterns.contains(arg) || self.patterns.contains(&PatternArg::All))
        .map(|(pattern, _)| pattern)
        .collect()
    }

    /// A run of `pattern` on its brokers.
    pub(super) fn plan(&self, pattern: Pattern, qos: u8, brokers: &[RunningBroker]) -> Plan {
        let tag = planning::random();
        let members = if pattern.shared { self.members } else { 1 };
        let topic = "loadgen/pattern".to_owned();
        Plan {
            tag,
            brokers: brokers.iter().map(RunningBroker::place).collect(),
            connection: ConnectionOptions {
                version: Version::V5,
                user_name: None,
                password: None,
                tls: None,
                keep_alive: 0,
                session_expiry: None,
                client_id_prefix: format!("tenbin-{tag:04x}"),
                will: None,
            },
            publishers: Publishers {
                count: self.publishers,
                qos,
                retain: false,
                topic: topic.clone(),
                topics: 1,
                payload: self.payload,
                messages: None,
                pace: Pace::Unlimited,
                in_flight: self.in_flight,
                spread: Spread::InTurns,
            },
            audiences: vec![Audience {
                name: "application".to_owned(),
                count: members * brokers.len() as u32,
                filter: topic,
                share: pattern.shared.then(|| "application".to_owned()),
                qos,
                spread: Spread::InTurns,
                work: None,
                slow: None,
            }],
            idle: None,
            cuts: None,
            schedule: Schedule {
                time_limit: Duration::from_secs(self.time.into()),
                ramp_up: 0,
                ramp_down: 0,
                subscriber_timeout: self.subscriber_timeout,
            },
            threads: self.threads,
            records: false,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (brokers, subscribers) =
            (if self.several { "MLT" } else { "SGL" }, if self.shared { "SHD" } else { "SGL" });
        write!(f, "{brokers}-{subscribers}")
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: PatternArgs,
    }

    fn args(line: &str) -> PatternArgs {
        Cli::try_parse_from(std::iter::once("pattern").chain(line.split_whitespace())).expect("well-formed").args
    }

    #[test]
    fn the_defaults_are_the_document_s_experiment() {
        let args = args("all --brokers a=h:1,b=h:2");
        assert_eq!((args.publishers, args.payload, args.time, args.runs), (8, 600, 60, 3));
        assert_eq!(args.qos, [0, 1, 2]);
        let names: Vec<_> = args.patterns().iter().map(Pattern::to_string).collect();
        assert_eq!(names, ["SGL-SGL", "SGL-SHD", "MLT-SGL", "MLT-SHD"]);
    }

    #[tokio::test]
    async fn each_broker_has_a_subscriber_or_a_share_group() {
        let args = args("mlt-shd sgl-sgl --brokers a=h:1,b=h:2 --qos 1");
        let names: Vec<_> = args.patterns().iter().map(Pattern::to_string).collect();
        assert_eq!(names, ["SGL-SGL", "MLT-SHD"]);
        let mut brokers = Vec::new();
        for target in &args.brokers.0 {
            brokers.push(target.start(1883).await.unwrap());
        }
        let plan = args.plan(args.patterns()[1], 1, &brokers);
        let [audience] = plan.audiences.as_slice() else { panic!("one audience") };
        assert_eq!((audience.count, audience.share.is_some(), audience.qos), (4, true, 1));
        assert_eq!((plan.brokers.len(), plan.publishers.pace, plan.publishers.in_flight), (2, Pace::Unlimited, 1));
        let plan = args.plan(args.patterns()[0], 1, &brokers[..1]);
        assert_eq!((plan.audiences[0].count, &plan.audiences[0].share, plan.brokers.len()), (1, &None, 1));
    }
}
