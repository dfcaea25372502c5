//! What one client's speed is taken to be, and what each piece of evidence says of its clock.

mod mean;
mod reports;
mod verdict;

pub(crate) use verdict::{Finish, Observed, Verdict};

use mean::RunningMean;
use reports::Reports;

use crate::{acknowledged::Acknowledged, speed};

/// The effective processing time of a client and the state behind it. Pure: no clock, no atomics.
///
/// | evidence | call | what it says |
/// |---|---|---|
/// | report | [`reported`](Self::reported) | speed and queue at one moment; the only evidence while nothing else is |
/// | acknowledgements | [`acknowledged`](Self::acknowledged) | messages are finished, if the client acknowledges when it has finished |
/// | socket takes more | [`written`](Self::written) | at QoS 0, what a client that is the bottleneck gets through |
/// | client does not read | [`lags`](Self::lags) | the same, and how much lies before it, before its socket takes no more |
///
/// Acknowledgements are believed ("ack mode") until reports show that the client sends them early. In that mode
/// reports serve only to watch for this.
#[derive(Debug)]
pub(crate) struct Estimate {
    mean: RunningMean,
    /// Effective time = mean · correction: below 1 for a client that works on several messages at a time.
    correction: f64,
    reports: Reports,
    acks: Acks,
    drain: Drain,
    reading: Drain,
    flags: u8,
}

/// What acknowledgements have shown.
#[derive(Debug, Default)]
struct Acks {
    /// Of the last one; the session's beginning before.
    at: u64,
    /// All that came at that instant.
    moment: Moment,
    /// Latencies since the last report: sum and number.
    latency_sum: u64,
    latency_count: u64,
    /// Evidence that they come before the work is done; at 2 that is a fact.
    earliness: u32,
    /// Messages that nobody acknowledges written since the last report, and between the two before.
    unacknowledged: [u64; 2],
}

/// What was acknowledged at one instant. A report between two acknowledgements that were read together parts them, and
/// they still are one piece of evidence.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    messages: u64,
    /// When the client began to work on them at the earliest.
    began: u64,
    /// The mean without them.
    mean: RunningMean,
}

impl Acks {
    /// Sum and number of the latencies since the last call.
    fn take_latencies(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.latency_sum), std::mem::take(&mut self.latency_count))
    }

    /// Begins a new interval. Whether everything in this and the last one was of the kind that is acknowledged.
    fn shift_unacknowledged(&mut self) -> bool {
        let is_pure = self.unacknowledged == [0, 0];
        self.unacknowledged = [0, self.unacknowledged[0]];
        is_pure
    }
}

/// What a socket that is the bottleneck lets through, or a client that lags reads.
#[derive(Debug, Default)]
struct Drain {
    /// When it last was so.
    since: Option<u64>,
    ns: u64,
    messages: u64,
}

impl Drain {
    fn add(&mut self, ns: u64, messages: u64) {
        self.ns = self.ns.saturating_add(ns);
        self.messages = self.messages.saturating_add(messages);
        if self.ns > DRAIN_MEMORY_NS {
            self.ns /= 2;
            self.messages /= 2;
        }
    }

    /// Time for a message, once enough went through. Sockets take bursts: a short look would mislead.
    fn processing_ns(&self) -> Option<f64> {
        let is_enough = self.messages >= 8 || self.messages > 0 && self.ns >= DRAIN_ENOUGH_NS;
        is_enough.then(|| self.ns as f64 / self.messages as f64)
    }

    /// Time for a message, as far as that can be said: at least as long as none has gone through.
    fn least_ns(&self) -> f64 {
        self.ns as f64 / self.messages.max(1) as f64
    }
}

/// Facts about a client that a pick reads; a byte of these bits.
pub(crate) mod flag {
    /// Reports come, or came until not long ago.
    pub(crate) const REPORTS: u8 = 1;
    /// The client drains: as number, its rank.
    pub(crate) const DRAINING: u8 = 2;
    /// Something was acknowledged.
    pub(crate) const ACKS: u8 = 4;
    /// Acknowledgements come before the work is done.
    pub(crate) const EARLY: u8 = 8;
    /// Acknowledgements come after the work is done, as reports confirm.
    pub(crate) const VERIFIED: u8 = 16;
    /// Acknowledgements are what the clock goes by.
    pub(crate) const ACK_MODE: u8 = 32;
    /// The client has not read what was written for it.
    pub(crate) const LAGS: u8 = 64;
}

impl Estimate {
    /// Nothing is known of a client whose session was established at `now`.
    pub(crate) fn new(now: u64) -> Self {
        Self {
            mean: RunningMean::default(),
            correction: 1.0,
            reports: Reports::new(now),
            acks: Acks { at: now, ..Acks::default() },
            drain: Drain::default(),
            reading: Drain::default(),
            flags: 0,
        }
    }

    /// A report of `messages` waiting and a mean processing time, 0 if nothing was processed.
    pub(crate) fn reported(
        &mut self,
        seen: &Observed,
        messages: u64,
        processing_ns: u64,
        is_draining: bool,
    ) -> Verdict {
        let report = self.since_last_report(seen, messages, processing_ns);
        self.set(flag::REPORTS, true);
        self.set(flag::DRAINING, is_draining);
        self.judge_earliness(seen, &report);
        self.choose_mode(seen);
        if self.is_in_ack_mode() {
            self.keep_report(seen, &report);
            return self.verdict();
        }
        self.sample_report(&report);
        self.keep_report(seen, &report);
        // Reports do not stand in for acknowledgements that never came.
        let due = (!self.owes_acks(seen)).then(|| self.next_report_due(seen));
        Verdict { finish: self.clamp(seen, messages), due, ..self.verdict() }
    }

    /// A ping without a report. Three in a row: the client reports no more, nothing more is due.
    pub(crate) fn plain_ping(&mut self, seen: &Observed) -> Verdict {
        self.reports.plain_pings = self.reports.plain_pings.saturating_add(1);
        let gave_up = self.has(flag::REPORTS) && self.reports.plain_pings >= PLAIN_PINGS_MAX;
        self.set(flag::REPORTS, self.has(flag::REPORTS) && !gave_up);
        let due = (gave_up && !self.is_in_ack_mode() && !self.owes_acks(seen)).then_some(u64::MAX);
        Verdict { due, ..self.verdict() }
    }

    /// Messages were acknowledged for good.
    pub(crate) fn acknowledged(&mut self, seen: &Observed, acknowledged: &Acknowledged) -> Verdict {
        let was_due = self.is_in_ack_mode() || self.owes_acks(seen);
        let was_in_ack_mode = self.is_in_ack_mode();
        self.set(flag::ACKS, true);
        self.acks.latency_sum = self.acks.latency_sum.saturating_add(acknowledged.latency_ns);
        self.acks.latency_count += u64::from(acknowledged.messages);
        if self.acks.moment.messages == 0 || self.acks.at != seen.now {
            // One that was at the client when the one before was finished began when that was.
            let arrived = acknowledged.first_sent_at.0.saturating_add(2 * seen.delay);
            let mut mean = self.mean;
            if was_in_ack_mode && arrived > self.acks.at.saturating_add(doubtful_after(mean.value())) {
                mean.doubt();
            }
            self.acks.moment = Moment { messages: 0, began: arrived.max(self.acks.at), mean };
        }
        self.acks.moment.messages += u64::from(acknowledged.messages);
        self.acks.at = seen.now;
        self.choose_mode(seen);
        if !self.is_in_ack_mode() {
            return Verdict { due: was_due.then_some(u64::MAX), ..self.verdict() };
        }
        if !was_in_ack_mode {
            self.mean.scale(std::mem::replace(&mut self.correction, 1.0));
            self.acks.moment.mean = self.mean;
        }
        let Moment { messages, began, mean } = self.acks.moment;
        let worked_ns = seen.now.saturating_sub(began) as f64 / messages as f64;
        self.mean = mean;
        self.mean.sample_acks(worked_ns.max(ACK_FLOOR_NS), messages);
        Verdict { finish: self.anchor(seen), due: Some(self.next_ack_due(seen)), ..self.verdict() }
    }

    /// So many messages that nobody acknowledges left for the socket; `is_backlogged`: it takes no more for now.
    pub(crate) fn written(&mut self, seen: &Observed, messages: u64, is_backlogged: bool) -> Verdict {
        self.acks.unacknowledged[0] += messages;
        if let Some(since) = self.drain.since {
            self.drain.add(seen.now.saturating_sub(since), messages);
        }
        self.drain.since = is_backlogged.then_some(seen.now);
        if self.is_in_ack_mode() {
            return Verdict { due: self.no_ack_due(seen), ..self.verdict() };
        }
        let drained_ns = self.drain.processing_ns().filter(|_| is_backlogged && !self.has(flag::REPORTS));
        let Some(drained_ns) = drained_ns else { return Verdict { due: self.no_ack_due(seen), ..self.verdict() } };
        self.mean.assume(drained_ns, DRAIN_WEIGHT);
        self.correction = 1.0;
        Verdict { finish: self.anchor(seen), ..self.verdict() }
    }

    /// Within `span_ns` the client has read `read` of the messages that were written for it, and `unread` are left.
    ///
    /// What it will have read soon is no lag: buffers are there to be used. And what is known of a lag is believed for a
    /// second: whoever has not read by then is asked again by a message.
    pub(crate) fn lags(&mut self, seen: &Observed, read: u64, span_ns: u64, unread: u64) -> Verdict {
        if self.is_in_ack_mode() || self.has(flag::REPORTS) {
            return self.forget_lag();
        }
        self.reading.add(span_ns, read);
        let message_ns = self.reading.least_ns().min(LAG_BELIEVED_NS as f64);
        let wait_ns = (unread as f64 * message_ns) as u64;
        if wait_ns < LAG_LEAST_NS {
            return self.ends_to_lag();
        }
        self.set(flag::LAGS, true);
        self.mean.assume(message_ns, DRAIN_WEIGHT);
        self.correction = 1.0;
        let finish = seen.now.saturating_add(wait_ns.min(LAG_BELIEVED_NS));
        // Not exactly: a pick that came in between knows less of it. What was booked before is mostly among the unread.
        let most = finish.saturating_add(self.processing_ns().unwrap_or(0).min(LAG_BELIEVED_NS));
        Verdict { finish: Finish::Within { least: finish, most }, ..self.verdict() }
    }

    /// The client has read what was written for it, the last `read` messages within `span_ns`. It is as fast as all this
    /// time says, at least: one that was held up for a moment and then reads all at once is not slow.
    pub(crate) fn caught_up(&mut self, read: u64, span_ns: u64) -> Verdict {
        if self.is_in_ack_mode() || self.has(flag::REPORTS) {
            return self.forget_lag();
        }
        self.reading.add(span_ns, read);
        self.ends_to_lag()
    }

    /// It has read so far, by all that is known of its reading.
    fn ends_to_lag(&mut self) -> Verdict {
        if self.has(flag::LAGS) {
            let read_ns = self.reading.processing_ns().unwrap_or(f64::INFINITY);
            self.mean.assume(self.mean.value().min(read_ns), DRAIN_WEIGHT);
        }
        self.forget_lag()
    }

    fn forget_lag(&mut self) -> Verdict {
        self.set(flag::LAGS, false);
        self.reading = Drain::default();
        self.verdict()
    }

    /// A processing time known from before: as good as one message.
    pub(crate) fn assume(&mut self, processing_ns: u64) -> Verdict {
        if processing_ns > 0 {
            self.mean.recall(processing_ns as f64);
            self.correction = 1.0;
        }
        self.verdict()
    }

    /// Whether the processing time is only known [from before](Self::assume).
    pub(crate) fn is_assumed(&self) -> bool {
        self.mean.is_recalled()
    }

    /// Messages were taken back, after which so many are outstanding.
    pub(crate) fn taken_back(&self, seen: &Observed) -> Verdict {
        Verdict { due: self.no_ack_due(seen), ..self.verdict() }
    }

    /// The effective processing time in whole nanoseconds; `None` = unknown.
    pub(crate) fn processing_ns(&self) -> Option<u64> {
        let effective = self.mean.value() * self.correction;
        (effective > 0.0).then(|| (effective as u64).clamp(1, speed::MAX_NS))
    }

    fn verdict(&self) -> Verdict {
        Verdict { processing_ns: self.processing_ns().unwrap_or(0), flags: self.flags, finish: Finish::Keep, due: None }
    }

    fn is_in_ack_mode(&self) -> bool {
        self.has(flag::ACK_MODE)
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn set(&mut self, flag: u8, value: bool) {
        self.flags = if value { self.flags | flag } else { self.flags & !flag };
    }

    /// Acknowledgements count unless they are known to come early, or are suspected to: in the company of one
    /// client that sends them early, the others have to be verified first.
    fn choose_mode(&mut self, seen: &Observed) {
        let is_suspect = seen.is_suspect && !self.has(flag::VERIFIED);
        let is_on = self.has(flag::ACKS) && !self.has(flag::EARLY) && !is_suspect;
        if self.is_in_ack_mode() && !is_on {
            // All that was learned was how fast the client acknowledges.
            self.mean = RunningMean::default();
            self.correction = 1.0;
        }
        self.set(flag::ACK_MODE, is_on);
    }

    fn clamp(&self, seen: &Observed, messages: u64) -> Finish {
        let Some(processing_ns) = self.processing_ns() else { return Finish::Keep };
        let written_at = seen.now.saturating_sub(seen.delay);
        let after = |messages: u64| written_at.saturating_add(messages.saturating_mul(processing_ns));
        // One may be in service beside those that wait.
        Finish::Within { least: after(messages), most: after(messages + 1) }
    }

    /// The clock exactly: what is out takes so long, and the last message cannot be done before its time.
    fn anchor(&self, seen: &Observed) -> Finish {
        let Some(processing_ns) = self.processing_ns() else { return Finish::Keep };
        let client_now = seen.now.saturating_sub(seen.delay);
        let last = seen.sent_at.saturating_add(seen.delay + processing_ns);
        Finish::Exactly(match seen.outstanding {
            0 => client_now,
            messages => client_now.saturating_add(messages.saturating_mul(processing_ns)).max(last),
        })
    }

    /// Nothing is due any more if an acknowledgement was, and nothing is out.
    fn no_ack_due(&self, seen: &Observed) -> Option<u64> {
        let was_due = self.is_in_ack_mode() || self.owes_acks(seen);
        (was_due && seen.outstanding == 0).then_some(u64::MAX)
    }

    /// Whether the client was asked for acknowledgements and never gave one.
    fn owes_acks(&self, seen: &Observed) -> bool {
        seen.is_asked && !self.has(flag::ACKS)
    }

    fn next_ack_due(&self, seen: &Observed) -> u64 {
        match (seen.outstanding, self.processing_ns()) {
            (0, _) | (_, None) => u64::MAX,
            (_, Some(processing_ns)) => seen.now.saturating_add(processing_ns),
        }
    }
}

/// How long after its last message a client of this mean may well be another by now: few messages are to show it.
fn doubtful_after(mean_ns: f64) -> u64 {
    (DOUBT_MESSAGES * mean_ns).clamp(DOUBT_LEAST_NS, DOUBT_MOST_NS) as u64
}

const DOUBT_MESSAGES: f64 = 16.0;
const DOUBT_LEAST_NS: f64 = 1e9;
/// Less than the pause after which the slowest are tried again.
const DOUBT_MOST_NS: f64 = 4e9;
/// Pings without a report until a client that used to report is taken to do so no more.
const PLAIN_PINGS_MAX: u32 = 3;
/// The shortest work that an acknowledgement can show.
const ACK_FLOOR_NS: f64 = 10_000.0;
/// What the drain of a socket is worth in messages.
const DRAIN_WEIGHT: f64 = 8.0;
const DRAIN_ENOUGH_NS: u64 = 100_000_000;
const DRAIN_MEMORY_NS: u64 = 2_000_000_000;
/// What takes a client less than this is no lag.
const LAG_LEAST_NS: u64 = 50_000_000;
const LAG_BELIEVED_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests;
