//! Files of a run's results: `events.jsonl`, `seconds.csv`, samples and `verdict.json`.

mod events;
mod samples;
mod seconds;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

pub use events::{Event, EventLog, Happening};
pub(crate) use samples::{InstanceSample, LinkSample, MACHINE, RoleSample, Sample, SocketSample, read as read_samples};
pub(crate) use seconds::{Details, Row, read as read_seconds, write as write_seconds};
pub use verdict::{PhaseTime, RunVerdict, VariantVerdict, Verdict};

/// Directory of one run within the results.
pub(crate) fn directory_of(results: &Path, variant: &str, number: u32) -> PathBuf {
    results.join(if number == 1 { variant.to_owned() } else { format!("{variant}-{number}") })
}

/// Creates a directory of results.
pub(crate) fn create(directory: &Path) -> Result<(), Error> {
    fs::create_dir_all(directory).map_err(|error| Error::Results { path: directory.to_owned(), error })
}

/// Writes a file of the results.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<(), Error> {
    fs::write(path, content).map_err(|error| Error::Results { path: path.to_owned(), error })
}
