//! State behind the handles of a lab, its machines and processes.

use std::collections::HashMap;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::descriptor::send_descriptor;
use crate::error::Error;
use crate::protocol::{Caller, ToGuard, lock};
use crate::signal::Exit;

/// Ends of all running processes, by number.
pub(crate) type Processes = Arc<Mutex<HashMap<u64, Arc<ProcessEnd>>>>;

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

    /// Makes a call that takes an open file over the socket with a given path. The guard sees neither processes nor mounts
    /// of this program, so it gets the open file.
    pub(crate) fn hand_over(&self, file: BorrowedFd<'_>, call: impl FnOnce(PathBuf) -> ToGuard) -> Result<(), Error> {
        let path = self.directory.join(format!("s{}", self.number()));
        let listener = UnixListener::bind(&path).map_err(Error::io(format!("listen at {}", path.display())))?;
        let taken = thread::scope(|scope| {
            scope.spawn(|| listener.accept().and_then(|(stream, _)| send_descriptor(&stream, &[0], file)));
            let taken = self.caller.call(&call(path.clone()));
            // Ends the wait for a guard that did not come.
            let _ = UnixStream::connect(&path);
            taken
        });
        let _ = fs::remove_file(&path);
        taken
    }
}

/// End of a process, once it is known.
#[derive(Debug, Default)]
pub(crate) struct ProcessEnd {
    pub(crate) state: Mutex<Option<Result<Exit, ()>>>,
    pub(crate) changed: Condvar,
}

impl ProcessEnd {
    /// Sets the end, unless it is known already. `Err` if the lab ended first.
    pub(crate) fn set(&self, end: Result<Exit, ()>) {
        lock(&self.state).get_or_insert(end);
        self.changed.notify_all();
    }
}
