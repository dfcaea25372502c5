//! The load of one client: its reports, and the messages sent to it since.

mod findings;
mod recent_means;
mod rejections;
mod slots;
mod snapshot;

use std::time::Duration;

pub use crate::availability::Availability;
pub use snapshot::LoadSnapshot;

use recent_means::RecentMeans;
use rejections::Rejections;
use slots::Slots;

use crate::{
    acknowledged::Acknowledged,
    availability::Finding,
    estimate::{Estimate, flag},
    hot::Hot,
    latency::PeakLatency,
    limit::{Learner, Lesson, Seen},
    nanos::Nanos,
    outstanding::Outstanding,
    policy::adaptive::late,
    report::LoadReport,
    rules::Rules,
    sync::{AtomicU32, AtomicU64, Mutex, Relaxed, lock},
};

/// The load of one client connection, shared (by `Arc`) by all groups that the client is a member of (thesis §4.1.2,
/// Table 3).
///
/// | event | call | update |
/// |---|---|---|
/// | session established | [`new`](Self::new), [`connected`](Self::connected) | m_q = m_s = t_p = 0; t_r = t_s = now |
/// | report | [`report`](Self::report) | push the mean, t_p = mean of last five; m_q = reported; m_s = 0; t_r = now |
/// | chosen | `Members::pick` | m_s += 1; t_s = now; one more outstanding |
/// | done with | [`written`](Self::written), [`acknowledged`](Self::acknowledged) | one less outstanding |
/// | not read | [`lags`](Self::lags), [`caught_up`](Self::caught_up) | |
/// | given to another | [`taken_back`](Self::taken_back) | m_s −= 1; one less outstanding |
/// | rejected | [`refused`](Self::refused) | one less outstanding |
/// | overdue | [`set_overdue`](Self::set_overdue) | |
/// | disconnect | dropped, or kept with [`Availability::Offline`] | |
///
/// The fields of the table are for `thesis_score`. For `adaptive` there are also an estimate of the client's speed and
/// a clock: the time at which the client will have finished all messages sent to it.
///
/// All methods may be called from any thread. Each field is read whole, but not all fields of one instant: a pick
/// concurrent with a report may combine the new m_q with the old m_s and misjudge this one message. A lock would not
/// prevent the larger error of this kind: messages on the wire while the client writes its report.
#[derive(Debug)]
#[repr(C)] // the lines in this order
pub struct MemberLoad {
    hot: Hot,
    reported: Reported,
}

/// Fields that only some policies read. Written by evidence and `connected` only, under the lock of `known`.
#[derive(Debug)]
#[repr(align(64))]
struct Reported {
    /// Messages waiting at the client by its last report.
    m_q: AtomicU32,
    /// When a suspect is tried next, in units of about a millisecond that wrap after 52 days.
    trial_at: AtomicU32,
    /// Mean processing time in ns; 0 = unknown.
    t_p: AtomicU64,
    /// Instant of the last report; before the first, of the establishment of the session.
    t_r: AtomicU64,
    /// `sent` at the last report.
    sent_at_report: AtomicU64,
    /// Latency of acknowledgements; written by `acknowledged` too.
    latency: PeakLatency,
    /// State that only evidence uses. The lock also keeps the fields of concurrent reports and `connected` calls
    /// together. It is practically free, since one task handles a connection.
    known: Mutex<Known>,
}

/// Evidence about a client's speed, if any. Most clients have none: they are in no share group and do not report.
#[derive(Debug, Default)]
struct Known(Option<Box<Evidence>>);

/// State gathered from evidence.
#[derive(Debug)]
struct Evidence {
    recent: RecentMeans,
    estimate: Estimate,
    learner: Learner,
    /// Number of overdue reports.
    late_reports: u64,
    /// Number of messages taken back.
    taken_back: u64,
    rejections: Rejections,
    slots: Slots,
}

impl Evidence {
    fn new(now: Nanos) -> Self {
        let (recent, estimate) = (RecentMeans::default(), Estimate::new(now.0));
        Self {
            recent,
            estimate,
            learner: Learner::default(),
            late_reports: 0,
            taken_back: 0,
            rejections: Rejections::default(),
            slots: Slots::default(),
        }
    }

    /// Returns whether acknowledgements may end a [finding](Finding), or bring one nearer to its end.
    #[inline]
    fn is_watched(&self) -> bool {
        self.rejections.number() > 0 || self.slots.overdue() > 0
    }
}

impl MemberLoad {
    /// The load of a client whose session is established at `now`, [`Availability::Ready`].
    pub fn new(now: Nanos) -> Self {
        Self {
            hot: Hot::new(now.0),
            reported: Reported {
                m_q: AtomicU32::new(0),
                trial_at: AtomicU32::new(0),
                t_p: AtomicU64::new(0),
                t_r: AtomicU64::new(now.0),
                sent_at_report: AtomicU64::new(0),
                latency: PeakLatency::unknown(),
                known: Mutex::new(Known::default()),
            },
        }
    }

    /// Resets the load for a new connection of the session.
    ///
    /// Availability stays as it is, since the observer of the client's queue sets it. Outstanding messages stay too,
    /// since the session still holds them.
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

    /// Takes the client's own report, received at `now` on any channel. Values above the limits of [`LoadReport`] count
    /// as the limits.
    ///
    /// A processing time of zero (nothing was processed) enters the mean of the last five like any other, as in the
    /// thesis. So a client that reports before its first message looks too fast for five reports.
    pub fn report(&self, report: &LoadReport, now: Nanos) {
        let LoadReport { messages_in_queue, processing_time, draining } = report.clamped();
        let processing_ns = nanoseconds(processing_time);
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        evidence.recent.push(processing_ns);
        evidence.late_reports += u64::from(self.hot.due() < now.0);
        self.reported.t_p.store(evidence.recent.mean(), Relaxed);
        self.reported.m_q.store(messages_in_queue as u32, Relaxed); // at most 2^31
        // A read-modify-write, so that loom's models order it exactly among the increments.
        self.reported.sent_at_report.store(self.hot.sent_exactly(), Relaxed);
        self.reported.t_r.store(now.0, Relaxed);
        self.hot.learn(now.0, |seen| evidence.estimate.reported(seen, messages_in_queue, processing_ns, draining));
    }

    /// Drains the client at `now`, or ends that. The drain holds in spite of the client's reports, until its next
    /// connection.
    pub fn drain(&self, drains: bool, now: Nanos) {
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        self.hot.learn(now.0, |_| evidence.estimate.told_to_drain(drains));
    }

    /// Takes a ping at `now` without a report. After three in a row the client counts as one that does not report.
    pub fn plain_ping(&self, now: Nanos) {
        // Without evidence there are no reports to give up.
        if let Known(Some(evidence)) = &mut *lock(&self.reported.known) {
            self.hot.learn(now.0, |seen| evidence.estimate.plain_ping(seen));
        }
    }

    /// Takes messages that the client acknowledged for good (PUBACK, PUBCOMP). They must have been picked with
    /// [`is_acknowledged`](crate::Dispatch::is_acknowledged).
    pub fn acknowledged(&self, acknowledged: &Acknowledged) {
        if acknowledged.messages == 0 {
            return;
        }
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        let now = acknowledged.at;
        if late::is_short(&self.hot) {
            evidence.learner.interrupt();
        } else {
            self.learn_service(evidence, acknowledged);
        }
        self.hot.no_longer_outstanding(acknowledged.messages, acknowledged.bytes);
        // The longest latency: shorter ones of the same moment do not lower a peak.
        self.reported.latency.observe(now.0.saturating_sub(acknowledged.first_sent_at.0), now);
        self.hot.learn(now.0, |seen| evidence.estimate.acknowledged(seen, acknowledged));
        if evidence.is_watched() {
            self.accepted(evidence, acknowledged);
        }
    }

    /// Takes unacknowledged messages of `bytes` in total that left for the client's socket at `now`.
    ///
    /// `is_backlogged`: more messages wait because the socket takes no more. Then the client is the bottleneck, and the
    /// time from one such call to the next shows its speed. Zero messages are allowed, to report when the socket ceased
    /// to take any.
    pub fn written(&self, messages: u32, bytes: u64, is_backlogged: bool, now: Nanos) {
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        self.hot.no_longer_outstanding(messages, bytes);
        if self.hot.outstanding().messages == 0 {
            evidence.learner.ended();
        }
        self.hot.learn(now.0, |seen| evidence.estimate.written(seen, messages.into(), is_backlogged));
        if messages > 0 {
            // After `learn`, which clears the due time of these messages.
            self.hot.may_owe_nothing();
        }
    }

    /// Takes a read probe of messages that need no acknowledgement: the client has read `read` of them within `span`,
    /// and `unread` are left.
    ///
    /// The unread messages are in buffers, so they cannot be taken back. The client gets more when it should have read
    /// them, at the latest after a second. Lags below 50 ms do not count, nor do those of clients that report or
    /// acknowledge.
    pub fn lags(&self, read: u64, span: Duration, unread: u64, now: Nanos) {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        self.hot.learn(now.0, |seen| evidence.estimate.lags(seen, read, span_ns, unread));
    }

    /// Ends a lag: the client has read the messages written for it, or nearly all, `read` of them within `span`.
    pub fn caught_up(&self, read: u64, span: Duration, now: Nanos) {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        if let Known(Some(evidence)) = &mut *lock(&self.reported.known) {
            self.hot.learn(now.0, |_| evidence.estimate.caught_up(read, span_ns));
        }
    }

    /// Takes back messages of `bytes` in total for which the client was chosen. They went to other members or were
    /// dropped.
    pub fn taken_back(&self, messages: u32, bytes: u64, now: Nanos) {
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        evidence.taken_back += u64::from(messages);
        evidence.learner.interrupt();
        self.hot.no_longer_outstanding(messages, bytes);
        self.hot.take_back(messages.into(), self.hot.speed().processing_ns());
        self.hot.learn(now.0, |seen| evidence.estimate.taken_back(seen));
    }

    /// Cancels a booking of `service_ns`, because the picker books the message on another member.
    pub(crate) fn unbooked(&self, bytes: u32, service_ns: u64, now: Nanos) {
        let known = lock(&self.reported.known);
        self.hot.no_longer_outstanding(1, bytes.into());
        self.hot.take_back(1, service_ns);
        self.hot.learn(now.0, |seen| match &known.0 {
            Some(evidence) => evidence.estimate.taken_back(seen),
            // Temporary state for this call: a pick allocates nothing.
            None => self.nothing_known().estimate.taken_back(seen),
        });
    }

    /// Sets whether the client can take messages. Every pick that starts after this call has returned heeds it.
    pub fn set_availability(&self, availability: Availability) {
        self.hot.set_availability(availability);
    }

    /// Returns the availability last set.
    pub fn availability(&self) -> Availability {
        self.hot.eligibility().availability()
    }

    /// Returns whether the client's last report asked for no further messages.
    pub fn is_draining(&self) -> bool {
        self.hot.flags() & flag::DRAINING != 0
    }

    /// Sets the round-trip time of a packet, e.g. the shortest that the socket measured. Stored in steps of 32 µs, up to 2 s;
    /// unknown counts as zero.
    pub fn set_round_trip(&self, round_trip: Duration) {
        let one_way_ns = round_trip.min(MINUTE).as_nanos() as u64 / 2;
        self.hot.set_delay_ns(one_way_ns);
    }

    /// Returns how many messages the client may have outstanding before others wait with a group of these rules; `None` = any
    /// number. It may get more while many wait.
    pub fn limit(&self, rules: &Rules) -> Option<u64> {
        late::limit(&self.hot, rules, 0)
    }

    /// Returns whether the client may begin with another message, if many wait.
    pub fn can_begin(&self) -> bool {
        let limit = late::limit(&self.hot, &Rules::default(), MANY);
        !self.hot.eligibility().has(Finding::Stuck) && limit.is_none_or(|limit| self.hot.in_work() < limit)
    }

    /// Sets the client's Receive Maximum: its messages beyond it wait with the group, not in the client's own queue.
    /// Above [`RECEIVE_MAXIMUM_MOST`](Self::RECEIVE_MAXIMUM_MOST) it counts as none.
    pub fn set_receive_maximum(&self, messages: u16) {
        self.hot.set_receive_maximum(if messages <= Self::RECEIVE_MAXIMUM_MOST { messages } else { 0 });
    }

    /// Largest Receive Maximum that limits a client: with larger ones it is the size of a buffer.
    pub const RECEIVE_MAXIMUM_MOST: u16 = 1000;

    /// Learns from acknowledgements that still count as outstanding.
    fn learn_service(&self, evidence: &mut Evidence, acknowledged: &Acknowledged) {
        let hot = &self.hot;
        evidence.learner.acknowledged(&Seen {
            now: acknowledged.at.0,
            messages: acknowledged.messages.into(),
            outstanding: hot.outstanding().messages,
            first_sent_at: acknowledged.first_sent_at.0,
        });
        hot.set_learnt(evidence.learner.learnt());
        hot.set_held(evidence.learner.held());
        hot.set_collects(evidence.learner.collects());
    }

    /// Sets how many messages the client works on at a time, as it told; 0 = unknown. It holds until
    /// the session ends.
    ///
    /// It is the first guess of the client's limit.
    pub fn set_concurrency(&self, messages: u16) {
        self.hot.set_concurrency(messages);
    }

    /// Takes a processing time from an earlier connection of the client. It has the weight of one observed message.
    pub fn assume_speed(&self, processing_time: Duration) {
        let processing_time = processing_time.min(LoadReport::PROCESSING_TIME_MAX);
        let mut known = lock(&self.reported.known);
        let evidence = self.evidence(&mut known);
        self.hot.learn(0, |_| evidence.estimate.assume(nanoseconds(processing_time)));
        self.hot.recall();
    }

    /// Returns the effective processing time learned from all evidence, for a later
    /// [`assume_speed`](Self::assume_speed). `None` if there was no evidence of it since.
    pub fn learned_speed(&self) -> Option<Duration> {
        let known = lock(&self.reported.known);
        let evidence = known.0.as_ref()?;
        let learned_ns = evidence.estimate.processing_ns().filter(|_| !evidence.estimate.is_assumed());
        learned_ns.map(Duration::from_nanos)
    }

    /// Returns whether the client's speed is known, be it from an earlier connection.
    pub fn is_speed_known(&self) -> bool {
        self.hot.speed().processing_ns() > 0
    }

    /// Returns the fields of Table 3 and others, each at its present value (see the type about their consistency).
    pub fn snapshot(&self) -> LoadSnapshot {
        let Outstanding { messages, bytes } = self.hot.outstanding();
        let (late_reports, taken_back, lesson, rejected_lately, overdue) = {
            let known = lock(&self.reported.known);
            known.0.as_ref().map_or((0, 0, Lesson::default(), 0, 0), |evidence| {
                let Evidence { late_reports, taken_back, learner, rejections, slots, .. } = &**evidence;
                (*late_reports, *taken_back, learner.lesson(), rejections.number(), slots.overdue())
            })
        };
        LoadSnapshot {
            messages_in_queue: self.reported.m_q.load(Relaxed).into(),
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
            concurrency: self.hot.concurrency() as u16,
            outstanding_maximum: self.limit(&Rules::default()),
            lesson,
            rejected_lately,
            is_suspect: self.hot.eligibility().has(Finding::Rejects),
            overdue,
        }
    }

    /// Returns the evidence, created if there is none.
    fn evidence<'a>(&self, known: &'a mut Known) -> &'a mut Evidence {
        known.0.get_or_insert_with(|| Box::new(self.nothing_known()))
    }

    /// Creates the evidence of a session without any.
    fn nothing_known(&self) -> Evidence {
        Evidence::new(Nanos(self.reported.t_r.load(Relaxed)))
    }

    /// The fields that every booking writes.
    pub(crate) fn hot(&self) -> &Hot {
        &self.hot
    }

    /// The latency of acknowledgements.
    pub(crate) fn latency(&self) -> &PeakLatency {
        &self.reported.latency
    }

    /// How eligible the client is; see [`Hot::rank`].
    pub(crate) fn rank(&self) -> u64 {
        self.hot.rank()
    }

    /// m_q + m_s: the messages that the client has still to process, as far as known.
    pub(crate) fn pending(&self) -> u64 {
        // m_q is at most 2^31, and no broker sends 2^63 messages between two reports.
        u64::from(self.reported.m_q.load(Relaxed)).wrapping_add(self.sent_since_report())
    }

    /// m_s. A pick concurrent with a report may combine the new count at the report with the old total.
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

/// Converts `duration` to nanoseconds; the caller has limited it to an hour.
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

const MINUTE: Duration = Duration::from_secs(60);

/// Messages that wait for each member, in sixteenths, so that all limits are as large as they get.
const MANY: u64 = 16 << 10;

#[cfg(all(test, not(loom)))]
mod tests;
