use std::fmt;

/// A request to another clock, and its answer, in nanoseconds since 1970-01-01 UTC.
///
/// Our clock gives the times of asking and hearing; the other clock gives those of receiving and answering.
///
/// ```text
/// other          received  answered
///     ╱                  ╲
/// ours     asked                    heard
/// ```
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    pub(crate) asked_ns: u64,
    pub(crate) received_ns: u64,
    pub(crate) answered_ns: u64,
    pub(crate) heard_ns: u64,
}

impl Probe {
    /// Offset of the other clock, if both directions took equally long.
    fn offset_ns(&self) -> i64 {
        let there = i128::from(self.received_ns) - i128::from(self.asked_ns);
        let back = i128::from(self.answered_ns) - i128::from(self.heard_ns);
        // Saturates at 292 years.
        i64::try_from((there + back) / 2).unwrap_or(i64::MAX)
    }

    /// Time on the way, in both directions together.
    fn round_trip_ns(&self) -> u64 {
        let away = self.heard_ns.saturating_sub(self.asked_ns);
        away.saturating_sub(self.answered_ns.saturating_sub(self.received_ns))
    }
}

/// Offset of another clock from ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offset {
    /// Negative if the other clock is behind.
    pub(crate) ns: i64,
    /// Maximum error, however the time on the way was divided: half of that time.
    pub(crate) uncertainty_ns: u64,
}

impl Offset {
    /// Median offset of the quarter of probes with the shortest round trips; `None` without probes.
    ///
    /// A probe that was delayed says little about the clocks.
    pub(crate) fn of(probes: &[Probe]) -> Option<Self> {
        let mut best = probes.to_vec();
        best.sort_by_key(Probe::round_trip_ns);
        best.truncate(probes.len().div_ceil(4));
        let slowest = best.last()?.round_trip_ns();
        best.sort_by_key(Probe::offset_ns);
        Some(Self { ns: best[best.len() / 2].offset_ns(), uncertainty_ns: slowest.div_ceil(2) })
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ms, side) = (self.ns as f64 / 1e6, if self.ns < 0 { "behind" } else { "ahead" });
        write!(f, "{:.3} ms {side} (±{:.3} ms)", ms.abs(), self.uncertainty_ns as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other clock is `ahead`; the directions take `there` and `back`, the answer 10 µs.
    fn probe(ahead: i64, there: u64, back: u64) -> Probe {
        let asked_ns = 1_700_000_000_000_000_000;
        let received_ns = (asked_ns + there).saturating_add_signed(ahead);
        Probe { asked_ns, received_ns, answered_ns: received_ns + 10_000, heard_ns: asked_ns + there + 10_000 + back }
    }

    #[test]
    fn an_offset_is_exact_where_both_ways_take_as_long() {
        for ahead in [0, 300_000_000, -300_000_000, 86_400_000_000_000] {
            let offset = Offset::of(&[probe(ahead, 40_000, 40_000)]).unwrap();
            assert_eq!(offset, Offset { ns: ahead, uncertainty_ns: 40_000 });
        }
    }

    #[test]
    fn offset_error_stays_within_uncertainty() {
        for (there, back) in [(0, 80_000), (80_000, 0), (10_000, 70_000)] {
            let offset = Offset::of(&[probe(-5_000_000, there, back)]).unwrap();
            assert!(offset.ns.abs_diff(-5_000_000) <= offset.uncertainty_ns, "{there} {back}: {offset:?}");
        }
    }

    #[test]
    fn delayed_probes_do_not_count() {
        let mut probes: Vec<_> = (0..30).map(|n| probe(1_000_000, 5_000_000 + n * 100_000, 20_000)).collect();
        probes.extend((0..10).map(|n| probe(1_000_000, 20_000 + n, 20_000)));
        let offset = Offset::of(&probes).unwrap();
        assert!(offset.ns.abs_diff(1_000_000) < 10, "{offset:?}");
        assert!(offset.uncertainty_ns <= 20_010, "{offset:?}");
        assert_eq!(Offset::of(&[]), None);
    }

    #[test]
    fn impossible_clock_times_do_not_panic() {
        let odd = Probe { asked_ns: 5, received_ns: u64::MAX, answered_ns: 0, heard_ns: 1 };
        assert!(Offset::of(&[odd]).is_some());
        let worse = Probe { asked_ns: 0, received_ns: u64::MAX, answered_ns: u64::MAX, heard_ns: 0 };
        assert_eq!(Offset::of(&[worse]).map(|offset| offset.ns), Some(i64::MAX));
    }

    #[test]
    fn offset_is_displayed_in_milliseconds() {
        let offset = Offset { ns: -300_012_345, uncertainty_ns: 41_000 };
        assert_eq!(offset.to_string(), "300.012 ms behind (±0.041 ms)");
    }
}
