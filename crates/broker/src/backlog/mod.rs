//! The backlog: a queue of messages whose end is on disk, for sessions and share groups.
//!
//! ```text
//!   newest                                                           oldest
//!   appended ──► │ spill: entries of messages on disk │ ──read──► │ head │ ──► receiver
//! ```

mod batch;
mod booked;
mod budget;
mod buffer_pool;
mod disk_work;
mod dropped_names;
mod entries;
mod fair_head;
mod head;
mod lane;
mod limits;
mod refill;
mod runs;
mod spill;

pub(crate) use batch::{Batch, Entry};
pub(crate) use booked::Booked;
pub(crate) use budget::{Budget, Usage};
pub(crate) use disk_work::DiskWork;
pub(crate) use dropped_names::DroppedNames;
pub(crate) use entries::Entries;
pub(crate) use fair_head::FairHead;
pub(crate) use head::{Dropped, HEAD_BYTES, Head, Reader};
pub(crate) use limits::Limits;
pub(crate) use refill::{FailedRead, NextPage, Refill, Refilled};
pub(crate) use runs::{Run, Wire};
pub(crate) use spill::Spill;
