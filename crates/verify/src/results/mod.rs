//! Files of a run's results: `events.jsonl` and `verdict.json`.

mod events;
mod verdict;

pub use events::{Event, EventLog, Happening};
pub use verdict::{PhaseTime, RunVerdict, VariantVerdict, Verdict};
