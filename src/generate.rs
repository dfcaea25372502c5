//! `tenbin completions` and `tenbin man`.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

/// Prints a completion script for a shell on standard output.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell that will read the script
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Writes a manual page for each command, tenbin.1 and tenbin-*.1.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages; it is created if missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes the script.
pub(crate) fn completions(arguments: &CompletionsArgs, mut command: Command) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "tenbin", &mut script);
    io::stdout().write_all(&script)
}

/// Writes the pages.
///
/// # Errors
/// The directory or a page cannot be written; the text names the directory.
pub(crate) fn manual(arguments: &ManArgs, command: Command) -> io::Result<()> {
    let named = |error| io::Error::other(format!("{}: {error}", arguments.directory.display()));
    fs::create_dir_all(&arguments.directory).map_err(named)?;
    clap_mangen::generate_to(command, &arguments.directory).map_err(named)
}
