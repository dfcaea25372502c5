//! Sessions and Wills when a connection begins and ends (MQTT 5.0 §3.1.2.4, §3.1.2.5, §4.1).
//!
//! ```text
//!   begin         the beginning of connections: an existing session goes on, or ends first
//!   end           the end of connections, and the end of sessions
//!   wills         publication of Wills
//!   inbox         receivers in the embedding program
//!   restore       the start: sessions, retained messages and Wills of the last run
//!   enforcement   changed access rules, applied to existing sessions
//!   expiry_queue  sessions without a connection, by the time at which work for them is due
//!   long_ends     due work of such sessions, whose owners take turns
//!   leadership    whether the broker may act
//!   chronicle     the last events for operators
//!   state         the state that all tasks of a broker share
//! ```

mod begin;
pub(crate) mod chronicle;
mod denials;
mod end;
pub(crate) mod enforcement;
mod expiry_queue;
mod inbox;
mod leadership;
mod long_ends;
mod restore;
mod state;
mod wills;

pub(crate) use begin::{
    Beginning, Begun, NotBegun, begin, count, displace, give_back, joins, may_begin, may_displace, refuse,
    takes_messages,
};
pub(crate) use chronicle::Chronicle;
pub(crate) use denials::Denied;
pub(crate) use end::{ConnectionEnd, end, expire, hand_over, leaves, put_down};
pub(crate) use expiry_queue::ExpiryQueue;
pub(crate) use inbox::Inbox;
pub(crate) use leadership::{Leadership, Servers};
pub(crate) use long_ends::{Due, Lane, LongEnds};
pub(crate) use restore::restore;
pub(crate) use state::{Admission, BrokerState, Operations, Routing, Sessions, Storage};
pub(crate) use wills::{look_at, publish_will};
