//! Tests with a whole broker in this process, whose internals they can inspect.

mod client;
mod collected;
mod in_memory;
mod long_ends;
mod outstanding;
mod owners;
mod reloads;
mod rights;
mod share_backlog;
mod taken_over;
mod wills;
