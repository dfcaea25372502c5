//! Slow receivers: how they affect the latency of normal receivers.
//!
//! There is one publisher and one topic. All receivers have sessions that outlive their connections. In the middle of
//! the run some receivers begin to read more slowly than messages arrive (document 002 of the sources, §4.1: the
//! published experiment had one normal and one slow receiver on a server).

mod args;
mod figures;
mod latency;
mod published;
mod report;
mod run;
mod spooling;

use std::io::Write;
use std::path::Path;

pub use args::SlowArgs;
pub(crate) use figures::SlowFigures;
pub(crate) use latency::{Arrival, GOAL_MEAN, PHASES, PhaseLatency};
pub(crate) use published::{PUBLISHED_SWITCH_MS, published};
use tempfile::TempDir;

use crate::LoadgenError;
use crate::child_broker::ChildBroker;
use crate::progress::Progress;
use crate::report::create_directory;
use crate::target::RunningBroker;

/// Runs each size and reports the results.
pub(crate) async fn run(args: &SlowArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    args.check()?;
    report::print_head(out, args)?;
    let mut found = Vec::new();
    for size in &args.sizes {
        let mut progress = Progress::new();
        // Dropped after the broker that uses it.
        let data = data_below(args.data.as_deref())?;
        let mut brokers = match &args.broker {
            Some(address) => vec![RunningBroker::at(address)?],
            None if args.pair => {
                let (child, [leader, follower]) = ChildBroker::pair(data.path()).await?;
                vec![
                    RunningBroker::node("leader", leader, Some(child)),
                    RunningBroker::node("follower", follower, None),
                ]
            }
            None => {
                let child = ChildBroker::tenbin_with_data(data.path(), args.config.as_deref()).await?;
                vec![RunningBroker::started("tenbin", child)]
            }
        };
        let figures = run::run(args, *size, &mut brokers, &mut progress).await?;
        drop(progress);
        report::print_size(out, &figures)?;
        found.push(figures);
    }
    report::finish(out, args, &found)
}

/// Data directory of a started broker, below `directory`; dropping it removes it.
fn data_below(directory: Option<&Path>) -> Result<TempDir, LoadgenError> {
    let directory = directory.map_or_else(std::env::temp_dir, Path::to_owned);
    create_directory(&directory)?;
    let data = TempDir::with_prefix_in("tenbin-slow-", &directory);
    data.map_err(|source| LoadgenError::Write { path: directory, source })
}
