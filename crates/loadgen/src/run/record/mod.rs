//! Numbers for all messages of a run, and an exact record of each message's fate.
//!
//! ```text
//! Plan ─► Layout: streams, receivers, units
//!      │
//! a driver thread ─► Recorder ─► Part ┐
//! another         ─► Recorder ─► Part ┴► one Part ─► Outcome
//! ```
//!
//! - A *stream* is the messages of one publisher to one of its topics, with the sequence numbers 0, 1, 2, …
//! - A *receiver* is a subscriber.
//! - A *unit* is the members of an audience that connect to one broker. A share group gets each message of that
//!   broker's matching streams once; in any other unit, each member gets it once.
//! - A *lane* is a stream as one receiver gets it: the set of sequence numbers that arrived.
//!
//! Independent brokers do not forward to each other, so that a stream matches a unit only if both are at the same
//! broker. In one system each audience is one unit.

/// Implements `+=` for a type of counts. Flags behind `;` are true if both are.
macro_rules! sums {
    ($of:ident: $($count:ident),* $(; $($flag:ident),*)?) => {
        impl std::ops::AddAssign for $of {
            fn add_assign(&mut self, other: Self) {
                let Self { $($count,)* $($($flag,)*)? } = other;
                $(self.$count += $count;)*
                $($(self.$flag &= $flag;)*)?
            }
        }
    };
}

mod check;
mod due_index;
#[cfg(test)]
pub(crate) mod example;
mod growing_set;
mod lane;
mod latencies;
mod layout;
mod ledger;
#[cfg(test)]
mod ledger_tests;
#[cfg(test)]
mod model;
mod numbered;
mod part;
mod recorder;
mod sequence_set;
mod summary;
mod tally;
mod ticks;
mod trace;
mod verdict;

pub use layout::{Layout, Receiver};
pub use ledger::{Ledger, LedgerCounts};
pub use part::Part;
pub use recorder::{Came, Recorder, Unsent};
pub use ticks::Ticks;
pub(crate) use trace::{Trace, WorkRecord};
