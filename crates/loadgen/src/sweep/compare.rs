//! `compare`: the same load on several brokers, or on this project's broker with several policies.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde_json::{Value, json};

use super::table::{Column, Over, write_table};
use super::{Case, Sweep, write_page};
use crate::LoadgenError;
use crate::report::write_json;
use crate::run::conf::Conf;
use crate::run::figure::FIGURES;
use crate::run::{LoadArgs, Outcome, planning};
use crate::target::{TargetArg, TargetList};

/// Arguments of `compare`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("what").required(true))]
pub struct CompareArgs {
    /// Brokers: [NAME=]HOST[:PORT][,pid=PID],…, or tenbin or mosquitto to start one for each run
    #[arg(long, value_name = "BROKER,…", group = "what")]
    brokers: Option<TargetList>,

    /// Policies of this project's broker, which is started for each run
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', group = "what")]
    policies: Vec<String>,

    /// Runs on each broker, taking turns; medians are reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Write all figures of all runs into compare.json in this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    load: LoadArgs,
}

impl CompareArgs {
    /// The brokers to compare.
    ///
    /// # Errors
    /// Two have the same name.
    fn targets(&self) -> Result<Vec<TargetArg>, LoadgenError> {
        let targets: Vec<_> = match &self.brokers {
            Some(TargetList(brokers)) => brokers.clone(),
            None => self.policies.iter().cloned().map(TargetArg::Policy).collect(),
        };
        for (index, target) in targets.iter().enumerate() {
            if targets[..index].iter().any(|other| other.name() == target.name()) {
                let name = target.name();
                return Err(LoadgenError::Arguments(format!("{name} is there twice: give each broker another name")));
            }
        }
        Ok(targets)
    }

    /// The load; it lasts for [`TIME`] if no option limits messages or time.
    fn load(&self) -> LoadArgs {
        let mut load = self.load.clone();
        if load.conf.is_none() && load.messages.is_none() {
            load.time.get_or_insert(TIME);
        }
        load
    }
}

/// Runs the load on each broker in turn, repeatedly, and reports medians.
pub(crate) async fn run(args: &CompareArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    let cases = measure(args, out).await?;
    write_medians(out, &cases.iter().collect::<Vec<_>>()).map_err(LoadgenError::Print)?;
    let Some(directory) = &args.out else { return Ok(()) };
    write_page(directory, "Comparison", &cases.iter().collect::<Vec<_>>())?;
    write_json(&directory.join("compare.json"), &summary(&cases))
}

async fn measure(args: &CompareArgs, out: &mut dyn Write) -> Result<Vec<Case>, LoadgenError> {
    let (conf, targets, load) = (Conf::read(args.load.conf.as_deref())?, args.targets()?, args.load());
    let names: Vec<_> = targets.iter().map(TargetArg::name).collect();
    writeln!(out, "compare: {}; in turns, runs on each: {}", names.join(", "), args.runs)
        .and_then(|()| out.flush())
        .map_err(LoadgenError::Print)?;
    let figures = |of: &Outcome| FIGURES.iter().map(|figure| (figure.name, (figure.of)(of))).collect();
    let sweep = Sweep { runs: args.runs, figures, printed: PRINTED };
    let plan = |broker| planning::plan(&load, &conf, vec![broker]);
    sweep.in_turns(&targets, planning::default_port(&load, &conf), plan, out).await
}

/// Prints medians, and ratios to the first broker.
fn write_medians(out: &mut dyn Write, cases: &[&Case]) -> io::Result<()> {
    write_table(out, "throughput", cases, &THROUGHPUT)?;
    write_table(out, "latency in ms", cases, &LATENCY)?;
    if cases.iter().any(|case| case.median("waiting_mean").is_some()) {
        write_table(out, "until work begins", cases, &WAITING)?;
    }
    writeln!(
        out,
        "medians; ratio: to the first; CPU, RSS: of the broker's process; lowest and highest of received/s, \
         lost and duplicated: of all runs"
    )?;
    out.flush()
}

fn summary(cases: &[Case]) -> Value {
    let plan = cases.first().and_then(|case| case.outcomes.first()).map(|outcome| &outcome.plan);
    let broker = |case: &Case| json!({ "name": case.name, "medians": case.each(Case::median), "runs": case.runs });
    json!({ "plan": plan, "brokers": cases.iter().map(broker).collect::<Vec<_>>() })
}

const TIME: Duration = Duration::from_secs(5);

const PRINTED: &[(&str, &str, &str)] = &[
    ("received ", "received_per_second", "/s"),
    ("", "cpu_seconds", " s of processor time"),
    ("mean ", "mean", ""),
    ("p99 ", "p99", " ms"),
    ("lost ", "lost", ""),
    ("duplicated ", "duplicated", ""),
    ("refused ", "not_taken", ""),
];

const THROUGHPUT: [Column; 9] = [
    ("published/s", Over::Median, "published_per_second"),
    ("received/s", Over::Median, "received_per_second"),
    ("ratio", Over::Ratio, "received_per_second"),
    ("lowest", Over::Lowest, "received_per_second"),
    ("highest", Over::Highest, "received_per_second"),
    ("per CPU-s", Over::Median, "deliveries_per_cpu_second"),
    ("ratio", Over::Ratio, "deliveries_per_cpu_second"),
    ("CPU s", Over::Median, "cpu_seconds"),
    ("RSS KiB", Over::Median, "resident_kib"),
];

const LATENCY: [Column; 9] = [
    ("mean", Over::Median, "mean"),
    ("ratio", Over::Ratio, "mean"),
    ("p50", Over::Median, "p50"),
    ("p99", Over::Median, "p99"),
    ("ratio", Over::Ratio, "p99"),
    ("p99.9", Over::Median, "p999"),
    ("max", Over::Median, "max"),
    ("lost", Over::Sum, "lost"),
    ("duplicated", Over::Sum, "duplicated"),
];

const WAITING: [Column; 8] = [
    ("mean", Over::Median, "waiting_mean"),
    ("ratio", Over::Ratio, "waiting_mean"),
    ("p50", Over::Median, "waiting_p50"),
    ("p99", Over::Median, "waiting_p99"),
    ("ratio", Over::Ratio, "waiting_p99"),
    ("p99.9", Over::Median, "waiting_p999"),
    ("max", Over::Median, "waiting_max"),
    ("Jain", Over::Median, "jain"),
];

#[cfg(test)]
mod tests {
    use tenbin_codec::Secret;

    use super::*;
    use crate::run::sample;
    use crate::values::parsed;

    fn args(line: &str) -> Result<CompareArgs, clap::Error> {
        parsed(&format!("compare {line}"))
    }

    #[test]
    fn brokers_or_policies_are_compared() {
        let names = |line: &str| {
            let targets = args(line).unwrap().targets().unwrap();
            targets.iter().map(|target| target.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("--brokers a=h:1,pid=3,tenbin,mosquitto"), ["a", "tenbin", "mosquitto"]);
        assert_eq!(names("--policies adaptive,round_robin --shared --service 25ms"), ["adaptive", "round_robin"]);
        assert!(args("").is_err() && args("--brokers tenbin --policies random").is_err());
        assert!(args("--policies a,a").unwrap().targets().is_err());
    }

    #[test]
    fn load_has_default_time_unless_messages_are_given() {
        let load = |line: &str| args(&format!("--brokers tenbin {line}")).unwrap().load();
        assert_eq!(load("").time, Some(TIME));
        assert_eq!(load("--time 9").time, Some(Duration::from_secs(9)));
        assert_eq!(load("--messages 9").time, None);
        assert_eq!(load("--conf f").time, None);
    }

    #[test]
    fn columns_and_printed_figures_exist() {
        let columns = THROUGHPUT.iter().chain(&LATENCY).chain(&WAITING).map(|(.., figure)| figure);
        for name in columns.chain(PRINTED.iter().map(|(_, figure, _)| figure)) {
            assert!(FIGURES.iter().any(|figure| figure.name == *name), "{name}");
        }
    }

    #[test]
    fn the_summary_has_medians_and_no_password() {
        let mut outcome = sample::outcome();
        outcome.plan.connection.password = Some(Secret::new("hush".to_owned()));
        let figures = || FIGURES.iter().map(|figure| (figure.name, (figure.of)(&sample::outcome()))).collect();
        let case = Case { name: "one".into(), runs: vec![figures(), figures()], outcomes: vec![outcome] };
        let summary = summary(&[case]);
        assert_eq!(summary["brokers"][0]["medians"]["p99"], 61.2);
        assert_eq!(summary["brokers"][0]["runs"][1]["lost"], 3.0);
        assert!(summary["plan"].is_object() && !summary.to_string().contains("hush"));
    }
}
