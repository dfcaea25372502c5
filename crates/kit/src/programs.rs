//! The programs of the project, and where one finds another.

use std::path::{Path, PathBuf};
use std::{env, fmt};

/// A program of the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The broker and the commands of its operators.
    Tenbin,
    /// The load generator.
    Loadgen,
    /// The simulator of share groups.
    Simulate,
    /// The fault verification.
    Verify,
}

impl Program {
    /// Name of the program's file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tenbin => "tenbin",
            Self::Loadgen => "tenbin-loadgen",
            Self::Simulate => "tenbin-simulate",
            Self::Verify => "tenbin-verify",
        }
    }

    /// Command that builds the program.
    const fn build(self) -> &'static str {
        match self {
            Self::Tenbin => "cargo build --release",
            Self::Loadgen => "cargo build --release -p tenbin-loadgen",
            Self::Simulate => "cargo build --release -p tenbin-simulator",
            Self::Verify => "cargo build --release -p tenbin-verify",
        }
    }

    /// Returns the path of the program: beside the running program's file, else in a directory of `PATH`.
    ///
    /// # Errors
    /// The program is in neither place.
    pub fn find(self) -> Result<PathBuf, NotFound> {
        let beside = env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
        let directories = env::var_os("PATH").unwrap_or_default();
        let found = beside.clone().into_iter().chain(env::split_paths(&directories));
        let mut found = found.map(|directory| directory.join(self.name())).filter(|path| path.is_file());
        found.next().ok_or(NotFound { program: self, beside: beside.unwrap_or_default() })
    }
}

/// Error: a program is not installed.
#[derive(Debug, Clone)]
pub struct NotFound {
    program: Program,
    /// Directory of the running program.
    beside: PathBuf,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, beside } = self;
        let (name, build) = (program.name(), program.build());
        write!(f, "the program {name} is neither in {} nor in PATH; `{build}` builds it", beside.display())
    }
}

impl std::error::Error for NotFound {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_directory_and_command() {
        let error = NotFound { program: Program::Verify, beside: "/usr/bin".into() }.to_string();
        assert_eq!(
            error,
            "the program tenbin-verify is neither in /usr/bin nor in PATH; `cargo build --release -p tenbin-verify` builds it"
        );
    }
}
