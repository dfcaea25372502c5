//! Slow receivers: how they affect the latency of normal receivers.
//!
//! There is one publisher and one topic. All receivers have sessions that outlive their connections. In the middle of
//! the run some receivers begin to read more slowly than messages arrive (document 002 of the sources, §4.1: the
//! published experiment had one normal and one slow receiver on a server).

mod args;
mod figures;
mod latency;
mod published;
mod run;
mod spooling;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub use args::SlowArgs;
pub(crate) use figures::SlowFigures;
pub(crate) use latency::{Arrival, GOAL_MEAN, PHASES, PhaseLatency};
pub(crate) use published::published;

use crate::LoadgenError;
use crate::child_broker::ChildBroker;
use crate::interrupt::unless_interrupted;
use crate::progress::Progress;
use crate::report::slow as report;
use crate::target::RunningBroker;

/// Runs each size and reports the results.
pub(crate) async fn run(args: SlowArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    unless_interrupted(run_all(&args, out)).await
}

async fn run_all(args: &SlowArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    args.check()?;
    report::print_head(out, args)?;
    let mut found = Vec::new();
    for size in &args.sizes {
        let mut progress = Progress::new();
        // Dropped after the broker that uses it.
        let data = Data::below(args.data.as_deref());
        let mut broker = match &args.broker {
            Some(address) => RunningBroker::at(address)?,
            None => {
                let child = ChildBroker::tenbin_with_data(&data.0, args.config.as_deref()).await?;
                RunningBroker::started("tenbin", child)
            }
        };
        let figures = run::run(args, *size, &mut broker, &mut progress).await?;
        drop(progress);
        report::print_size(out, &figures)?;
        found.push(figures);
    }
    report::finish(out, args, &found)
}

/// Data directory of a started broker; dropping it removes the directory.
struct Data(PathBuf);

impl Data {
    fn below(directory: Option<&Path>) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let name = format!("tenbin-slow-{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        Self(directory.map_or_else(std::env::temp_dir, Path::to_owned).join(name))
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        // The broker may have failed before creating it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
