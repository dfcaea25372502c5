//! Roles of the nodes of a cluster.
//!
//! One node, the *leader*, runs the broker. A second one, the *follower*, has a copy of its directory and takes over
//! when the leader is lost. The [`Record`] names both; it is changed by compare-and-swap alone. A [`Machine`] decides
//! the role of a node: [`Input`]s go in, [`Action`]s come out.
//!
//! The crate does no I/O. It reads no clock (`now` is an argument, by any clock that goes on while the machine is
//! suspended) and no random numbers. So the same inputs always give the same actions.
//!
//! ```
//! use std::time::Duration;
//! use tenbin_cluster::{Action, Agreement, Input, Machine, Names, Settings};
//!
//! let names = Names::new(["a", "b"])?;
//! let a = names.nodes().next().unwrap();
//! let mut machine = Machine::new(Settings::new(a, Agreement::Engine, 7), None, Duration::ZERO);
//! let mut actions = Vec::new();
//! machine.handle(Duration::ZERO, Input::Tick, &mut actions);
//! assert_eq!(actions, [Action::Read]);
//! machine.handle(Duration::ZERO, Input::RecordRead(Ok(None)), &mut actions);
//! assert!(matches!(actions[1], Action::Swap { expected: 0, record } if record.leader == a));
//! # Ok::<(), tenbin_cluster::TooManyNames>(())
//! ```
#![forbid(unsafe_code)]

mod event;
mod machine;
mod node;
mod record;
mod settings;
#[cfg(test)]
mod tests;

pub use event::{
    Action, Hello, Input, LinkEnd, Loss, Namesake, Notice, PromotionRefused, Swapped, SwitchRefused, Unreachable,
};
pub use machine::{Machine, Status, Step};
pub use node::{NODES, Names, Node, NodeSet, TooManyNames};
pub use record::{Mark, MarkError, Record, Role, StoredMark, StoredRecord};
pub use settings::{Agreement, Settings, Timing};
