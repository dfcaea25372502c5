//! Figures of the whole group, with which members are compared.

use crate::{
    availability::Finding,
    estimate::flag,
    hot::Hot,
    load::Availability,
    log2::{exp2_q16, log2_q16},
    nanos::Nanos,
    policy::adaptive,
    seats::Seats,
    speed,
    sync::{AtomicU8, AtomicU64, Relaxed},
};

/// Figures of a group, derived from its members' loads by a regular scan. No events update them, so they cannot be
/// outdated for longer than its interval.
///
/// Every field is independent, `Relaxed`, and written by the picker that found the last scan too old.
#[derive(Debug)]
pub(crate) struct GroupView {
    /// Time of the last scan; [`NEVER`] before the first. The picker that changes it makes the scan.
    scanned_at: AtomicU64,
    /// Geometric mean of the known processing times; 0 = none is known.
    ///
    /// Geometric, since one slow member among many would raise an arithmetic mean too much. Times below 1/16 of the
    /// median are left out: they are rare, and a false claim of such speed could attract all messages.
    mean_ns: AtomicU64,
    /// [`HAS_EVIDENCE`], [`HAS_UNUSED`], [`IS_QUIET`], [`MAY_WAIT`], [`HAS_ACKS`], [`HAS_CONCURRENCY`].
    facts: AtomicU8,
}

/// The figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// g: geometric mean of the known processing times; 0 = none is known.
    pub(crate) mean_ns: u64,
    /// The class of `mean_ns`.
    pub(crate) class: u64,
    /// Whether any member reports or acknowledges.
    pub(crate) has_evidence: bool,
    /// Whether any member was idle for so long that it is worth a try, however slow it was.
    pub(crate) has_unused: bool,
    /// Whether at most every second member is busy.
    pub(crate) is_quiet: bool,
    /// Whether any member works on several messages at a time, as it told.
    pub(crate) has_concurrency: bool,
}

impl View {
    /// Whether nothing is known of any member's speed: all waits are 0.
    #[inline]
    pub(crate) fn has_no_speeds(&self) -> bool {
        self.mean_ns == 0 && !self.has_evidence
    }

    /// g/16: the minimum cost of a message, and the penalty of a member of the mean class.
    pub(crate) fn floor_ns(&self) -> u64 {
        self.mean_ns >> 4
    }
}

impl GroupView {
    pub(crate) fn new() -> Self {
        Self { scanned_at: AtomicU64::new(NEVER), mean_ns: AtomicU64::new(0), facts: AtomicU8::new(0) }
    }

    /// Returns the figures at `now`, at most a millisecond and four microseconds per member old.
    ///
    /// So the scans add next to nothing to an average pick. All scans of a group together take at most a percent of one
    /// processor, at any rate of messages.
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

    /// Takes the limits of a new member, so that its first messages are chosen by them. If the speed of other members
    /// is known, the member is marked as new.
    pub(crate) fn joined(&self, hot: &Hot) {
        if self.mean_ns.load(Relaxed) > 0 {
            hot.begin_as_newcomer();
        }
        self.facts.fetch_or(limits(hot), Relaxed);
    }

    /// Forgets the mean speed after the last member has left, so that the next members are not marked as new.
    pub(crate) fn forget_speeds(&self) {
        self.mean_ns.store(0, Relaxed);
    }

    /// Returns whether messages may wait until some member can begin with them, by the last scan.
    #[inline]
    pub(crate) fn may_wait(&self) -> bool {
        self.facts.load(Relaxed) & MAY_WAIT != 0
    }

    /// Returns whether any member acknowledges single messages and is not late, by the last scan.
    #[inline]
    pub(crate) fn has_acks(&self) -> bool {
        self.facts.load(Relaxed) & HAS_ACKS != 0
    }

    /// Returns the figures of the last scan.
    #[inline]
    pub(crate) fn latest(&self) -> View {
        let (mean_ns, facts) = (self.mean_ns.load(Relaxed), self.facts.load(Relaxed));
        View {
            mean_ns,
            class: speed::class(mean_ns),
            has_evidence: facts & HAS_EVIDENCE != 0,
            has_unused: facts & HAS_UNUSED != 0,
            is_quiet: facts & IS_QUIET != 0,
            has_concurrency: facts & HAS_CONCURRENCY != 0,
        }
    }

    #[cold]
    fn scan(&self, seats: &Seats, now: Nanos) {
        let (mut speeds, mut flags, mut has_unused) = (Speeds::default(), 0, false);
        let (mut members, mut busy, mut facts) = (0u32, 0u32, 0);
        for load in seats.loads() {
            let hot = load.hot();
            // Of offline members too: their waiting messages are in their queues at once when they come back.
            facts |= limits(hot);
            if load.availability() == Availability::Offline {
                continue;
            }
            if hot.eligibility().has(Finding::Rejects) {
                load.consider_trial(now.0);
            }
            members += 1;
            busy += u32::from(hot.outstanding().messages > 0 || hot.finish() > now.0 + hot.delay_ns());
            flags |= hot.flags();
            facts |= fact(adaptive::late::acknowledges_singly(hot, now.0), HAS_ACKS);
            has_unused |= hot.rank() == 0 && adaptive::may_be_unused(hot, now.0);
            let processing_ns = hot.speed().processing_ns();
            if processing_ns > 0 {
                speeds.add(processing_ns);
            }
        }
        self.mean_ns.store(speeds.mean_ns(), Relaxed);
        let has_evidence = flags & (flag::REPORTS | flag::ACKS) != 0;
        let is_quiet = busy <= members / 2;
        facts |= fact(has_evidence, HAS_EVIDENCE) | fact(has_unused, HAS_UNUSED) | fact(is_quiet, IS_QUIET);
        self.facts.store(facts, Relaxed);
        if flags & flag::EARLY != 0 {
            suspect_the_unverified(seats);
        }
    }
}

/// Returns the facts that follow from a member's limits.
fn limits(hot: &Hot) -> u8 {
    fact(hot.concurrency() > 1, HAS_CONCURRENCY) | fact(adaptive::late::may_wait_for(hot), MAY_WAIT)
}

fn fact(holds: bool, fact: u8) -> u8 {
    if holds { fact } else { 0 }
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

    /// Returns the geometric mean of the times that are not below 1/16 of the median; 0 if there are none.
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

/// Marks unverified members as suspect, because one member's acknowledgements come early.
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
const HAS_CONCURRENCY: u8 = 8;
const MAY_WAIT: u8 = 16;
const HAS_ACKS: u8 = 32;
const SCAN_PAUSE_NS: u64 = 1_000_000;
const SCAN_PAUSE_PER_MEMBER_NS: u64 = 4_000;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{acknowledged::Acknowledged, hot::mark, load::MemberLoad, report::LoadReport};

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
    fn group_mean_is_geometric_over_known_speeds() {
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
    fn offline_members_do_not_count_in_the_mean() {
        let loads = members(&[10.0, 1000.0]);
        loads[1].set_availability(Availability::Offline);
        assert_eq!(view_of(&loads, 1).mean_ns.div_ceil(MS), 10);
    }

    #[test]
    fn group_figures_are_scanned_when_outdated() {
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
    fn members_of_a_group_without_speeds_are_no_newcomers() {
        let loads = members(&[0.0, 0.0]);
        let (group, seats) = (GroupView::new(), seats(&loads));
        let is_newcomer = |load: &MemberLoad| load.hot().marks() & mark::NEWCOMER != 0;
        let joins = |load: &MemberLoad, at_ms| {
            group.at(Nanos(at_ms * MS), &seats);
            group.joined(load.hot());
            is_newcomer(load)
        };
        assert!(!joins(&loads[0], 1));
        loads[1].assume_speed(Duration::from_millis(20));
        assert!(joins(&MemberLoad::new(Nanos(0)), 10));
        assert!(!is_newcomer(&loads[0]), "it was here before");
        group.forget_speeds();
        let first = MemberLoad::new(Nanos(0));
        group.joined(first.hot());
        assert!(!is_newcomer(&first), "the others left");
    }

    #[test]
    fn group_has_evidence_while_a_member_gives_it() {
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
