//! How much more the log may take of the disk.

use super::{disk::Disk, health::bytes_in_words};

/// What ends an entry takes at most so many bytes of the log: a write for itself with an acknowledgement, and a share of
/// its Packet Identifier's.
const ENDING_BYTES: u64 = 96;

/// Space for new files. A part of the disk stays free, for acknowledgements and for the state beside the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space {
    /// Bytes that new files for messages may take.
    pub(super) available: u64,
    /// What sets that bound.
    bound: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// The file system: so many bytes are free, of which so many stay free.
    Disk { free: u64, reserve: u64 },
    /// `Options::bytes_maximum`.
    Maximum(u64),
}

impl Space {
    /// Asks the disk.
    ///
    /// `maximum` bounds what is `used`, by files of the log and beside it; 0 is no bound. `entries` wait, each of which
    /// has to be acknowledged.
    pub(super) fn of(disk: &dyn Disk, segment_bytes: u32, entries: u64, maximum: u64, used: u64) -> Self {
        let segment_bytes = u64::from(segment_bytes);
        let endings = entries.saturating_mul(ENDING_BYTES);
        // A system that does not say how much is free says when there is no more.
        let (free, total) = disk.space().unwrap_or((u64::MAX, u64::MAX));
        let reserve = (2 * segment_bytes).min(total / 16).max(endings);
        let of_disk = Self { available: free.saturating_sub(reserve), bound: Bound::Disk { free, reserve } };
        if maximum == 0 {
            return of_disk;
        }
        // Some of it is for acknowledgements.
        let used = used.saturating_add(segment_bytes.max(endings));
        let of_maximum = Self { available: maximum.saturating_sub(used), bound: Bound::Maximum(maximum) };
        if of_maximum.available < of_disk.available { of_maximum } else { of_disk }
    }

    /// Not even acknowledgements may take a new file.
    pub(super) fn is_at_maximum(self) -> bool {
        self.available == 0 && matches!(self.bound, Bound::Maximum(_))
    }

    /// Why there is no new file.
    pub(super) fn shortage(self) -> String {
        match self.bound {
            Bound::Disk { free, reserve } => format!(
                "the disk has {} left, and {} are kept free for acknowledgements",
                bytes_in_words(free),
                bytes_in_words(reserve)
            ),
            Bound::Maximum(maximum) => format!("the store has reached its maximum of {}", bytes_in_words(maximum)),
        }
    }
}
