//! The load of one client: what it reported, and what was sent to it since.

use std::time::Duration;

use crate::{
    nanos::Nanos,
    report::LoadReport,
    sync::{AtomicU8, AtomicU64, Mutex, Relaxed, lock},
};

/// The load of one client connection, shared (by `Arc`) by all groups that the client is a member of
/// (thesis §4.1.2, Table 3).
///
/// | event | call | update |
/// |---|---|---|
/// | session established | [`new`](Self::new), [`connected`](Self::connected) | m_q = m_s = t_p = 0; t_r = t_s = now |
/// | report | [`report`](Self::report) | push the mean, t_p = mean of the last five; m_q = reported; m_s = 0; t_r = now |
/// | chosen | `Members::pick` | m_s += 1; t_s = now |
/// | disconnect | dropped, or kept with [`Availability::Offline`] | |
///
/// Any thread may call anything. Readers see each field whole, but not all fields of one instant: a pick that
/// runs into a report may combine the new m_q with the old m_s and misjudge this one message. No lock could
/// prevent the larger error of the same kind, messages that are on the wire while the client writes its report.
#[derive(Debug)]
pub struct MemberLoad {
    hot: Hot,
    cold: Cold,
}

/// What every pick reads, on one cache line.
///
/// Every access is `Relaxed`: each field is a fact of its own and nothing else is published through it. Needed
/// from the atomics is only that no increment of `m_s` is lost between two reports.
///
/// 64 and not 128 bytes of alignment: processors which fetch lines in pairs do not couple two clients all the
/// same, since in an `Arc` the line before this one holds the reference counts and the line after it is [`Cold`].
/// An odd number of lines also spreads the loads over all sets of the first cache.
#[derive(Debug)]
#[repr(align(64))]
struct Hot {
    /// Messages waiting at the client by its last report. Written by `report` and `connected`, under the lock of
    /// `Cold`.
    m_q: AtomicU64,
    /// Messages sent since the last report. Incremented by every pick; set to 0 by `report` and `connected`.
    m_s: AtomicU64,
    /// Mean processing time in ns; 0 = unknown. Written by `report` and `connected`, under the lock of `Cold`.
    t_p: AtomicU64,
    /// Instant of the last report. Written by `report` and `connected`, under the lock of `Cold`.
    t_r: AtomicU64,
    /// Instant of the last send. Written by every pick and by `connected`; the last writer wins, so it goes back
    /// a little when two pickers hold clock readings of different age.
    t_s: AtomicU64,
    /// An [`Availability`] as its discriminant. Written by `set_availability` only.
    availability: AtomicU8,
}

/// What only reports touch. The lock also keeps two reports, or a report and `connected`, from mixing their
/// fields; in practice it is free, since one task speaks for a connection.
#[derive(Debug)]
#[repr(align(64))]
struct Cold {
    recent: Mutex<RecentMeans>,
}

impl MemberLoad {
    /// The load of a client whose session is established at `now`, [`Availability::Ready`].
    pub fn new(now: Nanos) -> Self {
        Self {
            hot: Hot {
                m_q: AtomicU64::new(0),
                m_s: AtomicU64::new(0),
                t_p: AtomicU64::new(0),
                t_r: AtomicU64::new(now.0),
                t_s: AtomicU64::new(now.0),
                availability: AtomicU8::new(Availability::Ready as u8),
            },
            cold: Cold { recent: Mutex::new(RecentMeans::default()) },
        }
    }

    /// The session is established anew: everything as after [`new`](Self::new), except the availability, which
    /// stays with whoever watches the client's queue.
    pub fn connected(&self, now: Nanos) {
        let mut recent = lock(&self.cold.recent);
        *recent = RecentMeans::default();
        self.hot.m_q.store(0, Relaxed);
        self.reset_sent();
        self.hot.t_p.store(0, Relaxed);
        self.hot.t_r.store(now.0, Relaxed);
        self.hot.t_s.store(now.0, Relaxed);
    }

    /// Takes the client's own report, received at `now`. Values above the limits of [`LoadReport`] count as the
    /// limits.
    ///
    /// A processing time of zero (nothing was processed) enters the mean of the last five like any other, as the
    /// thesis has it: a client that reports before its first message looks faster than it is for five reports.
    pub fn report(&self, report: &LoadReport, now: Nanos) {
        let LoadReport { messages_in_queue, processing_time } = report.clamped();
        let mut recent = lock(&self.cold.recent);
        recent.push(nanoseconds(processing_time));
        self.hot.t_p.store(recent.mean(), Relaxed);
        self.hot.m_q.store(messages_in_queue, Relaxed);
        self.reset_sent();
        self.hot.t_r.store(now.0, Relaxed);
    }

    /// Says whether the client can take messages; every pick that starts after this call has returned heeds it,
    /// one that is under way may not.
    pub fn set_availability(&self, availability: Availability) {
        self.hot.availability.store(availability as u8, Relaxed);
    }

    /// What [`set_availability`](Self::set_availability) last said.
    pub fn availability(&self) -> Availability {
        match self.hot.availability.load(Relaxed) {
            FULL => Availability::Full,
            OFFLINE => Availability::Offline,
            _ => Availability::Ready,
        }
    }

    /// The fields of Table 3, each as it is now (see the type about their combination).
    pub fn snapshot(&self) -> LoadSnapshot {
        LoadSnapshot {
            messages_in_queue: self.hot.m_q.load(Relaxed),
            sent_since_report: self.hot.m_s.load(Relaxed),
            processing_time: Duration::from_nanos(self.hot.t_p.load(Relaxed)),
            reported_at: Nanos(self.hot.t_r.load(Relaxed)),
            sent_at: Nanos(self.hot.t_s.load(Relaxed)),
        }
    }

    /// The client was chosen for a message at `now`.
    pub(crate) fn book(&self, now: Nanos) {
        self.hot.m_s.fetch_add(1, Relaxed);
        self.hot.t_s.store(now.0, Relaxed);
    }

    /// A swap where a store would do, since loom's models place only read-modify-writes exactly among the
    /// increments; it costs nothing at the rate of reports.
    fn reset_sent(&self) {
        self.hot.m_s.swap(0, Relaxed);
    }

    /// The availability as a number that is smaller for the better candidate: 0, 1 or 2.
    pub(crate) fn rank(&self) -> u64 {
        u64::from(self.hot.availability.load(Relaxed))
    }

    /// m_q + m_s: messages which the client has still to process as far as we know.
    pub(crate) fn pending(&self) -> u64 {
        // m_q is at most 2^31 and nobody sends 2^63 messages between two reports.
        self.hot.m_q.load(Relaxed).wrapping_add(self.hot.m_s.load(Relaxed))
    }

    /// t_p in nanoseconds; 0 = unknown.
    pub(crate) fn processing_ns(&self) -> u64 {
        self.hot.t_p.load(Relaxed)
    }

    /// t_r in nanoseconds.
    pub(crate) fn reported_at_ns(&self) -> u64 {
        self.hot.t_r.load(Relaxed)
    }

    /// t_s in nanoseconds.
    pub(crate) fn sent_at_ns(&self) -> u64 {
        self.hot.t_s.load(Relaxed)
    }
}

/// Whether a client can take messages now. A pick takes the best kind that the group has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Availability {
    /// Connected, with room in its queue and quota left.
    #[default]
    Ready = 0,
    /// Connected, but its queue is full or its quota used up: passed over while any other member is `Ready`.
    Full = FULL,
    /// Not connected, its session kept: chosen only if every member is `Offline`; the message then waits for it.
    Offline = OFFLINE,
}

/// A copy of the fields of a [`MemberLoad`], for dashboards and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSnapshot {
    /// m_q: messages waiting at the client by its last report.
    pub messages_in_queue: u64,
    /// m_s: messages sent to the client since its last report.
    pub sent_since_report: u64,
    /// t_p: mean of the last five reported processing times; zero = unknown.
    pub processing_time: Duration,
    /// t_r: when the last report came, or the session was established.
    pub reported_at: Nanos,
    /// t_s: when the client was last chosen, or the session was established.
    pub sent_at: Nanos,
}

/// The last five reported means, in ns, zeros included.
#[derive(Debug, Default)]
struct RecentMeans {
    means: [u64; RECENT],
    pushed: usize,
}

impl RecentMeans {
    /// Adds a mean, dropping the oldest beyond five.
    fn push(&mut self, mean_ns: u64) {
        self.means[self.pushed % RECENT] = mean_ns;
        self.pushed += 1;
    }

    /// The mean of the list, rounded down; 0 if it is empty. The slots not yet used are 0 and add nothing.
    fn mean(&self) -> u64 {
        let sum: u64 = self.means.iter().sum();
        sum / self.pushed.clamp(1, RECENT) as u64
    }
}

/// `duration` in nanoseconds; the caller has bounded it to an hour.
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

const FULL: u8 = 1;
const OFFLINE: u8 = 2;
/// Length of the list of reported means (thesis §4.1.2, Table 3).
const RECENT: usize = 5;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn report(messages_in_queue: u64, processing_ms: u64) -> LoadReport {
        LoadReport { messages_in_queue, processing_time: Duration::from_millis(processing_ms) }
    }

    #[test]
    fn the_hot_fields_have_one_line_and_the_rest_another() {
        assert_eq!((size_of::<Hot>(), align_of::<Hot>()), (64, 64));
        assert_eq!(size_of::<MemberLoad>(), 128);
        assert_eq!(std::mem::offset_of!(MemberLoad, hot), 0);
    }

    #[test]
    fn table_3_events() {
        let load = MemberLoad::new(Nanos(5));
        let fresh = LoadSnapshot {
            messages_in_queue: 0,
            sent_since_report: 0,
            processing_time: Duration::ZERO,
            reported_at: Nanos(5),
            sent_at: Nanos(5),
        };
        assert_eq!(load.snapshot(), fresh);

        load.book(Nanos(7));
        load.book(Nanos(8));
        assert_eq!(load.snapshot(), LoadSnapshot { sent_since_report: 2, sent_at: Nanos(8), ..fresh });

        load.report(&report(3, 25), Nanos(9));
        let reported = LoadSnapshot {
            messages_in_queue: 3,
            sent_since_report: 0,
            processing_time: Duration::from_millis(25),
            reported_at: Nanos(9),
            sent_at: Nanos(8),
        };
        assert_eq!(load.snapshot(), reported);

        load.set_availability(Availability::Full);
        load.connected(Nanos(11));
        assert_eq!(load.snapshot(), LoadSnapshot { reported_at: Nanos(11), sent_at: Nanos(11), ..fresh });
        assert_eq!(load.availability(), Availability::Full);
        load.report(&report(0, 40), Nanos(12));
        assert_eq!(load.snapshot().processing_time, Duration::from_millis(40), "the list was emptied too");
    }

    #[test]
    fn t_p_is_the_mean_of_the_last_five_reports_zeros_included() {
        let load = MemberLoad::new(Nanos(0));
        let expected = [(0, 0), (0, 0), (30, 10), (30, 15), (40, 20), (50, 30), (100, 50), (30, 50), (30, 50), (0, 42)];
        for (reported_ms, mean_ms) in expected {
            load.report(&report(0, reported_ms), Nanos(1));
            assert_eq!(load.snapshot().processing_time, Duration::from_millis(mean_ms));
        }
    }

    #[test]
    fn a_report_beyond_the_limits_counts_as_the_limits() {
        let load = MemberLoad::new(Nanos(0));
        load.report(&LoadReport { messages_in_queue: u64::MAX, processing_time: Duration::MAX }, Nanos(1));
        assert_eq!(load.snapshot().messages_in_queue, LoadReport::MESSAGES_IN_QUEUE_MAX);
        assert_eq!(load.snapshot().processing_time, LoadReport::PROCESSING_TIME_MAX);
    }

    #[test]
    fn availability_is_what_was_set() {
        let load = MemberLoad::new(Nanos(0));
        assert_eq!(load.availability(), Availability::Ready);
        for availability in [Availability::Full, Availability::Offline, Availability::Ready] {
            load.set_availability(availability);
            assert_eq!(load.availability(), availability);
        }
    }
}
