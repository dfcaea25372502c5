//! Load generator for MQTT brokers, with a verdict on each message.
//!
//! * `scenario` repeats the published experiments. Two are on share groups: a publisher on a fixed schedule, three
//!   workers of known speed, and the time that each message waits until its worker takes it. One is on slow receivers
//!   and their effect on others.
//! * `run` puts any load on any broker and reports the fate of each message; `pattern` and `compare` do so with
//!   several.
//! * `throughput` measures the message rate of any MQTT broker, and its cost in processor time.
//!
//! It talks to brokers only over sockets. Without a given broker it starts the program's own `broker` subcommand.
#![forbid(unsafe_code)]

mod args;
mod child_broker;
mod error;
mod interrupt;
mod number;
mod progress;
mod report;
pub mod run;
mod scenario;
pub mod statistics;
mod sweep;
mod target;
mod values;

use std::io::{self, Write};

pub use args::{Command, ScenarioArgs, ScenarioCommand};
pub use error::LoadgenError;
pub use run::Drivers;
pub use scenario::SlowArgs;
pub use sweep::{CompareArgs, PatternArgs, ThroughputArgs};

/// Runs a subcommand to its end, on its own runtime; results go to standard output, progress to standard error.
///
/// `drivers` are those that `run` and `agent` can select; all other subcommands run over MQTT.
///
/// # Errors
/// Contradictory arguments, a broker that cannot be reached or dies, files that cannot be written, an interrupt. Each
/// error is one line.
pub fn run(command: Command, drivers: &Drivers) -> Result<(), LoadgenError> {
    run_to(command, drivers, &mut io::stdout().lock())
}

/// As [`run()`], with the results written to `out`.
///
/// # Errors
/// As [`run()`].
pub fn run_to(command: Command, drivers: &Drivers, out: &mut dyn Write) -> Result<(), LoadgenError> {
    // One thread moves all bytes of the load, to leave the other processors to the broker.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LoadgenError::Runtime)?;
    let result = match command {
        Command::Scenario(command) => runtime.block_on(scenario::run_command(*command, out)),
        Command::Run(args) => match &args.find_rate {
            Some(bound) if !args.self_test => runtime.block_on(sweep::find_rate(&args, drivers, bound, out)),
            _ => runtime.block_on(run::command::run(*args, drivers, out)),
        },
        Command::Pattern(args) => runtime.block_on(sweep::pattern(args, out)),
        Command::Compare(args) => runtime.block_on(sweep::compare(*args, out)),
        Command::Throughput(args) => runtime.block_on(sweep::throughput(args, out)),
        Command::Agent(args) => runtime.block_on(run::agents::serve(args, drivers, out)),
    };
    runtime.shutdown_background();
    result
}
