//! The program `tenbin-simulate`: parses arguments and calls the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use tenbin_simulator::{PROGRAM, SimulateArgs};

/// Compares policies of share groups in virtual time.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    arguments: SimulateArgs,
}

fn main() -> ExitCode {
    tenbin_kit::cli::end(PROGRAM, tenbin_simulator::run(&Cli::parse().arguments))
}
