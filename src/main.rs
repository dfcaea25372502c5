//! The command `tenbin`: parses arguments and calls a crate.
#![forbid(unsafe_code)]

#[cfg(feature = "admin")]
mod admin;
#[cfg(feature = "bridge")]
mod bridge;
mod broker;
#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "admin")]
mod explain;
mod gateway;
mod listeners;
mod logging;
mod mqtt;
mod mqtt_tls;
mod passwd;
mod service_manager;
mod sessions;
mod sn;
mod store;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{self, ExitCode};

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use tenbin_kit::cli::{self, About};
use tenbin_kit::programs::Program;

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
    /// Each client has its own TCP connection to the broker.
    Gateway(gateway::GatewayArgs),
    /// Passes messages between two brokers, until SIGINT or SIGTERM.
    ///
    /// The broker runs those of its bridges itself that have no key `local`.
    #[cfg(feature = "bridge")]
    Bridge(bridge::BridgeArgs),
    /// Shows and changes a running broker over its admin HTTP.
    ///
    /// Changes need an operator's token: --token-file, --token, TENBIN_TOKEN, or the local operator's, which the broker
    /// keeps in its data directory while it runs.
    #[cfg(feature = "admin")]
    Admin(admin::AdminArgs),
    /// Runs, shows and changes clusters: several nodes as one broker, of which one takes over when another is lost.
    #[cfg(feature = "cluster")]
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Writes password files.
    Passwd(passwd::PasswdArgs),
    /// Inspects a data directory, and removes sessions from it.
    ///
    /// No broker can use the directory at the same time, and only `prune` changes it. Exit codes: 0 if all is fine, 1 if data
    /// is damaged, 2 if data cannot be read or was written by another version, or if a broker uses the directory.
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Lists and removes the sessions in a data directory that no broker uses.
    ///
    /// Exit code 2 if the directory cannot be used, or there is no such session.
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// Publishes a message, or a message for each line of standard input.
    ///
    /// At QoS 1 and 2 it waits for the acknowledgements. Exit code 1 if the broker cannot be reached, or refuses a message.
    Pub(mqtt::PublishArgs),
    /// Prints the messages of subscriptions, until SIGINT or SIGTERM.
    ///
    /// With --group it is a member of a share group. With --service it is a worker: it takes so long for each message, one after
    /// the other, reports its load, and acknowledges a message when it is done with it.
    Sub(mqtt::SubscribeArgs),
    /// Publishes, subscribes and finds gateways as an MQTT-SN 1.2 client over UDP.
    #[command(subcommand)]
    Sn(sn::SnCommand),
    /// Shows the last decisions of a running broker's share group, with their reasons.
    #[cfg(feature = "admin")]
    Explain(explain::ExplainCommand),
    /// Shows the last decisions of a running broker's share group, with their reasons.
    #[cfg(not(feature = "admin"))]
    Explain(tenbin_explain::ExplainArgs),
    /// Starts the load generator, the program tenbin-loadgen; `tenbin loadgen --help` shows its commands.
    #[command(disable_help_flag = true)]
    Loadgen(ProgramArgs),
    /// Starts the simulator, the program tenbin-simulate; `tenbin simulate --help` shows its options.
    #[command(disable_help_flag = true)]
    Simulate(ProgramArgs),
    /// Starts the fault verification, the program tenbin-verify; `tenbin verify --help` shows its commands.
    #[command(disable_help_flag = true)]
    Verify(ProgramArgs),
    #[command(flatten)]
    About(About),
}

/// The command line that completions and manual pages describe. The other programs have manual pages themselves, with the
/// names that pages of these subcommands would have.
fn described(about: &About) -> clap::Command {
    let others =
        [Program::Loadgen, Program::Simulate, Program::Verify].into_iter().filter(|_| matches!(about, About::Man(_)));
    let subcommand = |program: Program| program.name().trim_start_matches("tenbin-");
    let see = "See also: tenbin-loadgen(1), tenbin-simulate(1), tenbin-verify(1)";
    let command = if matches!(about, About::Man(_)) { Cli::command().after_help(see) } else { Cli::command() };
    others.fold(command, |command, program| command.mut_subcommand(subcommand(program), |other| other.hide(true)))
}

/// Arguments of another program of the project.
#[derive(Debug, Args)]
struct ProgramArgs {
    /// Arguments of that program
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Becomes another program of the project: one beside this program's file, else one in `PATH`.
///
/// # Errors
/// The program is not installed, or cannot be started.
fn become_program(program: Program, arguments: &ProgramArgs) -> Result<(), String> {
    let path = program.find().map_err(|error| error.to_string())?;
    let error = process::Command::new(&path).args(&arguments.arguments).exec();
    Err(format!("cannot start {}: {error}", path.display()))
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Broker(arguments) => broker::run(&arguments).map_err(|error| error.to_string()),
        Command::Gateway(arguments) => gateway::run(&arguments).map_err(|error| error.to_string()),
        #[cfg(feature = "bridge")]
        Command::Bridge(arguments) => bridge::run(&arguments).map_err(|error| error.to_string()),
        #[cfg(feature = "admin")]
        Command::Admin(arguments) => admin::run(arguments).map_err(|error| error.to_string()),
        #[cfg(feature = "cluster")]
        Command::Cluster(command) => cluster::run(command).map_err(|error| error.to_string()),
        Command::Passwd(arguments) => passwd::run(&arguments).map_err(|error| error.to_string()),
        Command::Store(command) => return store::run(&command),
        Command::Sessions(command) => return sessions::run(command),
        Command::Pub(arguments) => mqtt::publish(&arguments).map_err(|error| error.to_string()),
        Command::Sub(arguments) => mqtt::subscribe(&arguments).map_err(|error| error.to_string()),
        Command::Sn(command) => sn::run(&command).map_err(|error| error.to_string()),
        #[cfg(feature = "admin")]
        Command::Explain(arguments) => explain::run(arguments),
        #[cfg(not(feature = "admin"))]
        Command::Explain(arguments) if arguments.is_over_tls() => {
            Err("--tls needs a build with the feature `admin`".to_owned())
        }
        #[cfg(not(feature = "admin"))]
        Command::Explain(arguments) => {
            tenbin_explain::run(&arguments, tenbin_explain::Transport::tcp()).map_err(|error| error.to_string())
        }
        Command::Loadgen(arguments) => become_program(Program::Loadgen, &arguments),
        Command::Simulate(arguments) => become_program(Program::Simulate, &arguments),
        Command::Verify(arguments) => become_program(Program::Verify, &arguments),
        Command::About(command) => cli::about(&command, described(&command)).map_err(|error| error.to_string()),
    };
    cli::end("tenbin", done)
}
