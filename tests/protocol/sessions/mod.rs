//! Sessions: their begin, content, owner and end.

mod begin;
mod client_ids;
mod expiry;
mod keep_alive;
mod queue;
mod resend;
mod takeover;
