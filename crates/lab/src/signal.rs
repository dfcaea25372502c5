//! Signals to processes, and their ends.

use serde::{Deserialize, Serialize};

/// A signal to a process, or to it with all of its descendants, also those that left its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// SIGTERM to the process itself.
    Terminate,
    /// SIGINT to the process itself.
    Interrupt,
    /// SIGHUP to the process itself.
    Hangup,
    /// SIGKILL to the whole tree. The call returns when no process of it is left.
    Kill,
    /// SIGSTOP to the whole tree.
    Stop,
    /// SIGCONT to the whole tree.
    Continue,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code, unless a signal ended the process.
    pub code: Option<i32>,
    /// Number of the signal that ended the process.
    pub signal: Option<i32>,
}

impl Exit {
    /// True for the exit code 0.
    #[must_use]
    pub fn success(self) -> bool {
        self.code == Some(0)
    }
}
