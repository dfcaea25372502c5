//! `tenbin store`.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tenbin_broker::store_inspection::{DumpOptions, Found, InspectionError, check, dump};

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Reads all of a data directory that no broker uses, and says whether it is whole.
    Check(DirectoryArgs),
    /// Shows what a data directory holds that no broker uses, a JSON object a line.
    Dump(DumpArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DirectoryArgs {
    /// The data directory, as `tenbin broker --data` has it.
    directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    at: DirectoryArgs,
    /// Shows the messages that wait, too: topic, size, QoS and when they expire.
    #[arg(long)]
    messages: bool,
    /// Shows payloads, in Base64, of the messages that are shown: retained ones, Wills, and with --messages those that wait.
    #[arg(long)]
    payloads: bool,
}

pub(crate) fn run(command: &StoreCommand) -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let found = match command {
        StoreCommand::Check(DirectoryArgs { directory }) => check(directory, &mut out),
        StoreCommand::Dump(DumpArgs { at, messages, payloads }) => {
            dump(&at.directory, DumpOptions { messages: *messages, payloads: *payloads }, &mut out)
        }
    };
    let found = found.and_then(|found| Ok(out.flush().map(|()| found)?));
    match found {
        Ok(found) => code_of(found),
        // Whoever reads has read enough.
        Err(InspectionError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "tenbin: {error}");
            ExitCode::from(CANNOT_BE_READ)
        }
    }
}

fn code_of(found: Found) -> ExitCode {
    match found {
        found if found.is_fine() => ExitCode::SUCCESS,
        found if found.unreadable > 0 => ExitCode::from(CANNOT_BE_READ),
        _ => ExitCode::from(DAMAGED),
    }
}

const DAMAGED: u8 = 1;
/// As for wrong arguments.
const CANNOT_BE_READ: u8 = 2;
