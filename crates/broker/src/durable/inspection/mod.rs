//! What a data directory holds, for people: is it whole, and what is in it? Nothing in it is changed.
//!
//! The directory has to be nobody's: a broker that uses it, or wants to, is kept out meanwhile, or keeps us out.

mod check;
mod dump;
mod lines;
mod records;

use std::fmt;
use std::io;

use tenbin_store::DirectoryError;
use tenbin_store::state;

pub use check::check;
pub use dump::{DumpOptions, dump};

/// What was found in a data directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Things that are not as they were written: a broker would refuse the directory, or miss something.
    pub damaged: u64,
    /// Things that cannot be judged: they cannot be read, or another version wrote them.
    pub unreadable: u64,
}

/// Why a data directory was not looked at; the text is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum InspectionError {
    /// A broker uses it, or it is none, or cannot be read.
    Directory(DirectoryError),
    /// Nobody takes what is found.
    Output(io::Error),
}

impl Found {
    /// Whether nothing is wrong.
    pub fn is_fine(&self) -> bool {
        *self == Self::default()
    }

    fn count(&mut self, error: &state::OpenError) {
        match error {
            state::OpenError::Damaged(..) => self.damaged += 1,
            _ => self.unreadable += 1,
        }
    }
}

impl fmt::Display for InspectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(error) => error.fmt(f),
            Self::Output(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InspectionError {}

impl From<DirectoryError> for InspectionError {
    fn from(error: DirectoryError) -> Self {
        Self::Directory(error)
    }
}

impl From<io::Error> for InspectionError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
