//! The program `tenbin-loadgen`: parses arguments and calls the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
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
    let arguments = Cli::try_parse().unwrap_or_else(|error| with_hint(error).exit());
    let done = match arguments.command {
        Command::Load(command) => {
            tenbin_loadgen::run(command, &tenbin_loadgen::drivers::all()).map_err(|error| error.to_string())
        }
        Command::About(command) => cli::about(&command, Cli::command()).map_err(|error| error.to_string()),
    };
    cli::end("tenbin-loadgen", done)
}

/// Adds the successor of a removed command to the error about the command.
fn with_hint(mut error: clap::Error) -> clap::Error {
    let is_removed = |name: &ContextValue| matches!(name, ContextValue::String(name) if name == "throughput");
    if error.get(ContextKind::InvalidSubcommand).is_some_and(is_removed) {
        let hint = "the command was removed: use `tenbin-loadgen compare --closed`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_command_names_its_successor() {
        let error = |name| {
            let error = Cli::try_parse_from(["tenbin-loadgen", name, "--clients", "1"]).expect_err("no such command");
            with_hint(error).to_string()
        };
        assert!(error("throughput").contains("compare --closed"), "{}", error("throughput"));
        assert!(!error("other").contains("compare --closed"));
    }
}
