//! Messages that may still be on the wire.

/// How many messages were sent in the current window of time and in the one before it.
///
/// ```text
///  63                  32 31         16 15          0
/// +----------------------+-------------+-------------+
/// | start of the current | sent in the | sent in the |
/// | window, 65.5 µs units|   current   |  previous   |
/// +----------------------+-------------+-------------+
/// ```
///
/// A window is as long as a message may take to the client and a report from there: 2 ms and twice the one-way
/// delay. Counts end at 65,535.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transit(u64);

impl Transit {
    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// With one message more, sent at `now_ns`.
    #[inline]
    pub(crate) fn with_sent(self, now_ns: u64, delay_ns: u64) -> Self {
        let (window, age) = (window_units(delay_ns), self.age(now_ns));
        if age < window {
            let is_full = self.current() == COUNT_MAX;
            return Self(self.0 + if is_full { 0 } else { 1 << CURRENT_SHIFT });
        }
        let previous = if age < 2 * window { self.current() } else { 0 };
        Self(u64::from(units(now_ns)) << START_SHIFT | 1 << CURRENT_SHIFT | previous)
    }

    /// Messages that were perhaps not yet at the client when it wrote what arrived at `now_ns`.
    pub(crate) fn messages(self, now_ns: u64, delay_ns: u64) -> u64 {
        let (window, age) = (window_units(delay_ns), self.age(now_ns));
        match age {
            _ if age < window => self.current() + (self.0 & COUNT_MAX),
            _ if age < 2 * window => self.current(),
            _ => 0,
        }
    }

    fn current(self) -> u64 {
        self.0 >> CURRENT_SHIFT & COUNT_MAX
    }

    /// Units since the start of the window; 0 if that was read from a later clock reading.
    fn age(self, now_ns: u64) -> u32 {
        let age = units(now_ns).wrapping_sub((self.0 >> START_SHIFT) as u32);
        if age > u32::MAX / 2 { 0 } else { age }
    }
}

/// Time in units of 65.5 µs, which begins anew every 78 hours: a window of 39 to 78 hours ago is taken for the current
/// one, so that the first report after such a silence leaves a little more room than it should.
fn units(ns: u64) -> u32 {
    (ns >> UNIT_SHIFT) as u32
}

fn window_units(delay_ns: u64) -> u32 {
    units(WINDOW_NS + 2 * delay_ns)
}

const UNIT_SHIFT: u32 = 16;
const START_SHIFT: u32 = 32;
const CURRENT_SHIFT: u32 = 16;
const COUNT_MAX: u64 = 0xFFFF;
/// What a report takes apart from the network: the client's own queue of outgoing packets, and ours.
const WINDOW_NS: u64 = 2_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn messages_count_for_one_to_two_windows() {
        let start = Transit::default().with_sent(1_000 * MS, 0).with_sent(1_001 * MS, 0);
        assert_eq!(start.messages(1_001 * MS, 0), 2);
        let next = start.with_sent(1_003 * MS, 0);
        assert_eq!(next.messages(1_003 * MS, 0), 3, "the window before may still be under way");
        assert_eq!(next.messages(1_006 * MS, 0), 1);
        assert_eq!(next.messages(1_008 * MS, 0), 0);
        assert_eq!(next.messages(1_008 * MS, 50 * MS), 3, "a longer way keeps them longer");
        assert_eq!(next.with_sent(1_020 * MS, 0).messages(1_020 * MS, 0), 1);
    }

    #[test]
    fn counts_and_clocks_do_not_overflow() {
        let mut transit = Transit::default();
        (0..70_000).for_each(|_| transit = transit.with_sent(u64::MAX, u64::MAX >> 2));
        assert_eq!(transit.messages(u64::MAX, 0), 65_535);
        assert_eq!(transit.messages(u64::MAX - 5 * MS, 0), 65_535, "an older clock reading");
    }
}
