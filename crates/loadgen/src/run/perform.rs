//! Execution of a run on brokers that are running.

use super::Plan;
use super::execute::{ExecuteOptions, Execution, execute_closely};
use crate::LoadgenError;
use crate::progress::Progress;
use crate::target::RunningBroker;

/// Settings of a run besides plan and brokers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Means {
    /// Addresses of the agents; empty if all clients are in this process.
    pub(crate) agents: Vec<String>,
    /// Secret that the agents ask for.
    pub(crate) token: Option<String>,
    /// NTP server.
    pub(crate) ntp: Option<String>,
    /// Prefix of the progress line.
    pub(crate) title: String,
}

/// Runs `plan` on its brokers, which are `brokers`.
///
/// # Errors
///
/// The plan cannot be run, or a broker or an agent cannot be reached. A connection is lost without a cut. A broker that
/// we started has ended.
pub(crate) async fn perform(
    plan: &Plan,
    brokers: &mut [RunningBroker],
    means: &Means,
    progress: &mut Progress,
) -> Result<Execution, LoadgenError> {
    let options = ExecuteOptions {
        pids: brokers.iter().map(|broker| broker.pid).collect(),
        title: means.title.clone(),
        agents: means.agents.clone(),
        token: means.token.clone(),
        ntp: means.ntp.clone(),
        ..ExecuteOptions::default()
    };
    let executed = execute_closely(plan, &options, progress).await;
    executed.map_err(|error| brokers.iter_mut().fold(error, |error, broker| broker.blame(error)))
}
