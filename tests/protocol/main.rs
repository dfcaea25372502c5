//! The protocol: packets, sessions, subscriptions, and the statements of the standard.

mod bad_input;
mod capabilities;
mod conformance;
mod extended_pingreq;
mod load_reports;
mod publish_subscribe;
mod retained;
mod sessions;
mod shared_subscriptions;
#[path = "../support/mod.rs"]
mod support;
mod wills;
