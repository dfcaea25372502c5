//! Handles of processes in machines.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::procfs::Usage;
use crate::protocol::{ToGuard, lock};
use crate::shared::{ProcessEnd, Shared};
use crate::signal::{Exit, Signal};

/// A process of a machine, with its descendants. Dropping the handle leaves the process running.
#[derive(Clone, Debug)]
pub struct Process {
    pub(crate) lab: Arc<Shared>,
    pub(crate) machine: u16,
    pub(crate) id: u64,
    pub(crate) pid: u32,
    pub(crate) end: Arc<ProcessEnd>,
}

impl Process {
    /// Process identifier, as processes of the same machine see it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal. A process that has ended gets none, and that is no error.
    ///
    /// # Errors
    ///
    /// The lab has ended, or the tree did not die within 30 s of `Kill`.
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.send(signal, None)
    }

    /// Stops the whole tree. The machine itself continues it after `time`, even if no call arrives any more.
    ///
    /// # Errors
    ///
    /// The lab has ended.
    pub fn stop_for(&self, time: Duration) -> Result<(), Error> {
        self.send(Signal::Stop, Some(time))
    }

    fn send(&self, signal: Signal, time: Option<Duration>) -> Result<(), Error> {
        self.lab.caller.call(&ToGuard::Signal { machine: self.machine, process: self.id, signal, time })
    }

    /// Processor time, memory and disk traffic of the whole tree; `None` if it is gone.
    ///
    /// # Errors
    ///
    /// The lab has ended.
    pub fn usage(&self) -> Result<Option<Usage>, Error> {
        self.lab.caller.call(&ToGuard::Usage { machine: self.machine, process: self.id })
    }

    /// Waits for the end of the process; its descendants may live on.
    ///
    /// # Errors
    ///
    /// The lab has ended.
    pub fn wait(&self) -> Result<Exit, Error> {
        let state = lock(&self.end.state);
        let state = self.end.changed.wait_while(state, |end| end.is_none()).unwrap_or_else(PoisonError::into_inner);
        state.and_then(Result::ok).ok_or(Error::Ended)
    }

    /// As [`wait`](Self::wait), but at most for `time`; `None` if the process still runs then.
    ///
    /// # Errors
    ///
    /// The lab has ended.
    pub fn wait_for(&self, time: Duration) -> Result<Option<Exit>, Error> {
        let deadline = Instant::now() + time;
        let mut state = lock(&self.end.state);
        while state.is_none() {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            state = self.end.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.and_then(Result::ok).map(Some).ok_or(Error::Ended)
    }
}
