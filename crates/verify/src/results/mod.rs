//! Files of a run's results: `events.jsonl`, `seconds.csv`, samples and `verdict.json`.

mod events;
mod samples;
mod seconds;
mod verdict;

pub use events::{Event, EventLog, Happening};
pub(crate) use samples::{InstanceSample, LinkSample, MACHINE, Sample, SocketSample, read as read_samples};
pub(crate) use seconds::{Row, read as read_seconds, write as write_seconds};
pub use verdict::{PhaseTime, RunVerdict, VariantVerdict, Verdict};
