//! Four patterns of collecting data from brokers (document 001 of the sources).
//!
//! A pattern has one broker or several. On each broker the application has one subscriber, or a share group of two.

mod args;
mod brokers;
mod measured;
mod observations;
mod table;

use std::io::Write;
use std::path::Path;

use args::Pattern;
pub use args::PatternArgs;
use brokers::System;
use measured::{Measured, Row};
use serde::Serialize;

use crate::LoadgenError;
use crate::interrupt::unless_interrupted;
use crate::progress::Progress;
use crate::report::{self, Compared};
use crate::run::Outcome;
use crate::run::perform::{Means, perform};

/// Measures each pattern at each QoS on each system and reports them.
pub(crate) async fn run(args: PatternArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    unless_interrupted(run_all(&args, out)).await
}

async fn run_all(args: &PatternArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    let patterns = args.patterns();
    let mut reports = Vec::new();
    for system in System::of(args, &patterns).await? {
        let mut report = SystemReport { name: system.name.clone(), ..SystemReport::default() };
        table::write_head(out, args, &system).map_err(LoadgenError::Print)?;
        for pattern in &patterns {
            for qos in &args.qos {
                report.measure(args, &system, *pattern, *qos, out).await?;
            }
        }
        table::write(out, &report.rows).map_err(LoadgenError::Print)?;
        report.observations = observations::of(&report.rows);
        report.observations.iter().try_for_each(|line| writeln!(out, "- {line}")).map_err(LoadgenError::Print)?;
        writeln!(out).map_err(LoadgenError::Print)?;
        reports.push(report);
    }
    args.out.as_deref().map_or(Ok(()), |directory| write_files(args, directory, &reports))
}

/// Results of one system.
#[derive(Debug, Default, Serialize)]
struct SystemReport {
    #[serde(rename = "brokers")]
    name: String,
    rows: Vec<Row>,
    observations: Vec<String>,
    /// Outcome of each run, with the pattern's name.
    #[serde(skip)]
    outcomes: Vec<(String, Outcome)>,
}

impl SystemReport {
    /// Performs all runs of a pattern at one QoS.
    async fn measure(
        &mut self,
        args: &PatternArgs,
        system: &System,
        pattern: Pattern,
        qos: u8,
        out: &mut dyn Write,
    ) -> Result<(), LoadgenError> {
        let mut runs = Vec::new();
        for number in 1..=args.runs {
            // Brokers are started for each run, so that an overloaded broker's backlog does not affect the next one.
            let mut brokers = system.start(pattern).await?;
            let plan = args.plan(pattern, qos, &brokers);
            let means = Means { title: format!("{pattern} QoS {qos} {number}/{}: ", args.runs), ..Means::default() };
            let outcome = perform(&plan, &mut brokers, &means, &mut Progress::new()).await?.outcome;
            let measured = Measured::of(&outcome);
            table::write_run(out, pattern, qos, number, &measured, &outcome.notes).map_err(LoadgenError::Print)?;
            runs.push(measured);
            self.outcomes.push((format!("{pattern} QoS {qos}"), outcome));
        }
        self.rows.push(Row { pattern, qos, mean: Measured::mean(&runs), runs });
        Ok(())
    }
}

/// Writes `pattern.json` and a page; with several systems, a page for each in its own directory.
fn write_files(args: &PatternArgs, directory: &Path, reports: &[SystemReport]) -> Result<(), LoadgenError> {
    for (number, report) in reports.iter().enumerate() {
        let of_its_own = directory.join(format!("system-{}", number + 1));
        let directory = if reports.len() > 1 { of_its_own.as_path() } else { directory };
        let runs =
            report.outcomes.iter().map(|(name, outcome)| Compared { name: name.clone(), directory: None, outcome });
        report::write_comparison(directory, &format!("Patterns: {}", report.name), &runs.collect::<Vec<_>>())?;
    }
    let summary = serde_json::json!({
        "publishers": args.publishers,
        "payload_bytes": args.payload,
        "seconds": args.time,
        "runs": args.runs,
        "in_flight": args.in_flight,
        "systems": reports,
    });
    let path = directory.join("pattern.json");
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(&path, format!("{summary:#}\n")))
        .map_err(|source| LoadgenError::Write { path, source })
}
