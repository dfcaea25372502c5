//! Connections that do nothing but be there, and the storm in which they come.
//!
//! One thread has them all, so that publishers and subscribers do not wait for them. It keeps a file descriptor of each
//! and nothing else: a hundred thousand cost it less than a megabyte. Under TLS it keeps what that keeps.

mod knock;
mod pings;
mod socket;
mod storm;
mod target;

use std::thread::JoinHandle;

use tokio::sync::mpsc;

use self::storm::Storm;
use super::crew::Slice;
use super::driver::{Common, Stage};
use super::thread::Report;
use crate::LoadgenError;
use crate::run::Part;

/// Starts the thread, number `number` of this process, for the idle connections of `slice`. They are made from the start
/// of the run on.
///
/// # Errors
/// The system has no thread left.
pub(super) fn spawn(
    common: Common,
    number: usize,
    slice: Slice,
    reports: mpsc::Sender<Report>,
) -> Result<JoinHandle<()>, LoadgenError> {
    let work = move || {
        let ended = lead(common, number, slice, &reports);
        // An engine that was dropped wants to hear nothing.
        let _ = reports.blocking_send(Report::Ended(ended.map(Box::new)));
    };
    std::thread::Builder::new().name("loadgen-idle".into()).spawn(work).map_err(LoadgenError::Runtime)
}

fn lead(common: Common, number: usize, slice: Slice, reports: &mpsc::Sender<Report>) -> Result<Part, LoadgenError> {
    let shared = common.shared.clone();
    let mut storm = Storm::new(common, number, slice)?;
    for stage in [Stage::Subscribe, Stage::Connect] {
        // Nothing is to be done before the start. Where the engine is gone, the next stage tells.
        let _ = reports.blocking_send(Report::Ready);
        storm.wait_for_stage_after(stage);
    }
    let ended = storm.run();
    if let Err(error) = ended {
        // The watcher is to hear of it now, not at the end.
        shared.fail(error);
        storm.wait_for_stage_after(Stage::Drain);
    }
    Ok(storm.into_part())
}
