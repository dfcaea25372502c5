//! `pattern`: four patterns of collecting data from brokers (document 001 of the sources).
//!
//! A pattern has one broker or several. On each broker the application has one subscriber, or a share group of two.

mod figures;
mod observations;
mod systems;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;
use systems::System;

use super::table::{Column, Over, write_table};
use super::{Case, Sweep, write_page};
use crate::LoadgenError;
use crate::report::{create_directory, write_json};
use crate::run::values::qos;
use crate::run::{Audience, Plan, Publishers, Schedule, Stamp, planning};
use crate::target::{RunningBroker, TargetList};
use crate::values::{positive_duration, positive_whole_seconds};

/// Arguments of `pattern`.
#[derive(Debug, Clone, Args)]
pub struct PatternArgs {
    /// Patterns: one broker (SGL-…) or several (MLT-…), one subscriber on each (…-SGL) or a share group (…-SHD)
    #[arg(value_name = "PATTERN", value_enum, required = true)]
    patterns: Vec<PatternArg>,

    /// The brokers, of which SGL-… uses the first: [NAME=]HOST[:PORT][,pid=PID],…; a single name with several
    /// addresses; or tenbin and mosquitto, to start two of each
    #[arg(long, value_name = "BROKER,…")]
    brokers: TargetList,

    /// QoS of publishers and subscribers
    #[arg(long, value_name = "0|1|2,…", value_delimiter = ',', value_parser = qos, default_value = "0,1,2")]
    qos: Vec<u8>,

    /// Publishing connections
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    publishers: u32,

    /// Payload size in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 600, value_parser = clap::value_parser!(u32).range(Stamp::LEN as i64..))]
    payload: u32,

    /// Members of each share group
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    members: u32,

    /// Publishing time in whole seconds
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = positive_whole_seconds)]
    time: u32,

    /// Runs per pattern and QoS; their mean is reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Unacknowledged messages of a publisher at QoS 1 and 2; MQTTLoader's clients wait for each acknowledgement
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    in_flight: u16,

    /// After publishing, end when nothing has arrived for this time
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_duration)]
    subscriber_timeout: Duration,

    /// Threads: 1 for all connections, 2 to separate publishers from subscribers, or more
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,

    /// Write all figures into pattern.json in this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
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
struct Pattern {
    /// Whether it uses several brokers, or only the first.
    several: bool,
    /// Whether each broker has a share group, or one subscriber.
    shared: bool,
}

/// All runs of a pattern at one QoS.
#[derive(Debug)]
struct Row {
    pattern: Pattern,
    qos: u8,
    case: Case,
}

impl PatternArgs {
    /// Requested patterns, each once, in the order of the publication.
    fn patterns(&self) -> Vec<Pattern> {
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
    fn plan(&self, pattern: Pattern, qos: u8, brokers: &[RunningBroker]) -> Plan {
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

/// Measures each pattern at each QoS on each system and reports them.
pub(crate) async fn run(args: &PatternArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    let mut systems = Vec::new();
    for system in System::of(args, &args.patterns()).await? {
        let rows = measure(args, &system, out).await?;
        let observations = observations::of(&rows);
        write(out, &rows, &observations).map_err(LoadgenError::Print)?;
        systems.push((system.name, rows, observations));
    }
    args.out.as_deref().map_or(Ok(()), |directory| write_files(args, directory, &systems))
}

async fn measure(args: &PatternArgs, system: &System, out: &mut dyn Write) -> Result<Vec<Row>, LoadgenError> {
    let PatternArgs { publishers, payload, time, runs, .. } = args;
    writeln!(
        out,
        "{}: {publishers} publishers, {payload} bytes, no interval, {time} s; runs of each: {runs}",
        system.name
    )
    .and_then(|()| out.flush())
    .map_err(LoadgenError::Print)?;
    let sweep = Sweep { runs: *runs, figures: figures::of, printed: PRINTED };
    let mut rows = Vec::new();
    for pattern in args.patterns() {
        for qos in &args.qos {
            let mut case = Case::new(&format!("{pattern} QoS {qos}"));
            for number in 1..=*runs {
                // Brokers are started for each run, so that an overloaded broker's backlog does not affect the next one.
                let mut brokers = system.start(pattern).await?;
                let plan = args.plan(pattern, *qos, &brokers);
                sweep.measure(&mut case, number, &plan, &mut brokers, out).await?;
                let notes = case.outcomes.iter().last().map_or(&[][..], |outcome| &outcome.notes);
                notes.iter().try_for_each(|note| writeln!(out, "    note: {note}")).map_err(LoadgenError::Print)?;
            }
            rows.push(Row { pattern, qos: *qos, case });
        }
    }
    Ok(rows)
}

/// Prints the means of all runs, and the observations.
fn write(out: &mut dyn Write, rows: &[Row], observations: &[String]) -> std::io::Result<()> {
    write_table(out, "mean of runs", &cases(rows), &COLUMNS)?;
    writeln!(out, "latency in ms; ¼: mean of the messages received in the first and in the last quarter of the time")?;
    observations.iter().try_for_each(|line| writeln!(out, "- {line}"))?;
    writeln!(out)?;
    out.flush()
}

/// Writes `pattern.json` and a page; with several systems, a page for each in its own directory.
fn write_files(
    args: &PatternArgs,
    directory: &Path,
    systems: &[(String, Vec<Row>, Vec<String>)],
) -> Result<(), LoadgenError> {
    for (number, (name, rows, _)) in systems.iter().enumerate() {
        let of_its_own = directory.join(format!("system-{}", number + 1));
        let directory = if systems.len() > 1 { of_its_own.as_path() } else { directory };
        write_page(directory, &format!("Patterns: {name}"), &cases(rows))?;
    }
    let row = |Row { pattern, qos, case }: &Row| json!({ "pattern": pattern.to_string(), "qos": qos, "mean": case.each(Case::mean), "runs": case.runs });
    let system = |(name, rows, observations): &(String, Vec<Row>, Vec<String>)| json!({ "brokers": name, "rows": rows.iter().map(row).collect::<Vec<_>>(), "observations": observations });
    let summary = json!({
        "publishers": args.publishers,
        "payload_bytes": args.payload,
        "seconds": args.time,
        "runs": args.runs,
        "in_flight": args.in_flight,
        "systems": systems.iter().map(system).collect::<Vec<_>>(),
    });
    create_directory(directory)?;
    write_json(&directory.join("pattern.json"), &summary)
}

fn cases(rows: &[Row]) -> Vec<&Case> {
    rows.iter().map(|row| &row.case).collect()
}

const TOPIC: &str = "loadgen/pattern";

const PRINTED: &[(&str, &str, &str)] = &[
    ("published ", "published_per_second", "/s"),
    ("received ", "received_per_second", "/s"),
    ("mean ", "latency_mean_ms", " ms"),
    ("lost ", "lost", ""),
];

const COLUMNS: [Column; 9] = [
    ("published/s", Over::Mean, "published_per_second"),
    ("received/s", Over::Mean, "received_per_second"),
    ("mean ms", Over::Mean, "latency_mean_ms"),
    ("p99", Over::Mean, "latency_p99_ms"),
    ("max", Over::Mean, "latency_max_ms"),
    ("lost", Over::Mean, "lost"),
    ("first ¼", Over::Mean, "first_quarter_ms"),
    ("last ¼", Over::Mean, "last_quarter_ms"),
    ("growth", Over::Per("first_quarter_ms"), "last_quarter_ms"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Pace;
    use crate::values::parsed;

    pub(super) fn args(line: &str) -> PatternArgs {
        parsed(&format!("pattern {line}")).expect("well-formed")
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
