//! Load generator for MQTT brokers, with a verdict on each message.
//!
//! * `scenario` repeats the published experiments. Two are on share groups: a publisher on a fixed schedule, three
//!   workers of known speed, and the time that each message waits until its worker takes it. One is on slow receivers
//!   and their effect on others.
//! * `run` puts any load on any broker and reports the fate of each message; `pattern` and `compare` do so with
//!   several.
//!
//! As a library it runs loads in the hands of another program: [`run::RunningLoad`] connects the clients of a
//! [`run::Plan`], and gives a [`run::Outcome`] and a [`run::Ledger`]. Clients of other protocols are [`run::Driver`]s.
//! [`report`] has the pieces of a page.
//!
//! ```no_run
//! use std::time::Duration;
//! use tenbin_loadgen::run::{Audience, Broker, Drivers, OnLost, Pace, Plan, Publishers, RunningLoad, Schedule};
//!
//! # async fn example() -> Result<(), tenbin_loadgen::LoadgenError> {
//! let pace = Pace::Open { interval: Duration::from_millis(1) };
//! let publishers = Publishers { qos: 1, pace, ..Publishers::new(1, "verify/{publisher}") };
//! let audience = Audience { qos: 1, ..Audience::new("all", 2, "verify/+") };
//! let brokers = vec![Broker::new("one", "10.0.0.5", 1883)];
//! let plan = Plan {
//!     on_lost: OnLost::Reconnect { first: Duration::from_millis(100), most: Duration::from_secs(2) },
//!     schedule: Schedule { time_limit: Duration::from_secs(30), ..Schedule::default() },
//!     ..Plan::new(7, brokers, publishers, vec![audience])
//! };
//! let mut load = RunningLoad::prepare(&plan, &Drivers::mqtt(), Vec::new()).await?;
//! let start_ns = load.start().await?;
//! while let Some(status) = load.tick().await? {
//!     // Look at the progress; begin and end faults.
//!     let _overdue = status.expected.saturating_sub(status.received);
//! }
//! let finished = load.finish().await?;
//! let ledger = finished.ledger.expect("payloads have a stamp");
//! let during = ledger.window(start_ns + 10_000_000_000..start_ns + 20_000_000_000);
//! println!("{} lost, p99 {:?}", during.lost, finished.outcome.latency.map(|latency| latency.p99));
//! # Ok(())
//! # }
//! ```
//!
//! It talks to brokers only over sockets. Without a given broker it starts the program `tenbin`.
#![forbid(unsafe_code)]

mod child_broker;
pub mod drivers;
mod error;
mod interrupt;
pub mod number;
mod progress;
pub mod report;
pub mod run;
mod scenario;
pub mod statistics;
mod sweep;
mod target;
mod utc;
mod values;

use std::io::{self, Write};

use clap::Subcommand;
use interrupt::unless_interrupted;

pub use error::LoadgenError;
pub use run::{AgentArgs, Drivers, RunArgs};
pub use scenario::{ScenarioArgs, ScenarioCommand, SlowArgs};
pub use sweep::{CompareArgs, PatternArgs};

/// Subcommands of the load generator.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Repeat a published experiment, on share groups or on slow receivers, and print its figures beside the published
    /// ones
    Scenario(Box<ScenarioCommand>),
    /// Put any load on any broker and report the fate of each message; reads MQTTLoader's configuration
    Run(Box<RunArgs>),
    /// Measure the four patterns: one broker or several, with one subscriber or a share group on each
    Pattern(PatternArgs),
    /// Put the same load on several brokers in turn, or on this project's broker with several policies
    Compare(Box<CompareArgs>),
    /// Serve `run --agents` of another machine: generate its load from this one
    Agent(AgentArgs),
}

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
    let result = runtime.block_on(async {
        match command {
            Command::Scenario(command) => unless_interrupted(scenario::run_command(*command, out)).await,
            Command::Run(args) => match &args.find_rate {
                Some(bound) if !args.self_test => {
                    unless_interrupted(sweep::find_rate(&args, drivers, bound, out)).await
                }
                _ => run::command::run(*args, drivers, out).await,
            },
            Command::Pattern(args) => unless_interrupted(sweep::pattern(&args, out)).await,
            Command::Compare(args) => unless_interrupted(sweep::compare(&args, out)).await,
            Command::Agent(args) => run::agents::serve(args, drivers, out).await,
        }
    });
    runtime.shutdown_background();
    result
}
