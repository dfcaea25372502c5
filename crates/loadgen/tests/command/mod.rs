//! Commands of the load generator in the test's process, and the files that they leave.

use clap::Parser;
use tempfile::TempDir;
use tenbin_loadgen::{Command, Drivers, LoadgenError};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

pub(crate) fn parse(line: &str) -> Result<Command, clap::Error> {
    Cli::try_parse_from(format!("tenbin {line}").split_whitespace()).map(|cli| cli.command)
}

/// Output and result of a command.
pub(crate) fn try_run(line: &str) -> (String, Result<(), LoadgenError>) {
    let mut out = Vec::new();
    let result = tenbin_loadgen::run_to(parse(line).expect("arguments are well-formed"), &Drivers::mqtt(), &mut out);
    (String::from_utf8(out).expect("text"), result)
}

pub(crate) fn directory() -> TempDir {
    TempDir::new().expect("a directory")
}

pub(crate) fn read(directory: &TempDir, file: &str) -> String {
    std::fs::read_to_string(directory.path().join(file)).expect(file)
}
