//! The program `tenbin-loadgen`: parses arguments and calls the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tenbin_kit::cli::{self, About};

/// Puts loads on brokers and measures them.
#[derive(Debug, Parser)]
#[command(name = "tenbin-loadgen", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Load(tenbin_loadgen::Command),
    #[command(flatten)]
    About(About),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Load(command) => {
            tenbin_loadgen::run(command, &tenbin_loadgen::drivers::all()).map_err(|error| error.to_string())
        }
        Command::About(command) => cli::about(&command, Cli::command()).map_err(|error| error.to_string()),
    };
    cli::end("tenbin-loadgen", done)
}
