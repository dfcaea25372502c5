//! The same load on several brokers in turn, or on this program's broker with several policies.

mod args;
mod table;

use std::io::Write;
use std::path::Path;

pub use args::CompareArgs;

use crate::LoadgenError;
use crate::interrupt::unless_interrupted;
use crate::progress::Progress;
use crate::report;
use crate::run::conf::Conf;
use crate::run::perform::{Means, perform};
use crate::run::{Outcome, figure, planning};
use crate::statistics::median;
use crate::target::TargetArg;

/// All runs of one broker.
#[derive(Debug)]
struct Compared {
    name: String,
    runs: Vec<Outcome>,
}

impl Compared {
    /// Median of a figure, over the runs that have it.
    fn median(&self, figure: &str) -> Option<f64> {
        median(&self.values(figure))
    }

    fn values(&self, figure: &str) -> Vec<f64> {
        let figure = figure::Figure::find(figure).expect("a figure of the list");
        self.runs.iter().filter_map(figure.of).collect()
    }
}

/// Runs the load on each broker in turn, repeatedly, and reports medians.
pub(crate) async fn run(args: CompareArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    unless_interrupted(run_all(&args, out)).await
}

async fn run_all(args: &CompareArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    let conf = Conf::read(args.load.conf.as_deref())?;
    let targets = args.targets()?;
    table::write_head(out, args, &targets).map_err(LoadgenError::Print)?;
    let mut compared: Vec<_> =
        targets.iter().map(|target| Compared { name: target.name().to_owned(), runs: Vec::new() }).collect();
    for number in 1..=args.runs {
        for (target, compared) in targets.iter().zip(&mut compared) {
            let title = format!("{} {number}/{}: ", compared.name, args.runs);
            let outcome = measure(args, &conf, target, title).await?;
            table::write_run(out, &compared.name, number, &outcome).map_err(LoadgenError::Print)?;
            compared.runs.push(outcome);
        }
    }
    table::write_medians(out, &compared).map_err(LoadgenError::Print)?;
    args.out.as_deref().map_or(Ok(()), |directory| write_files(directory, &compared))
}

async fn measure(args: &CompareArgs, conf: &Conf, target: &TargetArg, title: String) -> Result<Outcome, LoadgenError> {
    let mut brokers = vec![target.start(planning::default_port(&args.load, conf)).await?];
    let plan = planning::plan(&args.load(), conf, brokers.iter().map(|broker| broker.place()).collect())?;
    let means = Means { title, ..Means::default() };
    Ok(perform(&plan, &mut brokers, &means, &mut Progress::new()).await?.outcome)
}

fn write_files(directory: &Path, compared: &[Compared]) -> Result<(), LoadgenError> {
    let runs: Vec<_> = compared
        .iter()
        .flat_map(|compared| compared.runs.iter().map(|outcome| (&compared.name, outcome)))
        .map(|(name, outcome)| report::Compared { name: name.clone(), directory: None, outcome })
        .collect();
    report::write_comparison(directory, "Comparison", &runs)?;
    let path = directory.join("compare.json");
    std::fs::write(&path, format!("{:#}\n", summary(compared))).map_err(|source| LoadgenError::Write { path, source })
}

fn summary(compared: &[Compared]) -> serde_json::Value {
    let mut plan = compared.first().and_then(|compared| compared.runs.first()).map(|outcome| outcome.plan.clone());
    if let Some(plan) = &mut plan {
        // Files are passed on, so that the password must not be in them.
        plan.connection.password = None;
    }
    let broker = |compared: &Compared| {
        let medians = figure::FIGURES.iter().map(|figure| (figure.name, compared.median(figure.name)));
        serde_json::json!({
            "name": compared.name,
            "medians": medians.collect::<std::collections::BTreeMap<_, _>>(),
            "runs": compared.runs.iter().map(figure::values).collect::<Vec<_>>(),
        })
    };
    serde_json::json!({ "plan": plan, "brokers": compared.iter().map(broker).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sample;

    #[test]
    fn the_summary_has_medians_and_no_password() {
        let mut outcome = sample::outcome();
        outcome.plan.connection.password = Some("hush".into());
        let compared = [Compared { name: "one".into(), runs: vec![outcome.clone(), outcome] }];
        let summary = summary(&compared);
        assert_eq!(summary["brokers"][0]["medians"]["p99"], 61.2);
        assert_eq!(summary["brokers"][0]["runs"][1]["lost"], 3.0);
        assert!(summary["plan"].is_object() && !summary.to_string().contains("hush"));
    }
}
