//! A run on brokers that are there.

use super::execute::{ExecuteOptions, Execution, execute_closely};
use super::{MessageRecord, Outcome, Plan, PublishRecord};
use crate::LoadgenError;
use crate::progress::Progress;
use crate::target::RunningBroker;

/// What a run needs beside a plan and brokers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Means {
    /// Where agents listen; without any, all clients are in this process.
    pub(crate) agents: Vec<String>,
    /// What they want to hear first.
    pub(crate) token: Option<String>,
    /// Who tells the time.
    pub(crate) ntp: Option<String>,
    /// What the live line begins with.
    pub(crate) title: String,
}

/// A run that is over.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) outcome: Outcome,
    /// Where the plan asks for records, in order of time; so are the next.
    pub(crate) arrivals: Vec<MessageRecord>,
    pub(crate) departures: Vec<PublishRecord>,
}

/// Runs `plan`, whose brokers these are.
///
/// # Errors
/// A plan that cannot be run, a broker or an agent that cannot be reached, a connection that is lost although nobody cut
/// it, a broker of ours that has ended.
pub(crate) async fn perform(
    plan: &Plan,
    brokers: &mut [RunningBroker],
    means: &Means,
    progress: &mut Progress,
) -> Result<Finished, LoadgenError> {
    let options = ExecuteOptions {
        pids: brokers.iter().map(|broker| broker.pid).collect(),
        title: means.title.clone(),
        agents: means.agents.clone(),
        token: means.token.clone(),
        ntp: means.ntp.clone(),
        ..ExecuteOptions::default()
    };
    match execute_closely(plan, &options, progress).await {
        Ok(Execution { outcome, arrivals, departures, .. }) => Ok(Finished { outcome, arrivals, departures }),
        Err(error) => Err(brokers.iter_mut().fold(error, |error, broker| broker.blame(error))),
    }
}
