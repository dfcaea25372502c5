use std::io;

use crate::scenario::ScenarioError;

/// Reason why a simulation has no result. Each displays as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// A scenario cannot be used.
    #[error("{0}")]
    Scenario(#[from] ScenarioError),
    /// Results could not be printed.
    #[error("cannot print the results: {0}")]
    Print(#[from] io::Error),
}
