use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Serialize, Serializer};

use crate::run::{Audience, Plan, Publishers, Schedule, Stamp, planning, values::qos};
use crate::target::{RunningBroker, TargetList};
use crate::values::{positive_seconds, positive_whole_seconds};

/// Arguments of `pattern`.
#[derive(Debug, Clone, Args)]
pub struct PatternArgs {
    /// Patterns: one broker (SGL-…) or several (MLT-…), one subscriber on each (…-SGL) or a share group (…-SHD)
    #[arg(value_name = "PATTERN", value_enum, required = true)]
    patterns: Vec<PatternArg>,

    /// The brokers, of which SGL-… uses the first: [NAME=]HOST[:PORT][,pid=PID],…; a single name with several
    /// addresses; or tenbin and mosquitto, to start two of each
    #[arg(long, value_name = "BROKER,…")]
    pub(super) brokers: TargetList,

    /// QoS of publishers and subscribers
    #[arg(long, value_name = "0|1|2,…", value_delimiter = ',', value_parser = qos, default_value = "0,1,2")]
    pub(super) qos: Vec<u8>,

    /// Publishing connections
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) publishers: u32,

    /// Payload size in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 600, value_parser = clap::value_parser!(u32).range(Stamp::LEN as i64..))]
    pub(super) payload: u32,

    /// Members of each share group
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) members: u32,

    /// Publishing time in whole seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_whole_seconds)]
    pub(super) time: u32,

    /// Runs per pattern and QoS; their mean is reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: u32,

    /// Unacknowledged messages of a publisher at QoS 1 and 2; MQTTLoader's clients wait for each acknowledgement
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) in_flight: u16,

    /// After publishing, end when nothing has arrived for this time
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_seconds)]
    pub(super) subscriber_timeout: Duration,

    /// Threads: 1 for all connections, 2 to separate publishers from subscribers, or more
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

/// Arrangement of brokers and subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Whether it uses several brokers, or only the first.
    pub(super) several: bool,
    /// Whether each broker has a share group, or one subscriber.
    pub(super) shared: bool,
}

impl PatternArgs {
    /// Requested patterns, each once, in the order of the publication.
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

    /// Plan of a run of `pattern` on its brokers.
    pub(super) fn plan(&self, pattern: Pattern, qos: u8, brokers: &[RunningBroker]) -> Plan {
        let members = if pattern.shared { self.members } else { 1 };
        let publishers = Publishers {
            qos,
            payload: self.payload,
            in_flight: self.in_flight,
            ..Publishers::new(self.publishers, TOPIC)
        };
        let application = Audience {
            share: pattern.shared.then(|| "application".to_owned()),
            qos,
            ..Audience::new("application", members * brokers.len() as u32, TOPIC)
        };
        let brokers = brokers.iter().map(RunningBroker::place).collect();
        Plan {
            schedule: Schedule {
                time_limit: Duration::from_secs(self.time.into()),
                subscriber_timeout: self.subscriber_timeout,
                ..Schedule::default()
            },
            threads: self.threads,
            ..Plan::new(planning::random(), brokers, publishers, vec![application])
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

const TOPIC: &str = "loadgen/pattern";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::run::Pace;

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
