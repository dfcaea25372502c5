//! Clients that load a broker, and a ledger of all messages: acknowledged, refused, received.
//!
//! The clients survive the broker: they reconnect, resend as MQTT demands, and record the messages that they must get.
#![allow(dead_code, unused_imports, reason = "every test binary takes its own part of it")]

mod answers;
mod journal;
mod judge;
mod ledger;
mod mortals;
mod publisher;
mod receiver;
mod world;

pub(crate) use journal::{Complaint, What};
pub(crate) use ledger::{Number, Topic};
pub(crate) use publisher::Trait;
pub(crate) use receiver::Habit;
pub(crate) use world::{Cast, Round, World};
