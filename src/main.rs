//! The command `tenbin`: parses arguments and calls a crate.
#![forbid(unsafe_code)]

mod broker;
mod logging;
mod passwd;
mod sessions;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// MQTT 5.0 and 3.1.1 broker that gives each shared message to the worker that will finish it first.
#[derive(Debug, Parser)]
#[command(name = "tenbin", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the broker.
    Broker(broker::BrokerArgs),
    /// Writes password files.
    Passwd(passwd::PasswdArgs),
    /// Looks into a data directory, and removes sessions from it.
    ///
    /// No broker gets it meanwhile, and nothing but `prune` changes anything. Ends with 0 where all is fine, with 1 where
    /// something is damaged, and with 2 where something cannot be read or was written by another version, or a broker uses the
    /// directory.
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Lists and removes the sessions in a data directory that no broker uses.
    ///
    /// Ends with 2 where the directory cannot be used, or there is no such session.
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// Loads brokers and measures them.
    #[command(subcommand)]
    Loadgen(tenbin_loadgen::Command),
    /// Shows why a share group of a running broker gave its last messages to whom.
    Explain(tenbin_explain::ExplainArgs),
    /// Compares policies of share groups in virtual time.
    Simulate(tenbin_simulator::SimulateArgs),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Broker(arguments) => broker::run(&arguments).map_err(|error| error.to_string()),
        Command::Passwd(arguments) => passwd::run(&arguments).map_err(|error| error.to_string()),
        Command::Store(command) => return store::run(&command),
        Command::Sessions(command) => return sessions::run(command),
        Command::Loadgen(command) => tenbin_loadgen::run(command).map_err(|error| error.to_string()),
        Command::Explain(arguments) => tenbin_explain::run(&arguments).map_err(|error| error.to_string()),
        Command::Simulate(arguments) => tenbin_simulator::run(&arguments).map_err(|error| error.to_string()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Errors go to people, not to the log.
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "tenbin: {error}");
            ExitCode::FAILURE
        }
    }
}
