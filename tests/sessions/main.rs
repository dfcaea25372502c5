//! Sessions: how they begin, what they keep, who gets them, how they end.

#[path = "../support/mod.rs"]
mod support;

mod begin;
mod client_ids;
mod expiry;
mod keep_alive;
mod queue;
mod resend;
mod takeover;
