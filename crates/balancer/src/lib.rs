//! Chooses the member of a share group that gets a message.
//!
//! A [`Group`] holds the members that share one subscription. Each member refers to the [`MemberLoad`] of its client:
//! the client's last report, and the messages sent to it since. [`Members::pick`] reads the loads of all members,
//! chooses one by the group's [`Policy`] and books the message. It takes no lock and allocates nothing.
//!
//! ```text
//!   report(), plain_ping() ─────────────► MemberLoad ◄──── Arc ──┬── Group "a": Member, turn
//!   written(), acknowledged(),            (one per client)       └── Group "b": Member, turn
//!   refused(), taken_back() ────────────►     ▲
//!   set_availability(), set_round_trip() ►    └── booked by Members::pick(dispatch, rng)
//! ```
//!
//! The caller of `pick` must report the outcome of each message. Every message picked ends with exactly one of
//! [`written`](MemberLoad::written), [`acknowledged`](MemberLoad::acknowledged), [`refused`](MemberLoad::refused) and
//! [`taken_back`](MemberLoad::taken_back). Until then it is outstanding, and counts against its member.
//!
//! The crate knows no MQTT and no runtime. It reads no clock (`now` is an argument) and no random numbers
//! (an [`Rng`] is an argument). So the same calls always give the same choices.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use tenbin_balancer::{Dispatch, Group, LoadReport, MemberId, MemberLoad, Nanos, Policy, Rng};
//!
//! let (start, later) = (Nanos(0), Nanos(1_000_000_000));
//! let group = Group::new(Policy::ThesisScore);
//! let loads = [25, 250].map(|ms| {
//!     let load = Arc::new(MemberLoad::new(start));
//!     let processing_time = Duration::from_millis(ms);
//!     load.report(&LoadReport { messages_in_queue: 8, processing_time, draining: false }, later);
//!     load
//! });
//! group.join(MemberId(1), Arc::clone(&loads[0]), 1, "fast", start);
//! group.join(MemberId(2), Arc::clone(&loads[1]), 1, "slow", start);
//!
//! let dispatch = Dispatch { at: later, bytes: 100, ..Dispatch::default() };
//! let chosen = group.members().pick(&dispatch, &mut Rng::new(7)).map(|member| *member.value());
//! assert_eq!(chosen, Some("fast"));
//! assert_eq!(loads[0].snapshot().sent_since_report, 1);
//! ```
//!
//! "Thesis" in this documentation is Todoroki's master's thesis on the dynamic load balancing of shared subscriptions
//! by the state of the subscriber group. Its Table 3 names the fields of [`MemberLoad`].

#![forbid(unsafe_code)]

mod acknowledged;
mod availability;
mod chooser;
mod departed;
mod dispatch;
mod estimate;
mod explain;
mod fair_queue;
mod group;
mod group_view;
mod hot;
mod key_pins;
mod latency;
mod limit;
mod load;
mod log2;
mod members;
mod nanos;
mod outstanding;
mod pick;
mod policy;
mod policy_state;
mod reason;
mod report;
mod rng;
mod rules;
mod seats;
mod shadow;
mod speed;
mod standing;
mod sync;

pub use acknowledged::Acknowledged;
pub use chooser::{Candidates, Chooser, ChooserError, Choosers};
pub use dispatch::Dispatch;
pub use explain::{Candidate, Explanation};
pub use fair_queue::FairQueue;
pub use group::Group;
pub use key_pins::FreedKeys;
pub use limit::{Lesson, Service};
pub use load::{Availability, LoadSnapshot, MemberLoad};
pub use members::{Iter, Member, Members};
pub use nanos::Nanos;
pub use policy::{Burst, Policy, UnknownPolicy};
pub use reason::Reason;
pub use report::{LoadReport, ReportError};
pub use rng::Rng;
pub use rules::{LateBinding, Rules};
pub use shadow::ShadowFigures;
pub use standing::{MemberId, Standing};
