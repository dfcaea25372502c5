//! The programs of the project, and where one finds another.

use std::os::unix::fs::PermissionsExt as _;
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

    /// Debian package of the program.
    const fn package(self) -> &'static str {
        match self {
            Self::Tenbin => "tenbin",
            Self::Loadgen | Self::Simulate | Self::Verify => "tenbin-tools",
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
    /// Neither place has an executable file of this name.
    pub fn find(self) -> Result<PathBuf, NotFound> {
        let beside = env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned)).unwrap_or_default();
        let path = env::var_os("PATH").unwrap_or_default();
        let found = self.find_in(std::iter::once(beside.clone()).chain(env::split_paths(&path)));
        // Processes with other directories start it too.
        found.and_then(|path| std::path::absolute(path).ok()).ok_or(NotFound { program: self, beside })
    }

    /// The first executable file of this name. An empty directory would be the current one.
    fn find_in(self, directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
        let is_executable =
            |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        let directories = directories.filter(|directory| !directory.as_os_str().is_empty());
        directories.map(|directory| directory.join(self.name())).find(is_executable)
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
        let (name, build, package) = (program.name(), program.build(), program.package());
        let beside = if beside.as_os_str().is_empty() { "its directory".into() } else { beside.to_string_lossy() };
        write!(
            f,
            "the program {name} is neither in {beside} nor in PATH; install the package {package}, or build it with `{build}`"
        )
    }
}

impl std::error::Error for NotFound {}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn directories_and_plain_files_are_no_programs() {
        let parts = ["directory", "plain", "program"].map(|_| tempfile::tempdir().expect("ours to write"));
        let [directory, plain, program] = parts.each_ref().map(|part| part.path().join("tenbin-verify"));
        fs::create_dir(&directory).expect("a directory");
        fs::write(&plain, "").expect("a file");
        fs::write(&program, "").expect("a file");
        fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).expect("our file");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our file");
        let all = || parts.iter().map(|part| part.path().to_owned());
        assert_eq!(Program::Verify.find_in(all()), Some(program));
        assert_eq!(Program::Verify.find_in(all().take(2)), None);
        assert_eq!(Program::Verify.find_in([PathBuf::new()].into_iter()), None);
    }

    #[test]
    fn error_names_directory_and_command() {
        let error = NotFound { program: Program::Verify, beside: "/usr/bin".into() }.to_string();
        assert_eq!(
            error,
            "the program tenbin-verify is neither in /usr/bin nor in PATH; install the package tenbin-tools, or build it with \
             `cargo build --release -p tenbin-verify`"
        );
    }
}
