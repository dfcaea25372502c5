//! Message rate of a broker, and its processor time.
//!
//! A preset of [`run`](crate::run), with its own figure: a closed loop, in which publishers send as fast as the broker
//! accepts messages, but at most a window ahead of the subscribers. Both sides have one thread each, to leave the other
//! processors to the broker. All publishers and subscribers use one topic.

mod measure;
mod table;

use std::io::Write;

use crate::interrupt::unless_interrupted;
use crate::progress::Progress;
use crate::target::{PORT, TargetArg};
use crate::{LoadgenError, ThroughputArgs};

/// Measures the targets in turn and reports them.
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
