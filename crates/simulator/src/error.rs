use std::{error::Error, fmt, io};

use crate::scenario::ScenarioError;

/// Reason why a simulation has no result. Each displays as one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum SimulateError {
    /// A scenario cannot be used.
    Scenario(ScenarioError),
    /// Results could not be printed.
    Print(io::Error),
}

impl fmt::Display for SimulateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scenario(error) => error.fmt(f),
            Self::Print(source) => write!(f, "cannot print the results: {source}"),
        }
    }
}

impl Error for SimulateError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Scenario(error) => Some(error),
            Self::Print(source) => Some(source),
        }
    }
}

impl From<ScenarioError> for SimulateError {
    fn from(error: ScenarioError) -> Self {
        Self::Scenario(error)
    }
}

impl From<io::Error> for SimulateError {
    fn from(error: io::Error) -> Self {
        Self::Print(error)
    }
}
