//! The fields of a client that change with every message and every piece of evidence, on one cache line.

use crate::{
    availability::{Availability, Eligibility, Finding},
    dispatch::Dispatch,
    estimate::{Finish, MARGIN_MOST, Observed, Verdict, flag, margin_in_sixteenths, margin_ns},
    limit::Learnt,
    outstanding::Outstanding,
    speed::Speed,
    sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Relaxed, change},
};

/// The fields of a member that `adaptive` reads and every booking writes, on one cache line.
///
/// Every access is `Relaxed`: each field is independent, and no other data is published through it. The atomics only
/// have to lose no increment of `sent` and `outstanding`.
///
/// The alignment is 64 bytes, not 128. Processors that fetch lines in pairs still do not couple two clients: in an
/// `Arc` the line before this one holds the reference counts.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Hot {
    /// F: the time at which the client will have finished all messages sent to it, as far as known. Written by every
    /// pick (compare and exchange), by all evidence (compare and exchange) and by `connected`.
    finish: AtomicU64,
    /// D: when evidence of the client's work is due; `MAX` = none is expected. Written by evidence, by `connected`, and
    /// by a pick if it was `MAX`.
    due: AtomicU64,
    /// Instant of the last send. Written by every pick and by `connected`. The last writer wins, so it may go back a
    /// little if two pickers have clock readings of different age.
    t_s: AtomicU64,
    /// A [`Speed`]: the effective processing time. Written by evidence and `connected`, under the lock of `Reported`.
    speed: AtomicU64,
    /// Messages sent since the session was established. Incremented by every pick.
    sent: AtomicU64,
    /// An [`Outstanding`]. Increased by every pick, decreased by `written`, `acknowledged` and `taken_back`.
    outstanding: AtomicU64,
    /// The margin of F for [`margin_ns`]; 0 if acknowledgements count. Written by evidence, `connected` and
    /// `set_concurrency`.
    margin: AtomicU32,
    /// One-way delay in [`DELAY_UNIT_NS`]; 0 = unknown. Written by `set_round_trip` and `connected`.
    delay: AtomicU16,
    /// Messages that the client works on at a time, as it told; 0 = unknown. Written by `set_concurrency` only.
    concurrency: AtomicU16,
    /// The client's Receive Maximum; 0 = too large to count. Written by `set_receive_maximum` only.
    receive_maximum: AtomicU16,
    /// Outstanding messages that the client does not work on: it acknowledged later ones. Written by evidence and `connected`.
    held: AtomicU16,
    /// A [`Learnt`]. Written by evidence and `connected`.
    learnt: AtomicU8,
    /// An [`Eligibility`]. `set_availability`, evidence, `connected` and scans of a group each change their own part of it (compare
    /// and exchange).
    eligibility: AtomicU8,
    /// [Flags](flag) from evidence. Written by evidence and `connected`, under the lock of `Reported`.
    flags: AtomicU8,
    /// [Marks](mark). Pickers and groups set bits; `connected` clears them.
    marks: AtomicU8,
}

/// Facts about a client that pickers and groups detect, as bits of one byte.
pub(crate) mod mark {
    /// When it joined, the group's mean speed was known; or it was sent messages in an earlier connection.
    pub(crate) const NEWCOMER: u8 = 1;
    /// It was sent a message that it has to acknowledge.
    pub(crate) const ASKED: u8 = 2;
    /// Another client of its group acknowledges before the work is done.
    pub(crate) const SUSPECT: u8 = 4;
    /// Messages that other members acknowledge were sent to it at QoS 0.
    pub(crate) const AT_QOS_0: u8 = 8;
    /// Its speed was known from an earlier session.
    pub(crate) const RECALLED: u8 = 16;
    /// It collects messages before it acknowledges them.
    pub(crate) const COLLECTS: u8 = 64;
    /// It refused a message.
    pub(crate) const REFUSED: u8 = 128;
}

impl Hot {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            finish: AtomicU64::new(now),
            due: AtomicU64::new(u64::MAX),
            t_s: AtomicU64::new(now),
            speed: AtomicU64::new(Speed::of(0).to_word()),
            sent: AtomicU64::new(0),
            outstanding: AtomicU64::new(0),
            margin: AtomicU32::new(MARGIN_MOST.into()),
            delay: AtomicU16::new(0),
            concurrency: AtomicU16::new(0),
            receive_maximum: AtomicU16::new(0),
            held: AtomicU16::new(0),
            learnt: AtomicU8::new(0),
            eligibility: AtomicU8::new(Eligibility::READY.0),
            flags: AtomicU8::new(0),
            marks: AtomicU8::new(0),
        }
    }

    /// Resets everything, except the availability, the limits and the outstanding messages. A client that was sent
    /// messages before begins as a new member.
    pub(crate) fn reset(&self, now: u64) {
        // A swap instead of a store, because loom's models order only read-modify-writes exactly among the increments.
        // Its cost is negligible at the rate of sessions.
        let was_in_use = self.sent.swap(0, Relaxed) > 0;
        self.t_s.store(now, Relaxed);
        self.finish.swap(now, Relaxed);
        self.due.store(u64::MAX, Relaxed);
        self.speed.store(Speed::of(0).to_word(), Relaxed);
        self.delay.store(0, Relaxed);
        self.flags.store(0, Relaxed);
        self.learnt.store(0, Relaxed);
        self.held.store(0, Relaxed);
        self.marks.store(if was_in_use { mark::NEWCOMER } else { 0 }, Relaxed);
        self.set_margin(MARGIN_MOST);
        self.change_eligibility(Eligibility::without_findings);
    }

    /// Books a message that will take the client `service_ns`, at least 1. Returns `false`, without booking, if F is no
    /// longer `seen_finish`.
    ///
    /// F is changed first. Evidence between that and the count of outstanding messages may set F without this message.
    /// F then lacks its time until the next evidence; the counts are exact.
    #[inline]
    pub(crate) fn try_book(&self, dispatch: &Dispatch, service_ns: u64, seen_finish: u64, mean_ns: u64) -> bool {
        let finish = seen_finish.max(self.start(dispatch, service_ns)).saturating_add(service_ns.max(1));
        if self.finish.compare_exchange(seen_finish, finish, Relaxed, Relaxed).is_err() {
            return false;
        }
        self.count(dispatch, service_ns, mean_ns);
        true
    }

    /// Books a message like [`try_book`](Self::try_book), whatever F is.
    #[inline]
    pub(crate) fn book(&self, dispatch: &Dispatch, service_ns: u64, mean_ns: u64) {
        let start = self.start(dispatch, service_ns);
        change(&self.finish, |finish| finish.max(start).saturating_add(service_ns.max(1)));
        self.count(dispatch, service_ns, mean_ns);
    }

    /// Returns when the client begins with the message at the earliest: on arrival, and later by the margin of F.
    #[inline(always)]
    fn start(&self, dispatch: &Dispatch, service_ns: u64) -> u64 {
        let arrival = dispatch.at.0.saturating_add(self.delay_ns());
        arrival.saturating_add(margin_ns(self.margin.load(Relaxed), service_ns))
    }

    /// Does the part of a booking without F. `mean_ns` is the group's mean; 0 = no member's speed is known.
    #[inline]
    fn count(&self, dispatch: &Dispatch, service_ns: u64, mean_ns: u64) {
        let (now, delay_ns) = (dispatch.at.0, self.delay_ns());
        self.t_s.store(now, Relaxed);
        self.sent.fetch_add(1, Relaxed);
        self.outstanding.fetch_add(Outstanding { messages: 1, bytes: dispatch.bytes.into() }.to_word(), Relaxed);
        if dispatch.is_acknowledged {
            self.expect_ack(now, delay_ns, service_ns, mean_ns);
        }
    }

    /// Sets the due time of an acknowledgement, if none was due.
    ///
    /// A client that never gave one has at least twice the group's mean time, regardless of its reported speed. While
    /// there is no mean, none is due.
    #[inline]
    fn expect_ack(&self, now: u64, delay_ns: u64, service_ns: u64, mean_ns: u64) {
        let flags = self.flags();
        let work_ns = if flags & flag::ACKS == 0 {
            let marks = self.marks();
            if marks & mark::AT_QOS_0 != 0 {
                return;
            }
            if marks & mark::ASKED == 0 {
                self.marks.fetch_or(mark::ASKED, Relaxed);
            }
            2 * service_ns.max(mean_ns)
        } else {
            service_ns
        };
        let is_expected = flags & flag::ACK_MODE != 0 || flags & flag::ACKS == 0 && mean_ns > 0;
        if is_expected && self.due.load(Relaxed) == u64::MAX {
            self.due.store(now.saturating_add(2 * delay_ns).saturating_add(work_ns), Relaxed);
        }
    }

    /// Publishes the result of evidence. The caller prevents concurrent calls.
    pub(crate) fn learn(&self, now: u64, evaluate: impl FnOnce(&Observed) -> Verdict) {
        // Read before the outstanding messages: if F is still this value below, no counted booking is missing from it.
        let seen_finish = self.finish.load(Relaxed);
        let delay = self.delay_ns();
        let verdict = evaluate(&Observed {
            now,
            finish: seen_finish,
            delay,
            sent: self.sent.load(Relaxed),
            sent_at: self.t_s.load(Relaxed),
            outstanding: self.outstanding().messages,
            concurrency: self.concurrency(),
            is_suspect: self.marks() & mark::SUSPECT != 0,
            is_asked: self.marks() & mark::ASKED != 0,
        });
        self.speed.store(Speed::of(verdict.processing_ns).to_word(), Relaxed);
        self.flags.store(verdict.flags, Relaxed);
        self.set_margin(verdict.margin);
        if let Some(due) = verdict.due {
            self.due.store(due, Relaxed);
        }
        match verdict.finish {
            Finish::Keep => {}
            Finish::Within { least, most } => change(&self.finish, |finish| finish.clamp(least, most)),
            Finish::Exactly(finish) => {
                // If a concurrent pick changed F, its value stays: it includes one message more.
                let _ = self.finish.compare_exchange(seen_finish, finish, Relaxed, Relaxed);
            }
        }
    }

    pub(crate) fn no_longer_outstanding(&self, messages: u32, bytes: u64) {
        let without = |word| Outstanding::from_word(word).without(messages.into(), bytes).to_word();
        change(&self.outstanding, without);
    }

    /// Takes back messages that were never sent, each booked with `service_ns`.
    pub(crate) fn take_back(&self, messages: u64, service_ns: u64) {
        change(&self.sent, |sent| sent.saturating_sub(messages));
        let work_ns = service_ns.saturating_mul(messages);
        change(&self.finish, |finish| finish.saturating_sub(work_ns));
    }

    /// Handles a sent message that the client will not acknowledge. If no other is outstanding and the client never
    /// acknowledged any, it was granted QoS 0 and owes no acknowledgement.
    pub(crate) fn may_owe_nothing(&self) {
        let is_asked = self.flags() & flag::ACKS == 0 && self.marks() & mark::ASKED != 0;
        if is_asked && self.outstanding().messages == 0 {
            self.marks.fetch_or(mark::AT_QOS_0, Relaxed);
            self.marks.fetch_and(!mark::ASKED, Relaxed);
        }
    }

    /// Sets [`mark::SUSPECT`].
    pub(crate) fn suspect(&self) {
        self.marks.fetch_or(mark::SUSPECT, Relaxed);
    }

    /// Sets [`mark::REFUSED`].
    pub(crate) fn refused(&self) {
        self.marks.fetch_or(mark::REFUSED, Relaxed);
    }

    /// Sets [`mark::NEWCOMER`].
    pub(crate) fn begin_as_newcomer(&self) {
        self.marks.fetch_or(mark::NEWCOMER, Relaxed);
    }

    /// Sets [`mark::RECALLED`].
    pub(crate) fn recall(&self) {
        self.marks.fetch_or(mark::RECALLED, Relaxed);
    }

    /// Sets or clears [`mark::COLLECTS`].
    pub(crate) fn set_collects(&self, collects: bool) {
        match (collects, self.marks() & mark::COLLECTS != 0) {
            (true, false) => _ = self.marks.fetch_or(mark::COLLECTS, Relaxed),
            (false, true) => _ = self.marks.fetch_and(!mark::COLLECTS, Relaxed),
            _ => {}
        }
    }

    pub(crate) fn set_availability(&self, availability: Availability) {
        self.change_eligibility(|is| is.with_availability(availability));
    }

    /// Sets or clears a finding.
    pub(crate) fn set_finding(&self, finding: Finding, holds: bool) {
        self.change_eligibility(|is| is.with(finding, holds));
    }

    /// Replaces the eligibility by `next` of it. Writes nothing if it stays the same.
    pub(crate) fn change_eligibility(&self, next: impl Fn(Eligibility) -> Eligibility) {
        let changed = |byte| {
            let next = next(Eligibility(byte)).0;
            (next != byte).then_some(next)
        };
        let _ = self.eligibility.fetch_update(Relaxed, Relaxed, changed);
    }

    pub(crate) fn set_delay_ns(&self, delay_ns: u64) {
        let units = (delay_ns / DELAY_UNIT_NS).min(u16::MAX.into());
        self.delay.store(units as u16, Relaxed);
    }

    #[inline]
    pub(crate) fn finish(&self) -> u64 {
        self.finish.load(Relaxed)
    }

    #[inline]
    pub(crate) fn due(&self) -> u64 {
        self.due.load(Relaxed)
    }

    #[inline]
    pub(crate) fn sent_at(&self) -> u64 {
        self.t_s.load(Relaxed)
    }

    #[inline]
    pub(crate) fn speed(&self) -> Speed {
        Speed::from_word(self.speed.load(Relaxed))
    }

    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// The number of messages sent, by a read-modify-write instead of a load. Loom's models order only these exactly
    /// among the increments. Its cost is negligible at the rate of reports.
    pub(crate) fn sent_exactly(&self) -> u64 {
        self.sent.fetch_add(0, Relaxed)
    }

    #[inline]
    pub(crate) fn outstanding(&self) -> Outstanding {
        Outstanding::from_word(self.outstanding.load(Relaxed))
    }

    #[inline]
    pub(crate) fn delay_ns(&self) -> u64 {
        u64::from(self.delay.load(Relaxed)) * DELAY_UNIT_NS
    }

    pub(crate) fn set_concurrency(&self, messages: u16) {
        self.concurrency.store(messages, Relaxed);
        self.set_margin(MARGIN_MOST);
    }

    pub(crate) fn set_learnt(&self, learnt: Learnt) {
        if self.learnt() != learnt {
            self.learnt.store(learnt.0, Relaxed);
        }
    }

    pub(crate) fn set_receive_maximum(&self, messages: u16) {
        self.receive_maximum.store(messages, Relaxed);
    }

    #[inline]
    pub(crate) fn receive_maximum(&self) -> u64 {
        self.receive_maximum.load(Relaxed).into()
    }

    pub(crate) fn set_held(&self, messages: u64) {
        let messages = messages.min(u16::MAX.into()) as u16;
        if self.held.load(Relaxed) != messages {
            self.held.store(messages, Relaxed);
        }
    }

    /// Returns the outstanding messages that the client may work on.
    #[inline]
    pub(crate) fn in_work(&self) -> u64 {
        self.outstanding().messages.saturating_sub(self.held.load(Relaxed).into())
    }

    /// Returns how the client serves messages.
    #[inline]
    pub(crate) fn learnt(&self) -> Learnt {
        Learnt(self.learnt.load(Relaxed))
    }

    /// Sets the margin of a client that has `units` if it works on one message at a time.
    fn set_margin(&self, units: u8) {
        let has_acks = self.flags() & flag::ACK_MODE != 0;
        let sixteenths = if has_acks { 0 } else { margin_in_sixteenths(units, self.concurrency()) };
        self.margin.store(sixteenths, Relaxed);
    }

    #[inline]
    pub(crate) fn concurrency(&self) -> u64 {
        self.concurrency.load(Relaxed).into()
    }

    #[inline]
    pub(crate) fn eligibility(&self) -> Eligibility {
        Eligibility(self.eligibility.load(Relaxed))
    }

    #[inline]
    pub(crate) fn flags(&self) -> u8 {
        self.flags.load(Relaxed)
    }

    #[inline]
    pub(crate) fn marks(&self) -> u8 {
        self.marks.load(Relaxed)
    }

    /// How eligible the client is, 0 to 3; smaller is better: [`Availability::Ready`], [`Availability::Full`],
    /// draining, [`Availability::Offline`]. A [finding](Finding) may let a client that is ready count as full.
    #[inline]
    pub(crate) fn rank(&self) -> u64 {
        u64::from(self.eligibility().rank().max(self.flags() & flag::DRAINING))
    }
}

/// Unit of one-way delays; 16 bits of it cover a second.
const DELAY_UNIT_NS: u64 = 1 << 14;
