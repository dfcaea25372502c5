//! A processing time and its class in one word, so that a pick reads both at once.

use crate::log2::log2_q16;

/// The processing time of a member's messages, as far as known.
///
/// ```text
///  63        48 47                            0
/// +------------+-------------------------------+
/// |   class    |       processing time, ns     |     0: unknown, in the class of zero
/// +------------+-------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speed(u64);

impl Speed {
    /// Creates a speed from a processing time, limited to [`MAX_NS`]; 0 = unknown.
    pub(crate) fn of(processing_ns: u64) -> Self {
        let processing_ns = processing_ns.min(MAX_NS);
        Self(class(processing_ns) << CLASS_SHIFT | processing_ns)
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// Nanoseconds per message; 0 = unknown.
    pub(crate) fn processing_ns(self) -> u64 {
        self.0 & NS_MASK
    }

    /// See [`class`].
    pub(crate) fn class(self) -> u64 {
        self.0 >> CLASS_SHIFT
    }
}

/// log2 of (processing time + 1 ms) in steps of 1/256: members that differ by less than about a millisecond have the
/// same class.
pub(crate) fn class(processing_ns: u64) -> u64 {
    log2_q16(processing_ns + MILLISECOND) >> 8
}

/// Longest processing time: an hour. Longer ones count as this.
pub(crate) const MAX_NS: u64 = 3_600_000_000_000;

const CLASS_SHIFT: u32 = 48;
const NS_MASK: u64 = (1 << CLASS_SHIFT) - 1;
const MILLISECOND: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_word_keeps_time_and_class() {
        for (given, kept) in [(0, 0), (1, 1), (25_000_000, 25_000_000), (u64::MAX, MAX_NS)] {
            let speed = Speed::from_word(Speed::of(given).to_word());
            assert_eq!((speed.processing_ns(), speed.class()), (kept, class(kept)));
        }
    }

    #[test]
    fn a_class_is_a_doubling_beyond_a_millisecond() {
        let classes = |ms: u64| class(ms * MILLISECOND) - class(0);
        assert_eq!((classes(1), classes(3), classes(63)), (256, 512, 6 * 256));
    }
}
