//! How many messages a second a broker moves, and what processor time it takes for them.
//!
//! A preset of [`run`](crate::run), with a figure of its own: a closed loop, in which the publishers send as fast as the
//! broker takes, but never more than a window ahead of the subscribers. Both sides have one thread each, so that the
//! broker has the processors to itself. All publishers use one topic, to which all subscribers subscribe.

mod measure;
mod table;

use std::io::Write;

use crate::interrupt::unless_interrupted;
use crate::progress::Progress;
use crate::target::{PORT, TargetArg};
use crate::{LoadgenError, ThroughputArgs};

/// Measures the targets in turns and reports them.
pub(crate) async fn run(args: ThroughputArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    unless_interrupted(run_all(&args, out)).await
}

async fn run_all(args: &ThroughputArgs, out: &mut dyn Write) -> Result<(), LoadgenError> {
    table::write_head(out, args).map_err(LoadgenError::Print)?;
    let mut measurements = vec![Vec::new(); args.targets.len()];
    for number in 1..=args.runs {
        for (target, measurements) in args.targets.iter().zip(&mut measurements) {
            let mut progress = Progress::new();
            let mut broker = target.start(PORT).await?;
            let measurement = measure::measure(args, &mut broker, number, &mut progress).await?;
            drop(progress);
            table::write_run(out, target.name(), number, &measurement).map_err(LoadgenError::Print)?;
            measurements.push(measurement);
        }
    }
    let names = args.targets.iter().map(TargetArg::name);
    table::write_medians(out, &names.zip(measurements).collect::<Vec<_>>()).map_err(LoadgenError::Print)
}
