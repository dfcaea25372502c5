//! Command lines: manual pages, completions, and the end of a program.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command, Subcommand};
use clap_complete::Shell;

use crate::printable::{Printable, printable_lines};

/// Commands about the program itself.
#[derive(Debug, Clone, Subcommand)]
pub enum About {
    /// Prints a completion script for a shell.
    Completions(CompletionsArgs),
    /// Writes the manual pages of all commands.
    Man(ManArgs),
}

/// Prints a completion script for a shell on standard output.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// Shell that will read the script
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Writes a manual page for each command, PROGRAM.1 and PROGRAM-*.1.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Directory for the pages; it is created if missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes the script or the pages of `program`.
///
/// # Errors
/// Standard output, the directory or a page cannot be written; the text names the directory.
pub fn about(about: &About, mut program: Command) -> io::Result<()> {
    match about {
        About::Completions(CompletionsArgs { shell }) => {
            let (name, mut script) = (program.get_name().to_owned(), Vec::new());
            clap_complete::generate(*shell, &mut program, name, &mut script);
            io::stdout().write_all(&script)
        }
        About::Man(ManArgs { directory }) => {
            let named = |error| io::Error::other(format!("{}: {error}", directory.display()));
            fs::create_dir_all(directory).map_err(named)?;
            clap_mangen::generate_to(program, directory).map_err(named)
        }
    }
}

/// Prints the error of a program, if there is one, to standard error; returns the program's exit code.
pub fn end<E: Display>(program: &str, result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(program, &error, 1),
    }
}

/// Prints an error to standard error, for people, not for the log; returns the exit code.
pub fn fail(program: &str, error: &dyn Display, code: u8) -> ExitCode {
    say(program, error);
    ExitCode::from(code)
}

/// Prints a line for people to standard error.
pub fn say(program: &str, line: &dyn Display) {
    // Fails if nothing reads standard error.
    let _ = writeln!(io::stderr(), "{program}: {}", printable_lines(&line.to_string()));
}

/// Standard output for texts of others: of peers, of files and of directories.
pub fn out() -> Printable<io::StdoutLock<'static>> {
    Printable::new(io::stdout().lock())
}
