//! Description of a process to start.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A program to start in a machine, with its arguments. It inherits the embedding program's environment, with additions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) stdout: Option<PathBuf>,
    pub(crate) stderr: Option<PathBuf>,
    /// Socket whose stream becomes standard input and output.
    pub(crate) stream: Option<PathBuf>,
}

impl Command {
    /// A program by path, or by its name in `PATH`.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            stdout: None,
            stderr: None,
            stream: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the working directory. Default: the embedding program's directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Appends standard output to a file, which is created if absent. Default: it is discarded.
    #[must_use]
    pub fn stdout(mut self, file: impl Into<PathBuf>) -> Self {
        self.stdout = Some(file.into());
        self
    }

    /// Appends standard error to a file, which is created if absent. Default: it is discarded.
    #[must_use]
    pub fn stderr(mut self, file: impl Into<PathBuf>) -> Self {
        self.stderr = Some(file.into());
        self
    }
}
