//! Numbers for everything that is sent and received, and an exact account of what became of each message.
//!
//! ```text
//!   Plan ─► Layout: streams, receivers, units
//!                       │
//!   a driver thread ─► Recorder ─► Part ┐
//!   another         ─► Recorder ─► Part ┴► one Part ─► Outcome
//! ```
//!
//! A *stream* is what one publisher sends to one of its topics: its messages have the sequence numbers 0, 1, 2, … A
//! *receiver* is a subscriber. A *unit* is what of an audience is connected to one broker: a share group gets each
//! message of that broker's matching streams once, the members of any other unit once each. A *lane* is a stream as one
//! receiver gets it: the set of sequence numbers that came. Brokers know nothing of each other, so that a stream
//! matches a unit only where both are at the same broker.

mod base64;
mod check;
#[cfg(test)]
pub(crate) mod example;
mod growing_set;
mod lane;
mod latencies;
mod layout;
#[cfg(test)]
mod model;
mod numbered;
mod part;
mod reckoning;
mod recorder;
mod records;
mod sequence_set;
mod tally;
mod verdict;

pub use layout::{Layout, Receiver};
pub use part::Part;
pub use recorder::{Came, Recorder, Unsent};
