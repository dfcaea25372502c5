//! Inspection of a data directory, for people: is it whole, and which records are in it? Nothing in it is changed.
//!
//! Needs the directory for itself: it fails while a broker uses the directory, and a broker fails to start while it runs.

mod check;
mod dump;
mod lines;

use std::io;

use tenbin_store::DirectoryError;
use tenbin_store::state;

pub use check::check;
pub use dump::{DumpOptions, dump};

/// Problems that were found in a data directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Damaged parts: a broker would refuse the directory, or lose something.
    pub damaged: u64,
    /// Parts that cannot be judged: they cannot be read, or another version wrote them.
    pub unreadable: u64,
}

/// Why a data directory was not inspected. The text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectionError {
    /// A broker uses the directory, or it is no data directory, or it cannot be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] io::Error),
}

impl Found {
    /// Whether there is no problem.
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
