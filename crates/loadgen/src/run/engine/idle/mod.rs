//! Idle connections, and the rate at which they are made.
//!
//! One thread serves all of them, so that publishers and subscribers do not wait for them. It keeps only a file
//! descriptor per connection: a hundred thousand take less than a megabyte. TLS adds its own state.

mod connecting;
mod connections;
mod pings;
mod socket;
mod target;
mod websocket;

use std::thread::JoinHandle;

use tokio::sync::mpsc;

use self::connections::IdleConnections;
use super::driver_thread::{Common, RunStage};
use super::thread::Report;
use crate::LoadgenError;
use crate::run::{Part, Slice};

/// Starts the thread with number `number` of this process, for the idle connections of `slice`.
///
/// The thread makes the connections from the start of the run on.
///
/// # Errors
/// The system cannot start another thread.
pub(super) fn spawn(
    common: Common,
    number: usize,
    slice: Slice,
    reports: mpsc::Sender<Report>,
) -> Result<JoinHandle<()>, LoadgenError> {
    let work = move || {
        let ended = serve(common, number, slice, &reports);
        // A dropped engine no longer receives.
        let _ = reports.blocking_send(Report::Ended(ended.map(Box::new)));
    };
    std::thread::Builder::new().name("loadgen-idle".into()).spawn(work).map_err(LoadgenError::Runtime)
}

fn serve(common: Common, number: usize, slice: Slice, reports: &mpsc::Sender<Report>) -> Result<Part, LoadgenError> {
    let shared = common.shared.clone();
    let mut connections = IdleConnections::new(common, number, slice)?;
    for stage in [RunStage::Subscribe, RunStage::Connect] {
        // There is nothing to do before the start. If the engine is gone, the next stage ends the thread.
        let _ = reports.blocking_send(Report::Ready);
        connections.wait_for_stage_after(stage);
    }
    let ended = connections.run();
    if let Err(error) = ended {
        // Report the failure now, not at the end.
        shared.fail(error);
        connections.wait_for_stage_after(RunStage::Drain);
    }
    Ok(connections.into_part())
}
