//! A whole broker in this process, where its insides can be looked at.

mod client;
mod collected;
mod in_memory;
mod long_ends;
mod outstanding;
mod owners;
mod rights;
mod share_backlog;
mod taken_over;
mod wills;
