//! The command `tenbin`: parses arguments and calls a crate.
#![forbid(unsafe_code)]

#[cfg(feature = "admin")]
mod admin;
mod broker;
mod gateway;
mod generate;
mod listeners;
mod logging;
mod passwd;
mod service_manager;
mod sessions;
mod sn;
mod store;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// MQTT 5.0 and 3.1.1 broker that gives each shared message to the worker that will finish it first.
#[derive(Debug, Parser)]
#[command(name = "tenbin", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the broker.
    Broker(broker::BrokerArgs),
    /// Lets MQTT-SN 1.2 clients speak to any MQTT broker, until SIGINT or SIGTERM.
    ///
    /// Each client has its own TCP connection to the broker, or shares some with others (`--aggregate`).
    Gateway(gateway::GatewayArgs),
    /// Shows and changes a running broker over its admin HTTP.
    ///
    /// Changes need an operator's token: --token, TENBIN_TOKEN, or the local operator's, which the broker keeps in its
    /// data directory while it runs.
    #[cfg(feature = "admin")]
    Admin(admin::AdminArgs),
    /// Writes password files.
    Passwd(passwd::PasswdArgs),
    /// Inspects a data directory, and removes sessions from it.
    ///
    /// No broker can use the directory meanwhile, and only `prune` changes it. Exit codes: 0 if all is fine, 1 if data
    /// is damaged, 2 if data cannot be read or was written by another version, or if a broker uses the directory.
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Lists and removes the sessions in a data directory that no broker uses.
    ///
    /// Exit code 2 if the directory cannot be used, or there is no such session.
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// Publishes, subscribes and finds gateways as an MQTT-SN 1.2 client over UDP.
    #[command(subcommand)]
    Sn(sn::SnCommand),
    /// Puts loads on brokers and measures them.
    #[command(subcommand)]
    Loadgen(tenbin_loadgen::Command),
    /// Verifies how a publish/subscribe system behaves under faults.
    #[command(subcommand)]
    Verify(tenbin_verify::Command),
    /// Shows the last decisions of a running broker's share group, with their reasons.
    Explain(tenbin_explain::ExplainArgs),
    /// Compares policies of share groups in virtual time.
    Simulate(tenbin_simulator::SimulateArgs),
    /// Prints a completion script for a shell.
    Completions(generate::CompletionsArgs),
    /// Writes the manual pages of all commands.
    Man(generate::ManArgs),
}

/// Drivers of all protocols that `loadgen run` and `loadgen agent` can select.
fn drivers() -> tenbin_loadgen::Drivers {
    tenbin_loadgen::drivers::all()
}

fn verify(command: &tenbin_verify::Command) -> ExitCode {
    let setup = tenbin_verify::Setup::this_program(drivers());
    match tenbin_verify::run(command, &setup, &mut std::io::stdout().lock()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "tenbin: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Broker(arguments) => broker::run(&arguments).map_err(|error| error.to_string()),
        Command::Gateway(arguments) => gateway::run(&arguments).map_err(|error| error.to_string()),
        #[cfg(feature = "admin")]
        Command::Admin(arguments) => admin::run(arguments).map_err(|error| error.to_string()),
        Command::Passwd(arguments) => passwd::run(&arguments).map_err(|error| error.to_string()),
        Command::Store(command) => return store::run(&command),
        Command::Sessions(command) => return sessions::run(command),
        Command::Sn(command) => sn::run(&command).map_err(|error| error.to_string()),
        Command::Loadgen(command) => tenbin_loadgen::run(command, &drivers()).map_err(|error| error.to_string()),
        Command::Verify(command) => return verify(&command),
        Command::Explain(arguments) => tenbin_explain::run(&arguments).map_err(|error| error.to_string()),
        Command::Simulate(arguments) => tenbin_simulator::run(&arguments).map_err(|error| error.to_string()),
        Command::Completions(arguments) => {
            generate::completions(&arguments, Cli::command()).map_err(|error| error.to_string())
        }
        Command::Man(arguments) => generate::manual(&arguments, Cli::command()).map_err(|error| error.to_string()),
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
