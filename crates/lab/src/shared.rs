//! State behind the handles of a lab, its machines and processes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::protocol::{Caller, lock};
use crate::signal::Exit;

/// Ends of all running processes, by number.
pub(crate) type Processes = Arc<Mutex<HashMap<u64, Arc<End>>>>;

/// State that the lab and its handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) caller: Caller,
    pub(crate) directory: PathBuf,
    pub(crate) processes: Processes,
    pub(crate) names: Mutex<Vec<String>>,
    pub(crate) numbers: AtomicU64,
}

impl Shared {
    /// A number that no fault, process or file of the lab has yet.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

/// End of a process, once it is known.
#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) state: Mutex<Option<Result<Exit, ()>>>,
    pub(crate) changed: Condvar,
}

impl End {
    /// Sets the end, unless it is known already. `Err` if the lab ended first.
    pub(crate) fn set(&self, end: Result<Exit, ()>) {
        lock(&self.state).get_or_insert(end);
        self.changed.notify_all();
    }
}
