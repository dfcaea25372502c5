//! `tenbin sessions`.

use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use tenbin_broker::ConfigError;
use tenbin_broker::session_administration::{AdministrationError, SessionFilter, list_sessions, remove_sessions};
use tenbin_kit::cli;

/// Exit code for a directory that cannot be used: the same as for wrong arguments.
pub(crate) const CANNOT_BE_READ: u8 = 2;

#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// Shows the sessions of a data directory, a JSON object a line.
    List {
        /// The data directory, as `tenbin broker --data` has it.
        directory: PathBuf,
    },
    /// Removes sessions with their subscriptions, messages and Wills; prints them, a JSON object a line.
    Remove {
        /// The data directory, as `tenbin broker --data` has it.
        directory: PathBuf,
        /// Client Identifiers of the sessions. If one of them has no session, nothing is removed.
        #[arg(required = true)]
        client_ids: Vec<String>,
    },
}

/// Why sessions were not listed or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionsError {
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Administration(#[from] AdministrationError),
}

pub(crate) fn run(command: SessionsCommand) -> ExitCode {
    let mut out = BufWriter::new(cli::out());
    let done = match command {
        SessionsCommand::List { directory } => list_sessions(&directory, &SessionFilter::default(), &mut out),
        SessionsCommand::Remove { directory, client_ids } => {
            let filter = SessionFilter { client_ids, ..SessionFilter::default() };
            remove_sessions(&directory, &filter, &mut out)
        }
    };
    let done = done.and_then(|_| out.flush().map_err(AdministrationError::Output));
    finish(done.map_err(SessionsError::from))
}

/// Prints the error, if any, and returns the exit code.
pub(crate) fn finish(done: Result<(), SessionsError>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the pipe has closed it.
        Err(SessionsError::Administration(AdministrationError::Output(error)))
            if error.kind() == ErrorKind::BrokenPipe =>
        {
            ExitCode::SUCCESS
        }
        Err(error) => cli::fail("tenbin", &error, CANNOT_BE_READ),
    }
}
