//! The load of one client: what it reported, and what was sent to it since.

mod availability;
mod recent_means;
mod snapshot;

use std::time::Duration;

pub use availability::Availability;
pub use snapshot::LoadSnapshot;

use recent_means::RecentMeans;

use crate::{
    acknowledged::Acknowledged,
    estimate::{Estimate, flag},
    hot::Hot,
    latency::PeakLatency,
    nanos::Nanos,
    outstanding::Outstanding,
    report::LoadReport,
    sync::{AtomicU64, Mutex, Relaxed, lock},
};

/// The load of one client connection, shared (by `Arc`) by all groups that the client is a member of
/// (thesis §4.1.2, Table 3).
///
/// | event | call | update |
/// |---|---|---|
/// | session established | [`new`](Self::new), [`connected`](Self::connected) | m_q = m_s = t_p = 0; t_r = t_s = now |
/// | report | [`report`](Self::report) | push the mean, t_p = mean of the last five; m_q = reported; m_s = 0; t_r = now |
/// | chosen | `Members::pick` | m_s += 1; t_s = now; one more outstanding |
/// | done with | [`written`](Self::written), [`acknowledged`](Self::acknowledged) | one less outstanding |
/// | not read | [`lags`](Self::lags), [`caught_up`](Self::caught_up) | |
/// | given to another | [`taken_back`](Self::taken_back) | m_s −= 1; one less outstanding |
/// | disconnect | dropped, or kept with [`Availability::Offline`] | |
///
/// Beside the fields of the table, which `thesis_score` goes by, it keeps for `adaptive` an estimate of the client's
/// speed and a clock: when the client will have finished everything that it was sent.
///
/// Any thread may call anything. Readers see each field whole, but not all fields of one instant: a pick that
/// runs into a report may combine the new m_q with the old m_s and misjudge this one message. No lock could
/// prevent the larger error of the same kind, messages that are on the wire while the client writes its report.
#[derive(Debug)]
#[repr(C)] // the lines in this order
pub struct MemberLoad {
    hot: Hot,
    reported: Reported,
}

/// What some policies read in addition. Written by evidence and `connected` alone, under the lock beside them.
#[derive(Debug)]
#[repr(align(64))]
struct Reported {
    /// Messages waiting at the client by its last report.
    m_q: AtomicU64,
    /// Mean processing time in ns; 0 = unknown.
    t_p: AtomicU64,
    /// Instant of the last report; before, of the establishment of the session.
    t_r: AtomicU64,
    /// `sent` at the last report.
    sent_at_report: AtomicU64,
    /// Of acknowledgements; written by `acknowledged` too.
    latency: PeakLatency,
    /// What only evidence touches. The lock also keeps two reports, or a report and `connected`, from mixing their
    /// fields; in practice it is free, since one task speaks for a connection.
    known: Mutex<Known>,
}

/// What is known of a client's speed: of most clients nothing, since they are in no share group and do not report.
#[derive(Debug, Default)]
struct Known(Option<Box<Evidence>>);

/// What evidence has shown.
#[derive(Debug)]
struct Evidence {
    recent: RecentMeans,
    estimate: Estimate,
    /// Reports that came after they were due.
    late_reports: u64,
    /// Messages that were taken back.
    taken_back: u64,
}

impl Evidence {
    fn new(now: Nanos) -> Self {
        Self { recent: RecentMeans::default(), estimate: Estimate::new(now.0), late_reports: 0, taken_back: 0 }
    }
}

impl MemberLoad {
    /// The load of a client whose session is established at `now`, [`Availability::Ready`].
    pub fn new(now: Nanos) -> Self {
        Self {
            hot: Hot::new(now.0),
            reported: Reported {
                m_q: AtomicU64::new(0),
                t_p: AtomicU64::new(0),
                t_r: AtomicU64::new(now.0),
                sent_at_report: AtomicU64::new(0),
                latency: PeakLatency::unknown(),
                known: Mutex::new(Known::default()),
            },
        }
    }

    /// The session is established anew: everything as after [`new`](Self::new), except the availability, which
    /// stays with whoever watches the client's queue, and what is outstanding, which the session still holds.
    pub fn connected(&self, now: Nanos) {
        let mut known = lock(&self.reported.known);
        *known = Known::default();
        self.reported.m_q.store(0, Relaxed);
        self.reported.t_p.store(0, Relaxed);
        self.reported.t_r.store(now.0, Relaxed);
        self.reported.sent_at_report.store(0, Relaxed);
        self.reported.latency.forget();
        self.hot.reset(now.0);
    }

    /// Takes the client's own report, received at `now` by whatever way. Values above the limits of
    /// [`LoadReport`] count as the limits.
    ///
    /// A processing time of zero (nothing was processed) enters the mean of the last five like any other, as the
    /// thesis has it: a client that reports before its first message looks faster than it is for five reports.
    pub fn report(&self, report: &LoadReport, now: Nanos) {
        let LoadReport { messages_in_queue, processing_time, draining } = report.clamped();
        let processing_ns = nanoseconds(processing_time);
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        evidence.recent.push(processing_ns);
        evidence.late_reports += u64::from(self.hot.due() < now.0);
        self.reported.t_p.store(evidence.recent.mean(), Relaxed);
        self.reported.m_q.store(messages_in_queue, Relaxed);
        // A read-modify-write for the same reason as in `connected`.
        self.reported.sent_at_report.store(self.hot.sent_exactly(), Relaxed);
        self.reported.t_r.store(now.0, Relaxed);
        self.hot.learn(now.0, |seen| evidence.estimate.reported(seen, messages_in_queue, processing_ns, draining));
    }

    /// The client pinged at `now` without a report. After the third in a row it is taken for one that never
    /// reports.
    pub fn plain_ping(&self, now: Nanos) {
        // Where nothing is known, nothing is given up.
        if let Known(Some(evidence)) = &mut *lock(&self.reported.known) {
            self.hot.learn(now.0, |seen| evidence.estimate.plain_ping(seen));
        }
    }

    /// The client acknowledged for good (PUBACK, PUBCOMP) messages that it was chosen for with
    /// [`is_acknowledged`](crate::Dispatch::is_acknowledged).
    pub fn acknowledged(&self, acknowledged: &Acknowledged) {
        if acknowledged.messages == 0 {
            return;
        }
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        let now = acknowledged.at;
        self.hot.no_longer_outstanding(acknowledged.messages, acknowledged.bytes);
        // The longest: shorter ones of the same moment do not lower a peak.
        self.reported.latency.observe(now.0.saturating_sub(acknowledged.first_sent_at.0), now);
        self.hot.learn(now.0, |seen| evidence.estimate.acknowledged(seen, acknowledged));
    }

    /// Messages of this many bytes together, which the client was chosen for and will not acknowledge, left for
    /// its socket at `now`. `is_backlogged` says that more is waiting because the socket takes no more: then the
    /// client is the bottleneck, and the time from one such call to the next shows its speed. No messages at all
    /// are fine: the moment at which the socket ceased to take any.
    pub fn written(&self, messages: u32, bytes: u64, is_backlogged: bool, now: Nanos) {
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        self.hot.no_longer_outstanding(messages, bytes);
        self.hot.learn(now.0, |seen| evidence.estimate.written(seen, messages.into(), is_backlogged));
        if messages > 0 {
            // Afterwards: what was due of it is due no more.
            self.hot.may_owe_nothing();
        }
    }

    /// Of what was written for the client and nobody acknowledges, it has read `read` messages within `span`, and
    /// `unread` are left, in buffers that nobody can take them back from: it is given more when it should be done with
    /// them, or in a second, whatever comes first. Nothing that is less than 50 ms of its time counts, nor does this of a
    /// client that reports or acknowledges.
    pub fn lags(&self, read: u64, span: Duration, unread: u64, now: Nanos) {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        self.hot.learn(now.0, |seen| evidence.estimate.lags(seen, read, span_ns, unread));
    }

    /// The client has read what was written for it, or nearly so; `read` messages of it within `span`.
    pub fn caught_up(&self, read: u64, span: Duration, now: Nanos) {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        if let Known(Some(evidence)) = &mut *lock(&self.reported.known) {
            self.hot.learn(now.0, |_| evidence.estimate.caught_up(read, span_ns));
        }
    }

    /// Messages of this many bytes together, which the client was chosen for, will not be sent to it: they were
    /// given to others or dropped.
    pub fn taken_back(&self, messages: u32, bytes: u64, now: Nanos) {
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        evidence.taken_back += u64::from(messages);
        self.hot.no_longer_outstanding(messages, bytes);
        self.hot.take_back(messages.into(), self.hot.speed().processing_ns());
        self.hot.learn(now.0, |seen| evidence.estimate.taken_back(seen));
    }

    /// The client refused messages of this many bytes together. They cost it as much as others would have: else one
    /// that refuses at once would seem to be free all the time.
    pub fn refused(&self, messages: u32, bytes: u64, now: Nanos) {
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        evidence.taken_back += u64::from(messages);
        self.hot.no_longer_outstanding(messages, bytes);
        self.hot.learn(now.0, |seen| evidence.estimate.taken_back(seen));
    }

    /// A picker books a message elsewhere, which it had booked here as so much work.
    pub(crate) fn unbooked(&self, bytes: u32, service_ns: u64, now: Nanos) {
        let known = lock(&self.reported.known);
        self.hot.no_longer_outstanding(1, bytes.into());
        self.hot.take_back(1, service_ns);
        self.hot.learn(now.0, |seen| match &known.0 {
            Some(evidence) => evidence.estimate.taken_back(seen),
            // Made for this alone: a pick allocates nothing.
            None => self.nothing_known().estimate.taken_back(seen),
        });
    }

    /// Says whether the client can take messages; every pick that starts after this call has returned heeds it,
    /// one that is under way may not.
    pub fn set_availability(&self, availability: Availability) {
        self.hot.set_availability(availability);
    }

    /// What [`set_availability`](Self::set_availability) last said.
    pub fn availability(&self) -> Availability {
        Availability::of(self.hot.availability())
    }

    /// Whether the client's last report asked for no further messages.
    pub fn is_draining(&self) -> bool {
        self.hot.flags() & flag::DRAINING != 0
    }

    /// Says how long a packet takes to the client and back, e.g. the socket's smoothed round-trip time. Kept in
    /// steps of 32 µs, up to 2 s; unknown counts as zero.
    pub fn set_round_trip(&self, round_trip: Duration) {
        let one_way_ns = round_trip.min(MINUTE).as_nanos() as u64 / 2;
        self.hot.set_delay_ns(one_way_ns);
    }

    /// Takes a processing time that is known from before, e.g. from the client's last connection: it counts as
    /// much as one message observed.
    pub fn assume_speed(&self, processing_time: Duration) {
        let processing_time = processing_time.min(LoadReport::PROCESSING_TIME_MAX);
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        self.hot.learn(0, |_| evidence.estimate.assume(nanoseconds(processing_time)));
        self.hot.recall();
    }

    /// The effective processing time of a message as it was learned from all evidence, to be remembered for
    /// [`assume_speed`](Self::assume_speed). `None` if nothing was learned since that said something.
    pub fn learned_speed(&self) -> Option<Duration> {
        let known = lock(&self.reported.known);
        let evidence = known.0.as_ref()?;
        let learned_ns = evidence.estimate.processing_ns().filter(|_| !evidence.estimate.is_assumed());
        learned_ns.map(Duration::from_nanos)
    }

    /// Whether anything is known of the client's speed, be it from before.
    pub fn is_speed_known(&self) -> bool {
        self.hot.speed().processing_ns() > 0
    }

    /// The fields of Table 3 and what came with them, each as it is now (see the type about their combination).
    pub fn snapshot(&self) -> LoadSnapshot {
        let Outstanding { messages, bytes } = self.hot.outstanding();
        let (late_reports, taken_back) = {
            let known = lock(&self.reported.known);
            known.0.as_ref().map_or((0, 0), |evidence| (evidence.late_reports, evidence.taken_back))
        };
        LoadSnapshot {
            messages_in_queue: self.reported.m_q.load(Relaxed),
            sent_since_report: self.sent_since_report(),
            processing_time: Duration::from_nanos(self.reported.t_p.load(Relaxed)),
            reported_at: Nanos(self.reported.t_r.load(Relaxed)),
            sent_at: Nanos(self.hot.sent_at()),
            sent: self.hot.sent(),
            outstanding_messages: messages,
            outstanding_bytes: bytes,
            is_draining: self.is_draining(),
            effective_processing_time: Duration::from_nanos(self.hot.speed().processing_ns()),
            late_reports,
            taken_back,
            round_trip: Duration::from_nanos(self.hot.delay_ns() * 2),
        }
    }

    /// What is known, for evidence to add to it.
    fn evidence<'a>(&self, known: &'a mut Known) -> &'a mut Evidence {
        known.0.get_or_insert_with(|| Box::new(self.nothing_known()))
    }

    /// Of the session as it was established.
    fn nothing_known(&self) -> Evidence {
        Evidence::new(Nanos(self.reported.t_r.load(Relaxed)))
    }

    /// What every booking writes.
    pub(crate) fn hot(&self) -> &Hot {
        &self.hot
    }

    /// How long it takes to acknowledge.
    pub(crate) fn latency(&self) -> &PeakLatency {
        &self.reported.latency
    }

    /// How eligible the client is; see [`Hot::rank`].
    pub(crate) fn rank(&self) -> u64 {
        self.hot.rank()
    }

    /// m_q + m_s: messages which the client has still to process as far as we know.
    pub(crate) fn pending(&self) -> u64 {
        // m_q is at most 2^31 and nobody sends 2^63 messages between two reports.
        self.reported.m_q.load(Relaxed).wrapping_add(self.sent_since_report())
    }

    /// m_s. A pick that runs into a report may see the new beginning and the old end.
    fn sent_since_report(&self) -> u64 {
        self.hot.sent().saturating_sub(self.reported.sent_at_report.load(Relaxed))
    }

    /// t_p in nanoseconds; 0 = unknown.
    pub(crate) fn processing_ns(&self) -> u64 {
        self.reported.t_p.load(Relaxed)
    }

    /// t_r in nanoseconds.
    pub(crate) fn reported_at_ns(&self) -> u64 {
        self.reported.t_r.load(Relaxed)
    }

    /// t_s in nanoseconds.
    pub(crate) fn sent_at_ns(&self) -> u64 {
        self.hot.sent_at()
    }
}

/// `duration` in nanoseconds; the caller has bounded it to an hour.
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

const MINUTE: Duration = Duration::from_secs(60);

#[cfg(all(test, not(loom)))]
mod tests;
