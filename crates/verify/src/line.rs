//! Command lines, and the paths of this project's programs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A command line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The program: a path, or a name in `PATH`.
    pub(crate) program: String,
    /// Its arguments.
    pub(crate) arguments: Vec<String>,
    /// Additional environment variables.
    pub(crate) environment: Vec<(String, String)>,
}

impl Line {
    /// A program with its arguments.
    pub(crate) fn new<A: Into<String>>(program: impl Into<String>, arguments: impl IntoIterator<Item = A>) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self { program: program.into(), arguments, environment: Vec::new() }
    }

    /// The same command on these processors only; on all if there are none.
    pub(crate) fn on(self, cpus: &[u16]) -> Self {
        if cpus.is_empty() {
            return self;
        }
        let cpus = cpus.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        let pinned = ["-c".to_owned(), cpus, self.program].into_iter().chain(self.arguments);
        Self { environment: self.environment, ..Self::new("taskset", pinned) }
    }

    /// A line for the shell.
    pub(crate) fn shell(line: impl Into<String>) -> Self {
        Self::new("/bin/sh", ["-c".to_owned(), line.into()])
    }
}

/// Paths of this project's programs on a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Programs {
    /// This program, which also is the lab's helper, the agent of a client and the load of a fault.
    pub(crate) verify: PathBuf,
    /// The broker; empty if it is not installed.
    pub(crate) tenbin: PathBuf,
}

impl Programs {
    /// The command line of this program with `arguments`.
    pub(crate) fn verify<A: Into<String>>(&self, arguments: impl IntoIterator<Item = A>) -> Line {
        Line::new(self.verify.display().to_string(), arguments)
    }

    /// This program as the helper of a lab.
    #[cfg(target_os = "linux")]
    pub(crate) fn helper(&self) -> tenbin_lab::Helper {
        tenbin_lab::Helper::new(self.verify.display().to_string(), &["guard"])
    }
}
