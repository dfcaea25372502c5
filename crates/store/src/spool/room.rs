//! Room in the log that is booked.

use std::mem;

/// Bytes of the log that messages may take: [`Spool::take_room`](super::Spool::take_room) books them. Who has none appends
/// no message, so that messages never take the space of what ends messages.
#[must_use = "room that nobody gives back is lost to all others"]
#[derive(Debug)]
pub struct Room(u64);

impl Room {
    pub(super) const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// To be given back.
    pub(super) fn into_bytes(mut self) -> u64 {
        mem::take(&mut self.0)
    }

    /// Both are one booking from now on.
    pub fn join(&mut self, mut other: Self) {
        self.0 += mem::take(&mut other.0);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        debug_assert!(self.0 == 0 || std::thread::panicking(), "{} bytes are not given back", self.0);
    }
}
