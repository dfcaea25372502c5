//! Command line of `tenbin-simulate`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tenbin_kit::cli::About;

use crate::{chooser::Chooser, family::Family};

/// Arguments of `tenbin-simulate`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true, subcommand_negates_reqs = true)]
pub struct SimulateArgs {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Scenario files (TOML); the project's scenarios are in scenarios/
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) how: How,
}

/// Other simulations.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// All scenarios of the project, the goals of adaptive, and random scenarios
    Suite(SuiteArgs),
    /// Random scenarios by their seeds, as the suite names them
    Random(RandomArgs),
    /// Fresh scenarios of nineteen families: adaptive and its rivals against a clairvoyant rule; by name, of three
    /// families of work queues
    Families(FamiliesArgs),
    #[command(flatten)]
    About(About),
}

/// Arguments of `tenbin-simulate families`.
#[derive(Debug, Clone, Args)]
pub(crate) struct FamiliesArgs {
    /// Number of scenarios of each family; another --seed gives other scenarios
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub(crate) each: u32,

    /// Quality of Service: 0 or 1
    #[arg(long, value_name = "QOS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) qos: u8,

    /// Only these families, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) family: Vec<Family>,

    /// Whether workers tell the broker their concurrency
    #[arg(long, value_name = "WHO", value_enum, default_value_t = Told::AsFamily)]
    pub(crate) told: Told,

    /// Workers also report early: see `pings` in docs/SIMULATOR.md
    #[arg(long)]
    pub(crate) eager: bool,

    #[command(flatten)]
    pub(crate) how: How,
}

/// Arguments of `tenbin-simulate suite`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SuiteArgs {
    /// Number of random scenarios; another --seed gives other ones
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) random: u32,

    #[command(flatten)]
    pub(crate) how: How,
}

/// Arguments of `tenbin-simulate random`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RandomArgs {
    /// Numbers of the scenarios
    #[arg(value_name = "NUMBER", required = true)]
    pub(crate) numbers: Vec<u64>,

    #[command(flatten)]
    pub(crate) how: How,
}

/// Options of the simulation and its output.
#[derive(Debug, Clone, Args)]
pub(crate) struct How {
    /// Policies to compare, separated by commas; central_queue is the bound [default: the most telling ones]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) policy: Vec<Chooser>,

    /// Seed of the first run; the same seed always gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Runs to combine, each with the next seed [default: as in the scenario]
    #[arg(long, value_name = "K")]
    pub(crate) seeds: Option<NonZeroU32>,

    /// How the figures are printed
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// Workers that tell the broker their concurrency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Told {
    /// All workers of the families that are about told workers.
    AsFamily,
    /// All workers.
    Yes,
    /// No worker.
    No,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Table for people.
    Table,
    /// One JSON document.
    Json,
}
