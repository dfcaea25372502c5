//! The command line.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::chooser::Chooser;

/// Arguments of `tenbin simulate`.
#[derive(Debug, Clone, Args)]
#[command(arg_required_else_help = true)]
pub struct SimulateArgs {
    /// Scenarios (TOML); those of the project are in scenarios/
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) how: How,
}

/// How it is simulated and shown.
#[derive(Debug, Clone, Args)]
pub(crate) struct How {
    /// Policies to compare, separated by commas; central_queue is the bound [default: the most telling ones]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) policy: Vec<Chooser>,

    /// Seed of the first run; the same seed always gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Runs that are put together, each with the next seed [default: what the scenario says]
    #[arg(long, value_name = "K")]
    pub(crate) seeds: Option<NonZeroU32>,

    /// How the figures are printed
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// How the figures are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// One JSON document.
    Json,
}
