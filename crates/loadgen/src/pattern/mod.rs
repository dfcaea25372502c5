//! The four patterns of collecting data from several brokers (document 001 of the sources): one broker or several, and
//! one subscriber of the application on each, or a share group of two.

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

use crate::LoadgenError;
use crate::interrupt::unless_interrupted;
use crate::progress::Progress;
use crate::run::perform::{Means, perform};

/// Measures each pattern at each QoS on each system and reports them.
pub(crate) async fn run(args: PatternArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    unless_interrupted(run_all(&args, out)).await
}

async fn run_all(args: &PatternArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    let patterns = args.patterns();
    let mut systems = Vec::new();
    for system in System::of(args, &patterns).await? {
        table::write_head(out, args, &system).map_err(LoadgenError::Print)?;
        let mut rows = Vec::new();
        for pattern in &patterns {
            for qos in &args.qos {
                let row = measure(args, &system, *pattern, *qos, out).await?;
                rows.push(row);
            }
        }
        table::write(out, &rows).map_err(LoadgenError::Print)?;
        let said = observations::of(&rows);
        said.iter().try_for_each(|line| writeln!(out, "- {line}")).map_err(LoadgenError::Print)?;
        writeln!(out).map_err(LoadgenError::Print)?;
        systems.push((system, rows, said));
    }
    args.out.as_deref().map_or(Ok(()), |directory| write_json(args, directory, &systems))
}

/// All runs of a pattern at one QoS.
async fn measure(
    args: &PatternArgs,
    system: &System,
    pattern: Pattern,
    qos: u8,
    out: &mut dyn Write,
) -> Result<Row, LoadgenError> {
    let mut runs = Vec::new();
    for number in 1..=args.runs {
        // What an overloaded broker has not delivered yet is not to meet the next run.
        let mut brokers = system.start(pattern).await?;
        let plan = args.plan(pattern, qos, &brokers);
        let means = Means { title: format!("{pattern} QoS {qos} {number}/{}: ", args.runs), ..Means::default() };
        let finished = perform(&plan, &mut brokers, &means, &mut Progress::new()).await?;
        let measured = Measured::of(&finished.outcome);
        table::write_run(out, pattern, qos, number, &measured, &finished.outcome.notes).map_err(LoadgenError::Print)?;
        runs.push(measured);
    }
    Ok(Row { pattern, qos, mean: Measured::mean(&runs), runs })
}

fn write_json(
    args: &PatternArgs,
    directory: &Path,
    systems: &[(System, Vec<Row>, Vec<String>)],
) -> Result<(), LoadgenError> {
    let systems: Vec<_> = systems
        .iter()
        .map(|(system, rows, observations)| {
            serde_json::json!({ "brokers": system.name, "rows": rows, "observations": observations })
        })
        .collect();
    let summary = serde_json::json!({
        "publishers": args.publishers,
        "payload_bytes": args.payload,
        "seconds": args.time,
        "runs": args.runs,
        "in_flight": args.in_flight,
        "systems": systems,
    });
    let path = directory.join("pattern.json");
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(&path, format!("{summary:#}\n")))
        .map_err(|source| LoadgenError::Write { path, source })
}
