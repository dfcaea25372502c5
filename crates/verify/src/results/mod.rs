//! Files of a run's results: `events.jsonl`, `seconds.csv` and `verdict.json`.

mod events;
mod seconds;
mod verdict;

pub use events::{Event, EventLog, Happening};
pub(crate) use seconds::{Row, read as read_seconds, write as write_seconds};
pub use verdict::{PhaseTime, RunVerdict, VariantVerdict, Verdict};
