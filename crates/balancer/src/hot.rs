//! The fields of a client that change with every message and every piece of evidence, on one cache line.

use crate::{
    dispatch::Dispatch,
    estimate::{Finish, Observed, Verdict, flag},
    load::Availability,
    outstanding::Outstanding,
    speed::Speed,
    sync::{AtomicU8, AtomicU16, AtomicU64, Relaxed, change},
};

/// What `adaptive` reads of a member and what every booking writes, on one cache line.
///
/// Every access is `Relaxed`: each field is a fact of its own and nothing else is published through it. Needed
/// from the atomics is only that no increment of `sent` and `outstanding` is lost.
///
/// 64 and not 128 bytes of alignment: processors which fetch lines in pairs do not couple two clients all the
/// same, since in an `Arc` the line before this one holds the reference counts.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Hot {
    /// F: when the client will have finished all it was sent, as far as we know. Written by every pick (compare
    /// and exchange), by all evidence (compare and exchange) and by `connected`.
    finish: AtomicU64,
    /// D: when evidence is due that the client is at work; `MAX` = none is expected. Written by evidence, by
    /// `connected`, and by a pick if it was `MAX`.
    due: AtomicU64,
    /// Instant of the last send. Written by every pick and by `connected`; the last writer wins, so it goes back
    /// a little when two pickers hold clock readings of different age.
    t_s: AtomicU64,
    /// A [`Speed`]: the effective processing time. Written by evidence and `connected`, under the lock of `Reported`.
    speed: AtomicU64,
    /// Messages sent since the session was established. Incremented by every pick.
    sent: AtomicU64,
    /// An [`Outstanding`]. Added to by every pick, taken from by `written`, `acknowledged` and `taken_back`.
    outstanding: AtomicU64,
    /// One-way delay in [`DELAY_UNIT_NS`]; 0 = unknown. Written by `set_round_trip` and `connected`.
    delay: AtomicU16,
    /// An [`Availability`] as its discriminant. Written by `set_availability` only.
    availability: AtomicU8,
    /// [Facts](flag) that evidence shows. Written by evidence and `connected`, under the lock of `Reported`.
    flags: AtomicU8,
    /// [Facts](mark) that pickers know. Bits are set by pickers and all cleared by `connected`.
    marks: AtomicU8,
}

/// Facts about a client that pickers find out; a byte of these bits.
pub(crate) mod mark {
    /// Its first message came when the group knew its speed already.
    pub(crate) const NEWCOMER: u8 = 1;
    /// It was sent something that it has to acknowledge.
    pub(crate) const ASKED: u8 = 2;
    /// Another client of its group acknowledges before the work is done.
    pub(crate) const SUSPECT: u8 = 4;
    /// What others acknowledge was sent to it at QoS 0.
    pub(crate) const AT_QOS_0: u8 = 8;
    /// Its speed was known from an earlier session.
    pub(crate) const RECALLED: u8 = 16;
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
            delay: AtomicU16::new(0),
            availability: AtomicU8::new(Availability::Ready as u8),
            flags: AtomicU8::new(0),
            marks: AtomicU8::new(0),
        }
    }

    /// Everything as new, except the availability and what is outstanding.
    pub(crate) fn reset(&self, now: u64) {
        // A swap where a store would do, since loom's models place only read-modify-writes exactly among the
        // increments; it costs nothing at the rate of sessions.
        self.sent.swap(0, Relaxed);
        self.t_s.store(now, Relaxed);
        self.finish.swap(now, Relaxed);
        self.due.store(u64::MAX, Relaxed);
        self.speed.store(Speed::of(0).to_word(), Relaxed);
        self.delay.store(0, Relaxed);
        self.flags.store(0, Relaxed);
        self.marks.store(0, Relaxed);
    }

    /// The client was chosen for a message that will take it `service_ns`, at least 1. `false`, and nothing is
    /// booked, if F is no longer what the chooser saw.
    ///
    /// F comes first. Evidence that arrives between that and the count of what is outstanding may set F without
    /// this message, whose time is then missing from F until the next evidence; the counts miss nothing.
    #[inline]
    pub(crate) fn try_book(&self, dispatch: &Dispatch, service_ns: u64, seen_finish: u64, mean_ns: u64) -> bool {
        let (now, delay_ns) = (dispatch.at.0, self.delay_ns());
        let finish = seen_finish.max(now.saturating_add(delay_ns)).saturating_add(service_ns.max(1));
        if self.finish.compare_exchange(seen_finish, finish, Relaxed, Relaxed).is_err() {
            return false;
        }
        self.count(dispatch, service_ns, mean_ns);
        true
    }

    /// Like [`try_book`](Self::try_book), whatever F is by now.
    #[inline]
    pub(crate) fn book(&self, dispatch: &Dispatch, service_ns: u64, mean_ns: u64) {
        let start = dispatch.at.0.saturating_add(self.delay_ns());
        change(&self.finish, |finish| finish.max(start).saturating_add(service_ns.max(1)));
        self.count(dispatch, service_ns, mean_ns);
    }

    /// All of a booking but F. `mean_ns` is usual in the group; 0 = nobody's speed is known.
    #[inline]
    fn count(&self, dispatch: &Dispatch, service_ns: u64, mean_ns: u64) {
        let (now, delay_ns) = (dispatch.at.0, self.delay_ns());
        self.t_s.store(now, Relaxed);
        let is_first = self.sent.fetch_add(1, Relaxed) == 0;
        if is_first && mean_ns > 0 {
            self.marks.fetch_or(mark::NEWCOMER, Relaxed);
        }
        self.outstanding.fetch_add(Outstanding { messages: 1, bytes: dispatch.bytes.into() }.to_word(), Relaxed);
        if dispatch.is_acknowledged {
            self.expect_ack(now, delay_ns, service_ns, mean_ns);
        }
    }

    /// An acknowledgement is due if none was. Of a client that never gave one it is expected after twice what is
    /// usual in its group, whatever speed it claims; if nothing is usual yet, not at all.
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

    /// Publishes what the evidence says. The caller keeps others from doing so at the same time.
    pub(crate) fn learn(&self, now: u64, evaluate: impl FnOnce(&Observed) -> Verdict) {
        // Before what is outstanding, so that an F that is still this one lacks no booking that was counted.
        let seen_finish = self.finish.load(Relaxed);
        let delay = self.delay_ns();
        let verdict = evaluate(&Observed {
            now,
            delay,
            sent: self.sent.load(Relaxed),
            sent_at: self.t_s.load(Relaxed),
            outstanding: self.outstanding().messages,
            is_suspect: self.marks() & mark::SUSPECT != 0,
            is_asked: self.marks() & mark::ASKED != 0,
        });
        self.speed.store(Speed::of(verdict.processing_ns).to_word(), Relaxed);
        self.flags.store(verdict.flags, Relaxed);
        if let Some(due) = verdict.due {
            self.due.store(due, Relaxed);
        }
        match verdict.finish {
            Finish::Keep => {}
            Finish::Within { least, most } => change(&self.finish, |finish| finish.clamp(least, most)),
            Finish::Exactly(finish) => {
                // A pick that came in between is right: it knows of one message more.
                let _ = self.finish.compare_exchange(seen_finish, finish, Relaxed, Relaxed);
            }
        }
    }

    pub(crate) fn no_longer_outstanding(&self, messages: u32, bytes: u64) {
        let without = |word| Outstanding::from_word(word).without(messages.into(), bytes).to_word();
        change(&self.outstanding, without);
    }

    /// Messages that never were sent after all, each booked as so much work.
    pub(crate) fn take_back(&self, messages: u64, service_ns: u64) {
        change(&self.sent, |sent| sent.saturating_sub(messages));
        let work_ns = service_ns.saturating_mul(messages);
        change(&self.finish, |finish| finish.saturating_sub(work_ns));
    }

    /// Something left that it will not acknowledge. If nothing else is out and it never acknowledged anything, it was
    /// granted QoS 0 and owes nothing.
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

    /// Sets [`mark::RECALLED`].
    pub(crate) fn recall(&self) {
        self.marks.fetch_or(mark::RECALLED, Relaxed);
    }

    pub(crate) fn set_availability(&self, availability: Availability) {
        self.availability.store(availability as u8, Relaxed);
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

    /// A read-modify-write where a load would do, since loom's models place only these exactly among the
    /// increments; it costs nothing at the rate of reports.
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

    #[inline]
    pub(crate) fn availability(&self) -> u8 {
        self.availability.load(Relaxed)
    }

    #[inline]
    pub(crate) fn flags(&self) -> u8 {
        self.flags.load(Relaxed)
    }

    #[inline]
    pub(crate) fn marks(&self) -> u8 {
        self.marks.load(Relaxed)
    }

    /// How eligible the client is, as a number that is smaller for the better candidate: [`Availability::Ready`],
    /// [`Availability::Full`], then one that drains, then [`Availability::Offline`]; 0 to 3.
    #[inline]
    pub(crate) fn rank(&self) -> u64 {
        u64::from(self.availability().max(self.flags() & flag::DRAINING))
    }

    /// [`rank`](Self::rank) of what was read before.
    pub(crate) fn rank_of(availability: Availability, is_draining: bool) -> u64 {
        u64::from((availability as u8).max(if is_draining { flag::DRAINING } else { 0 }))
    }
}

/// The step of one-way delays: 16 bits of it are a second.
const DELAY_UNIT_NS: u64 = 1 << 14;
