//! Experiments on a share group: how long messages wait for their workers.
//!
//! A publisher sends on a schedule to workers of known speed. Workers may change their speed, join, pause, leave and
//! die. Scenarios 1 and 2 are the published ones (document 000 of the sources, §5). Scenario files have the format of
//! `simulate`.

mod args;
mod best_possible;
mod figures;
mod plan;
mod published;
mod record;
mod report;
mod run;
mod shipped;
mod simulated;
pub(crate) mod slow;
mod workers;

use std::io::Write;

pub(crate) use best_possible::BestPossible;
pub(crate) use figures::{RunFigures, SubscriberFigures};
pub(crate) use plan::{PAYLOAD_LEN, Plan, STABLE_PHASE};
pub(crate) use published::{FIRST_ABOVE_SECOND_MS, REDUCTION_PERCENT, RISE_OF_THE_FAST_MS, overall_ms, stable_phase};
pub(crate) use record::{Delivery, RunRecord, Totals, WorkerRecord};
pub(crate) use simulated::Simulated;
pub use slow::SlowArgs;

use crate::LoadgenError;
use crate::child_broker::ChildBroker;
use crate::progress::Progress;
use crate::target::RunningBroker;
use args::OtherScenario;
pub use args::{ScenarioArgs, ScenarioCommand};
use report::ScenarioReport;

/// Runs the requested scenario.
pub(crate) async fn run_command(command: ScenarioCommand, out: &mut dyn Write) -> Result<(), LoadgenError> {
    match (command.other, command.shared) {
        (Some(OtherScenario::Slow(args)), _) => slow::run(&args, out).await,
        (None, Some(args)) => run(&args, out).await,
        (None, None) => Err(LoadgenError::Arguments("which scenario? See --help".to_owned())),
    }
}

/// Runs the scenario with each requested policy and reports the results.
async fn run(args: &ScenarioArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    let plan = &Plan::new(args)?;
    let mut report = ScenarioReport::start(plan, args.out.as_deref(), out)?;
    for policy in &plan.policies {
        for number in 1..=plan.runs {
            let mut progress = Progress::new();
            let title = format!("{policy} {number}/{}", plan.runs);
            let mut broker = match &args.broker {
                Some(address) => RunningBroker::at(address)?,
                None => RunningBroker::started(policy, ChildBroker::tenbin(Some(policy)).await?),
            };
            let record = run::run(plan, number, &title, &mut broker, &mut progress).await?;
            drop((broker, progress));
            report.add_run(plan, policy, number, &record)?;
        }
    }
    report.finish(plan)
}
