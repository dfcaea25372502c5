//! Booked room in the log.

use std::mem;

/// Bytes of the log booked for messages with [`Spool::take_room`](super::Spool::take_room).
///
/// Every appended message needs one, so that messages never take the space of acknowledgements.
#[must_use = "room that nobody gives back is lost to all others"]
#[derive(Debug)]
pub struct Room(u64);

impl Room {
    pub(super) const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, to be given back.
    pub(super) fn into_bytes(mut self) -> u64 {
        mem::take(&mut self.0)
    }

    /// Combines two bookings.
    pub fn join(&mut self, mut other: Self) {
        self.0 += mem::take(&mut other.0);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        debug_assert!(self.0 == 0 || std::thread::panicking(), "{} bytes are not given back", self.0);
    }
}
