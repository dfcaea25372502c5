//! The program `tenbin-verify`: parses arguments and calls the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tenbin_kit::cli::{self, About};
use tenbin_verify::Setup;

/// Verifies how a publish/subscribe system behaves under faults.
#[derive(Debug, Parser)]
#[command(name = "tenbin-verify", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Verify(tenbin_verify::Command),
    #[command(flatten)]
    About(About),
}

fn main() -> ExitCode {
    let command = match Cli::parse().command {
        Command::Verify(command) => command,
        Command::About(command) => return cli::end("tenbin-verify", cli::about(&command, Cli::command())),
    };
    let setup = Setup::installed(tenbin_loadgen::drivers::all());
    match tenbin_verify::run(&command, &setup, &mut cli::out()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => cli::fail("tenbin-verify", &error, error.exit_code()),
    }
}
