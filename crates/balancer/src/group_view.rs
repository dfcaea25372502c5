//! What members are judged against: figures of the whole group.

use crate::{
    estimate::flag,
    load::Availability,
    log2::{exp2_q16, log2_q16},
    nanos::Nanos,
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
    /// Geometric, since one slow member among many would lift an arithmetic mean beyond what is normal.
    mean_ns: AtomicU64,
    /// The longest of the known processing times.
    max_ns: AtomicU64,
    /// Since when a member reports, as far as scans saw; [`NEVER`] = none does.
    reports_since: AtomicU64,
    /// [`HAS_EVIDENCE`] or nothing.
    facts: AtomicU8,
}

/// The figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// g: geometric mean of the known processing times; 0 = none is known.
    pub(crate) mean_ns: u64,
    /// The class of `mean_ns`.
    pub(crate) class: u64,
    /// The longest of the known processing times.
    pub(crate) max_ns: u64,
    /// Whether any member reports or acknowledges.
    pub(crate) has_evidence: bool,
    /// Whether members have been reporting for so long that those who do not will not.
    pub(crate) is_reported: bool,
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
        Self {
            scanned_at: AtomicU64::new(NEVER),
            mean_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
            reports_since: AtomicU64::new(NEVER),
            facts: AtomicU8::new(0),
        }
    }

    /// The figures at `now`, from a scan not older than a millisecond and one microsecond for each member. So a
    /// scan costs a pick next to nothing on average, and all scans of a group at most a few percent of one
    /// processor, whatever the rate of messages.
    #[inline]
    pub(crate) fn at(&self, now: Nanos, seats: &Seats) -> View {
        let scanned_at = self.scanned_at.load(Relaxed);
        let pause_ns = SCAN_PAUSE_NS + SCAN_PAUSE_PER_MEMBER_NS * seats.loads().len() as u64;
        let is_due = scanned_at == NEVER || now.0.saturating_sub(scanned_at) >= pause_ns;
        if is_due && self.scanned_at.compare_exchange(scanned_at, now.0, Relaxed, Relaxed).is_ok() {
            self.scan(now, seats);
        }
        self.latest(now)
    }

    /// The figures of the last scan.
    #[inline]
    pub(crate) fn latest(&self, now: Nanos) -> View {
        let mean_ns = self.mean_ns.load(Relaxed);
        View {
            mean_ns,
            class: speed::class(mean_ns),
            max_ns: self.max_ns.load(Relaxed),
            has_evidence: self.facts.load(Relaxed) & HAS_EVIDENCE != 0,
            is_reported: now.0.saturating_sub(self.reports_since.load(Relaxed)) > REPORTED_AFTER_NS,
        }
    }

    #[cold]
    fn scan(&self, now: Nanos, seats: &Seats) {
        let (mut known, mut max_ns, mut flags) = (0_u64, 0, 0);
        let mut counts = [0_u32; 512];
        let mut sums = [0_u64; 512];
        for hot in seats.loads().iter().map(|load| load.hot()) {
            if hot.availability() == Availability::Offline as u8 {
                continue;
            }
            flags |= hot.flags();
            let processing_ns = hot.speed().processing_ns();
            if processing_ns > 0 {
                let l = log2_q16(processing_ns);
                counts[(l >> 13) as usize] += 1;
                sums[(l >> 13) as usize] += l;
                known += 1;
                max_ns = max_ns.max(processing_ns);
            }
        }
        let mut below = 0;
        let mut med = 0;
        for (i, c) in counts.iter().enumerate() {
            below += u64::from(*c);
            if below * 2 > known {
                med = i;
                break;
            }
        }
        let mean = match std::env::var("G").as_deref().unwrap_or("") {
            _ if known == 0 => 0,
            "median" => exp2_q16(sums[med] / u64::from(counts[med])),
            "clamp" => {
                let lo = (med as u64) << 13;
                let lo = lo.saturating_sub(4 << 16);
                let n = known;
                let s: u64 = counts
                    .iter()
                    .zip(&sums)
                    .enumerate()
                    .map(|(i, (c, s))| if (i as u64) << 13 < lo { u64::from(*c) * lo } else { *s })
                    .sum();
                exp2_q16(s / n)
            }
            "trim" => {
                let lo = med.saturating_sub(32);
                let n: u32 = counts[lo..].iter().sum();
                let s: u64 = sums[lo..].iter().sum();
                exp2_q16(s / u64::from(n))
            }
            _ => exp2_q16(sums.iter().sum::<u64>() / known),
        };
        self.mean_ns.store(mean, Relaxed);
        self.max_ns.store(max_ns, Relaxed);
        let has_evidence = flags & (flag::REPORTS | flag::ACKS) != 0;
        self.facts.store(if has_evidence { HAS_EVIDENCE } else { 0 }, Relaxed);
        let reports_since = match flags & flag::REPORTS {
            0 => NEVER,
            _ => self.reports_since.load(Relaxed).min(now.0),
        };
        self.reports_since.store(reports_since, Relaxed);
        if flags & flag::EARLY != 0 {
            suspect_the_unverified(seats);
        }
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

const NEVER: u64 = u64::MAX;
const HAS_EVIDENCE: u8 = 1;
const SCAN_PAUSE_NS: u64 = 1_000_000;
const SCAN_PAUSE_PER_MEMBER_NS: u64 = 1_000;
/// How long members must have been reporting until one that never did is taken for slow.
const REPORTED_AFTER_NS: u64 = 3_000_000_000;
