//! Disk space that is left for the log.

use super::{disk::Disk, health::bytes_in_words};

/// Most bytes of log needed to end an entry: a separate write with an acknowledgement, and a share of the release of its
/// Packet Identifier.
const ENDING_BYTES: u64 = 96;

/// Space for new files. A part of the disk stays free for acknowledgements and for the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space {
    /// Bytes that new files for messages may take.
    pub(super) available: u64,
    /// Reason for that bound.
    bound: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// The file system: free bytes, and bytes that must stay free.
    Disk { free: u64, reserve: u64 },
    /// The bound of `Options::bytes_maximum`.
    Maximum(u64),
}

/// True if a file system with these free and total bytes has no room for messages. `times`: how many times the usual
/// reserve is wanted.
pub(crate) fn is_full((free, total): (u64, u64), times: u64) -> bool {
    let segment_bytes = u64::from(super::Options::default().segment_bytes);
    free < times.saturating_mul(reserve(segment_bytes, total))
}

/// Bytes that stay free for acknowledgements.
fn reserve(segment_bytes: u64, total: u64) -> u64 {
    (2 * segment_bytes).min(total / 16)
}

impl Space {
    /// Queries the disk.
    ///
    /// `maximum` bounds `used`, the bytes of the log and of other files; 0 means no bound. Each of the queued `entries`
    /// still needs an acknowledgement.
    pub(super) fn of(disk: &dyn Disk, segment_bytes: u32, entries: u64, maximum: u64, used: u64) -> Self {
        let segment_bytes = u64::from(segment_bytes);
        let endings = entries.saturating_mul(ENDING_BYTES);
        // A system that does not report its free space still reports errors when it is full.
        let (free, total) = disk.space().unwrap_or((u64::MAX, u64::MAX));
        let reserve = reserve(segment_bytes, total).max(endings);
        let of_disk = Self { available: free.saturating_sub(reserve), bound: Bound::Disk { free, reserve } };
        if maximum == 0 {
            return of_disk;
        }
        // A part is for acknowledgements.
        let used = used.saturating_add(segment_bytes.max(endings));
        let of_maximum = Self { available: maximum.saturating_sub(used), bound: Bound::Maximum(maximum) };
        if of_maximum.available < of_disk.available { of_maximum } else { of_disk }
    }

    /// Whether the maximum leaves no room for a new file, not even for acknowledgements.
    pub(super) fn is_at_maximum(self) -> bool {
        self.available == 0 && matches!(self.bound, Bound::Maximum(_))
    }

    /// Describes why there is no room for a new file.
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
