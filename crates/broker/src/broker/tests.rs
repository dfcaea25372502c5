//! Tests with a whole broker in this process, whose internals they can inspect.

mod client;
mod collected;
mod in_memory;
mod lease;
mod long_ends;
mod outstanding;
mod owners;
mod relayed;
mod reloads;
mod rights;
mod share_backlog;
mod sockets;
mod taken_over;
mod wills;
