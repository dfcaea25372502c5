//! Simulation of share groups in virtual time.
//!
//! The real [balancer](tenbin_balancer) chooses, as in the broker. Workers, publishers and the network are simulated: a
//! run of fifteen seconds takes a few milliseconds, and the same seed always gives the same figures. All policies of a
//! comparison get the same messages at the same instants, with the same work.
//!
//! ```text
//!   arrivals ──► broker: Members::pick ──delay──► queue ──► threads ──► done
//!                  ▲                                │          │
//!                  └──────────── delay ◄── pings, acknowledgements
//! ```
//!
//! A [`Scenario`] is a TOML file; `docs/SIMULATOR.md` has all its keys.
#![forbid(unsafe_code)]

/// Declares an enum whose variants have names.
macro_rules! named {
    ($(#[$of:meta])* pub enum $enum:ident { $($(#[$one:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$of])*
        pub enum $enum { $($(#[$one])* $variant,)* }

        impl $enum {
            /// All of them.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name in arguments and tables.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

mod args;
mod arrivals;
mod central_queue;
mod chooser;
mod distribution;
mod error;
mod events;
mod family;
mod figures;
mod json;
mod plan;
mod rules;
mod runs;
pub mod scenario;
mod simulation;
pub mod suite;
mod table;
mod worker;

use std::{
    io::{self, Write},
    sync::Arc,
};

pub use args::SimulateArgs;
use args::{Command, Format, How};
pub use arrivals::{Arrival, Arrivals};
pub use central_queue::central_queue;
pub use chooser::Chooser;
use clap::Args as _;
pub use distribution::Distribution;
pub use error::SimulateError;
pub use figures::{Extent, Figures, Times, WorkerFigures};
pub use rules::Rival;
pub use runs::{Case, run_all};
pub use scenario::Scenario;
pub use tenbin_kit::Span;

/// The built-in policies, the caller's policies, and the random numbers of [`Arrivals::instants`].
pub use tenbin_balancer::{Choosers, Policy, Rng};

/// Name of the program.
pub const PROGRAM: &str = "tenbin-simulate";

/// Runs the command to its end and prints the results to standard output.
///
/// # Errors
/// A scenario that cannot be used, or results that cannot be printed. Each error is one line.
pub fn run(args: &SimulateArgs) -> Result<(), SimulateError> {
    run_to(args, &mut io::stdout().lock())
}

/// As [`run`], with the results written to `out`.
///
/// # Errors
/// As [`run`].
pub fn run_to(args: &SimulateArgs, out: &mut dyn Write) -> Result<(), SimulateError> {
    run_with(args, Choosers::default(), out)
}

/// As [`run_to`], with policies of the caller's own ahead of the others where scenarios of files or by number are compared.
///
/// # Errors
/// As [`run`].
pub fn run_with(args: &SimulateArgs, own: Choosers, out: &mut dyn Write) -> Result<(), SimulateError> {
    let own = Arc::new(own);
    match &args.command {
        None => {
            let scenarios = args.files.iter().map(|file| Scenario::read(file)).collect::<Result<Vec<_>, _>>()?;
            compare(&scenarios, &args.how, &own, out)
        }
        Some(Command::Random(args)) => {
            let scenarios: Vec<_> = args.numbers.iter().map(|&number| suite::random_scenario(number)).collect();
            compare(&scenarios, &args.how, &own, out)
        }
        Some(Command::Suite(args)) => suite::run(args, out),
        Some(Command::Families(args)) => suite::run_families(args, out),
        Some(Command::About(about)) => {
            let program = SimulateArgs::augment_args(clap::Command::new(PROGRAM).version(env!("CARGO_PKG_VERSION")));
            Ok(tenbin_kit::cli::about(about, program)?)
        }
    }
}

/// Runs the scenarios and prints a table for each.
fn compare(scenarios: &[Scenario], how: &How, own: &Arc<Choosers>, out: &mut dyn Write) -> Result<(), SimulateError> {
    let others = if how.policy.is_empty() { Chooser::telling() } else { how.policy.clone() };
    let choosers: Vec<_> = own.policies().map(Chooser::Policy).chain(others).collect();
    let mut cases = Case::of(scenarios, &choosers, how);
    cases.iter_mut().for_each(|case| case.own = Arc::clone(own));
    let figures = run_all(&cases);
    match how.format {
        Format::Table => {
            for (case, figures) in cases.iter().zip(&figures) {
                table::write_case(out, case, figures)?;
            }
        }
        Format::Json => {
            let cases: Vec<_> = cases.iter().zip(&figures).map(|(case, figures)| json::case(case, figures)).collect();
            writeln!(out, "{:#}", serde_json::Value::from(cases))?;
        }
    }
    Ok(out.flush()?)
}
