//! What members are judged against: figures of the whole group.

use crate::{
    estimate::flag,
    load::Availability,
    log2::{exp2_q16, log2_q16},
    nanos::Nanos,
    policy::adaptive,
    seats::Seats,
    speed,
    sync::{AtomicU8, AtomicU64, Relaxed},
};

/// The figures of a group, derived from its members' loads by a scan every now and then: nothing has to be
/// registered or taken back, so nothing can go stale for longer than that.
///
/// Every field is a fact of its own, `Relaxed`, written by the picker that found the last scan to be old.
#[derive(Debug)]
pub(crate) struct GroupView {
    /// When the last scan was; [`NEVER`] before the first. Whoever changes it makes the scan.
    scanned_at: AtomicU64,
    /// Geometric mean of the known processing times; 0 = none is known.
    ///
    /// Geometric, since one slow member among many would lift an arithmetic mean beyond what is normal. Without
    /// those below 1/16 of the median: such speeds are rare, and a pretext to attract everything.
    mean_ns: AtomicU64,
    /// [`HAS_EVIDENCE`], [`HAS_UNUSED`], [`IS_QUIET`].
    facts: AtomicU8,
}

/// The figures at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// g: geometric mean of the known processing times; 0 = none is known.
    pub(crate) mean_ns: u64,
    /// The class of `mean_ns`.
    pub(crate) class: u64,
    /// Whether any member reports or acknowledges.
    pub(crate) has_evidence: bool,
    /// Whether any member had nothing to do for so long that it may be worth a try, however slow it was.
    pub(crate) has_unused: bool,
    /// Whether at most every second member is busy.
    pub(crate) is_quiet: bool,
}

impl View {
    /// The least that a message is taken to cost anybody, and what a member of the mean class is held back by:
    /// g/16.
    pub(crate) fn floor_ns(&self) -> u64 {
        self.mean_ns >> 4
    }
}

impl GroupView {
    pub(crate) fn new() -> Self {
        Self { scanned_at: AtomicU64::new(NEVER), mean_ns: AtomicU64::new(0), facts: AtomicU8::new(0) }
    }

    /// The figures at `now`, from a scan not older than a millisecond and four microseconds for each member. So a
    /// scan costs a pick next to nothing on average, and all scans of a group at most a percent of one
    /// processor, whatever the rate of messages.
    #[inline]
    pub(crate) fn at(&self, now: Nanos, seats: &Seats) -> View {
        let scanned_at = self.scanned_at.load(Relaxed);
        let pause_ns = SCAN_PAUSE_NS + SCAN_PAUSE_PER_MEMBER_NS * seats.loads().len() as u64;
        let is_due = scanned_at == NEVER || now.0.saturating_sub(scanned_at) >= pause_ns;
        if is_due && self.scanned_at.compare_exchange(scanned_at, now.0, Relaxed, Relaxed).is_ok() {
            self.scan(seats, now);
        }
        self.latest()
    }

    /// The figures of the last scan.
    #[inline]
    pub(crate) fn latest(&self) -> View {
        let (mean_ns, facts) = (self.mean_ns.load(Relaxed), self.facts.load(Relaxed));
        View {
            mean_ns,
            class: speed::class(mean_ns),
            has_evidence: facts & HAS_EVIDENCE != 0,
            has_unused: facts & HAS_UNUSED != 0,
            is_quiet: facts & IS_QUIET != 0,
        }
    }

    #[cold]
    fn scan(&self, seats: &Seats, now: Nanos) {
        let (mut speeds, mut flags, mut has_unused) = (Speeds::default(), 0, false);
        let (mut members, mut busy) = (0u32, 0u32);
        for hot in seats.loads().iter().map(|load| load.hot()) {
            if hot.availability() == Availability::Offline as u8 {
                continue;
            }
            members += 1;
            busy += u32::from(hot.outstanding().messages > 0 || hot.finish() > now.0 + hot.delay_ns());
            flags |= hot.flags();
            has_unused |= hot.rank() == 0 && adaptive::may_be_unused(hot, now.0);
            let processing_ns = hot.speed().processing_ns();
            if processing_ns > 0 {
                speeds.add(processing_ns);
            }
        }
        self.mean_ns.store(speeds.mean_ns(), Relaxed);
        let has_evidence = flags & (flag::REPORTS | flag::ACKS) != 0;
        let fact = |holds: bool, fact: u8| if holds { fact } else { 0 };
        let is_quiet = busy <= members / 2;
        let facts = fact(has_evidence, HAS_EVIDENCE) | fact(has_unused, HAS_UNUSED) | fact(is_quiet, IS_QUIET);
        self.facts.store(facts, Relaxed);
        if flags & flag::EARLY != 0 {
            suspect_the_unverified(seats);
        }
    }
}

/// Logarithms of processing times, by quarters of an octave.
struct Speeds {
    counts: [u32; QUARTERS],
    sums: [u64; QUARTERS],
}

impl Default for Speeds {
    fn default() -> Self {
        Self { counts: [0; QUARTERS], sums: [0; QUARTERS] }
    }
}

impl Speeds {
    fn add(&mut self, processing_ns: u64) {
        let log2 = log2_q16(processing_ns);
        let quarter = (log2 >> QUARTER_SHIFT) as usize;
        self.counts[quarter] += 1;
        self.sums[quarter] += log2;
    }

    /// The geometric mean of those that are not below 1/16 of the median; 0 if there are none.
    fn mean_ns(&self) -> u64 {
        let known: u32 = self.counts.iter().sum();
        let mut up_to = 0;
        let median = self.counts.iter().position(|count| {
            up_to += count;
            count > &0 && 2 * up_to >= known
        });
        let Some(median) = median else { return 0 };
        let least = median.saturating_sub(QUARTERS_OF_FOUR_OCTAVES);
        let counted: u32 = self.counts[least..].iter().sum();
        exp2_q16(self.sums[least..].iter().sum::<u64>() / u64::from(counted))
    }
}

/// In the company of one whose acknowledgements come early, nobody's count before they are verified.
#[cold]
fn suspect_the_unverified(seats: &Seats) {
    for hot in seats.loads().iter().map(|load| load.hot()) {
        if hot.flags() & (flag::EARLY | flag::VERIFIED) == 0 {
            hot.suspect();
        }
    }
}

/// An hour is 41.7 octaves of nanoseconds.
const QUARTERS: usize = 42 * 4;
const QUARTER_SHIFT: u32 = 14;
const QUARTERS_OF_FOUR_OCTAVES: usize = 4 * 4;
const NEVER: u64 = u64::MAX;
const HAS_EVIDENCE: u8 = 1;
const HAS_UNUSED: u8 = 2;
const IS_QUIET: u8 = 4;
const SCAN_PAUSE_NS: u64 = 1_000_000;
const SCAN_PAUSE_PER_MEMBER_NS: u64 = 4_000;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{acknowledged::Acknowledged, load::MemberLoad, report::LoadReport};

    const MS: u64 = 1_000_000;

    fn members(milliseconds: &[f64]) -> Vec<Arc<MemberLoad>> {
        let member = |&ms: &f64| {
            let load = Arc::new(MemberLoad::new(Nanos(0)));
            if ms > 0.0 {
                load.assume_speed(Duration::from_secs_f64(ms / 1e3));
            }
            load
        };
        milliseconds.iter().map(member).collect()
    }

    fn seats(loads: &[Arc<MemberLoad>]) -> Seats {
        Seats::new(loads.iter().map(Arc::clone).collect(), &vec![0; loads.len()])
    }

    fn view_of(loads: &[Arc<MemberLoad>], at_ms: u64) -> View {
        GroupView::new().at(Nanos(at_ms * MS), &seats(loads))
    }

    fn mean_ms(milliseconds: &[f64]) -> f64 {
        view_of(&members(milliseconds), 1).mean_ns as f64 / 1e6
    }

    #[test]
    fn the_mean_is_geometric_and_of_the_known() {
        assert_eq!(mean_ms(&[0.0, 0.0]), 0.0);
        for (milliseconds, mean) in [
            (&[25.0, 25.0, 50.0][..], 31.5),
            (&[10.0, 0.0, 1000.0], 100.0),
            (&[25.0, 25.0, 25.0, 5000.0], 94.0),
            (&[25.0, 25.0, 25.0, 0.001], 25.0),
            (&[25.0, 2.0], 7.07),
        ] {
            let is = mean_ms(milliseconds);
            assert!((is / mean - 1.0).abs() < 0.02, "{milliseconds:?}: {is}");
        }
    }

    #[test]
    fn who_is_offline_does_not_count() {
        let loads = members(&[10.0, 1000.0]);
        loads[1].set_availability(Availability::Offline);
        assert_eq!(view_of(&loads, 1).mean_ns.div_ceil(MS), 10);
    }

    #[test]
    fn a_scan_is_made_when_the_last_is_old() {
        let loads = members(&[10.0, 0.0]);
        let (group, seats) = (GroupView::new(), seats(&loads));
        let mean_ms = |now| group.at(Nanos(now), &seats).mean_ns.div_ceil(MS);
        assert_eq!(mean_ms(5 * MS), 10);
        loads[1].assume_speed(Duration::from_millis(40));
        assert_eq!(mean_ms(6 * MS + 7_999), 10);
        assert_eq!(mean_ms(4 * MS), 10, "an older clock reading");
        assert_eq!(mean_ms(6 * MS + 8_000), 20);
        loads[1].connected(Nanos(0));
        assert_eq!(mean_ms(7 * MS), 20);
        assert_eq!(mean_ms(8 * MS), 10);
    }

    #[test]
    fn evidence_is_there_while_anybody_gives_it() {
        let loads = members(&[0.0, 0.0]);
        let (group, seats) = (GroupView::new(), seats(&loads));
        let has_evidence = |at_ms| group.at(Nanos(at_ms * MS), &seats).has_evidence;
        assert!(!has_evidence(1));
        loads[0].report(&LoadReport::default(), Nanos(2 * MS));
        assert!(has_evidence(10));
        (0..3).for_each(|_| loads[0].plain_ping(Nanos(12 * MS)));
        assert!(!has_evidence(20));
        loads[1].acknowledged(&Acknowledged::one(Nanos(0), 0, Nanos(21 * MS)));
        assert!(has_evidence(30));
    }
}
