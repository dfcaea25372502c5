//! The estimate of one client's processing time, and its update by each kind of evidence.

mod margin;
mod mean;
mod reports;
mod verdict;

pub(crate) use margin::{MOST as MARGIN_MOST, in_sixteenths as margin_in_sixteenths, margin_ns};
pub(crate) use verdict::{Finish, Observed, Verdict};

use margin::Margin;
use mean::RunningMean;
use reports::Reports;

use crate::{acknowledged::Acknowledged, speed};

/// The effective processing time of a client and the state behind it. Pure: no clock, no atomics.
///
/// | evidence | call | meaning |
/// |---|---|---|
/// | report | [`reported`](Self::reported) | speed and queue at one moment |
/// | acknowledgements | [`acknowledged`](Self::acknowledged) | completed messages, if acknowledged after the work |
/// | socket takes more | [`written`](Self::written) | at QoS 0, the throughput of a client that is the bottleneck |
/// | client does not read | [`lags`](Self::lags) | the same, and the length of its backlog, before the socket is full |
///
/// Acknowledgements are trusted ("ack mode") until reports show that the client sends them early. In that mode reports
/// serve only to detect this.
#[derive(Debug)]
pub(crate) struct Estimate {
    mean: RunningMean,
    /// Effective time = mean · correction. Below 1 for a client that works on several messages at a time.
    correction: f64,
    margin: Margin,
    reports: Reports,
    acks: Acks,
    drain: Drain,
    reading: Drain,
    flags: u8,
}

/// Evidence from acknowledgements.
#[derive(Debug, Default)]
struct Acks {
    /// Time of the last one; before the first, the beginning of the session.
    at: u64,
    /// All acknowledgements of that instant.
    moment: Moment,
    /// Latencies since the last report: sum and number.
    latency_sum: u64,
    latency_count: u64,
    /// Evidence that they come before the work is done; from 2 on, that is certain.
    earliness: u32,
    /// Most messages that were outstanding at an acknowledgement since the last report.
    outstanding_most: u64,
    /// Unacknowledged messages written since the last report, and in the interval before.
    unacknowledged: [u64; 2],
}

/// Acknowledgements of one instant. A report may come between two acknowledgements that were read together; they still
/// are one piece of evidence.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    messages: u64,
    /// Earliest time at which the client began to work on the messages.
    began: u64,
    /// The mean without these messages.
    mean: RunningMean,
}

impl Acks {
    /// Takes sum and number of the latencies since the last call.
    fn take_latencies(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.latency_sum), std::mem::take(&mut self.latency_count))
    }

    /// Begins a new interval. Returns whether this one and the one before had no unacknowledged messages.
    fn shift_unacknowledged(&mut self) -> bool {
        let is_pure = self.unacknowledged == [0, 0];
        self.unacknowledged = [0, self.unacknowledged[0]];
        is_pure
    }
}

/// Throughput of a socket that is the bottleneck, or of a client that lags.
#[derive(Debug, Default)]
struct Drain {
    /// Start of the current interval; `None` while the socket is no bottleneck.
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

    /// Time per message, once enough messages went through. Sockets take bursts, so a short interval would mislead.
    fn processing_ns(&self) -> Option<f64> {
        let is_enough = self.messages >= 8 || self.messages > 0 && self.ns >= DRAIN_ENOUGH_NS;
        is_enough.then(|| self.ns as f64 / self.messages as f64)
    }

    /// Lower bound of the time per message. Counts at least one message, so that it exists before the first.
    fn least_ns(&self) -> f64 {
        self.ns as f64 / self.messages.max(1) as f64
    }
}

/// Flags of a client that a pick reads, as bits of one byte.
pub(crate) mod flag {
    /// The client sends reports, or did until recently.
    pub(crate) const REPORTS: u8 = 1;
    /// The client drains. As a number, this is its rank.
    pub(crate) const DRAINING: u8 = 2;
    /// The client has acknowledged a message.
    pub(crate) const ACKS: u8 = 4;
    /// Acknowledgements come before the work is done.
    pub(crate) const EARLY: u8 = 8;
    /// Acknowledgements come after the work is done, as reports confirm.
    pub(crate) const VERIFIED: u8 = 16;
    /// Acknowledgements set the client's clock.
    pub(crate) const ACK_MODE: u8 = 32;
    /// The client has not read all messages written for it.
    pub(crate) const LAGS: u8 = 64;
    /// An operator drains the client, in spite of its reports.
    pub(crate) const TOLD_TO_DRAIN: u8 = 128;
}

impl Estimate {
    /// Creates an empty estimate for a session established at `now`.
    pub(crate) fn new(now: u64) -> Self {
        Self {
            mean: RunningMean::default(),
            correction: 1.0,
            margin: Margin::UNKNOWN,
            reports: Reports::new(now),
            acks: Acks { at: now, ..Acks::default() },
            drain: Drain::default(),
            reading: Drain::default(),
            flags: 0,
        }
    }

    /// Begins or ends a drain by an operator. At its end, the next report tells whether the client drains.
    pub(crate) fn told_to_drain(&mut self, drains: bool) -> Verdict {
        self.set(flag::TOLD_TO_DRAIN, drains);
        self.set(flag::DRAINING, drains);
        self.verdict()
    }

    /// Takes a report of `messages` waiting and a mean processing time, 0 if nothing was processed.
    pub(crate) fn reported(
        &mut self,
        seen: &Observed,
        messages: u64,
        processing_ns: u64,
        is_draining: bool,
    ) -> Verdict {
        let report = self.since_last_report(seen, messages, processing_ns);
        self.set(flag::REPORTS, true);
        self.set(flag::DRAINING, is_draining || self.has(flag::TOLD_TO_DRAIN));
        self.judge_earliness(seen, &report);
        self.choose_mode(seen);
        if self.is_in_ack_mode() {
            self.keep_report(seen, &report);
            return self.verdict();
        }
        let was_known = self.mean.value() > 0.0 && !self.is_assumed();
        self.sample_report(seen, &report);
        if was_known && report.has_sent {
            self.sample_error(seen, messages);
        }
        self.keep_report(seen, &report);
        // Reports do not replace acknowledgements that never came.
        let due = (!self.owes_acks(seen)).then(|| self.next_report_due(seen));
        Verdict { finish: self.clamp(seen, messages), due, ..self.verdict() }
    }

    /// Takes a ping without a report. After three in a row the client counts as one that no longer reports, and no
    /// report is due.
    pub(crate) fn plain_ping(&mut self, seen: &Observed) -> Verdict {
        self.reports.plain_pings = self.reports.plain_pings.saturating_add(1);
        let gave_up = self.has(flag::REPORTS) && self.reports.plain_pings >= PLAIN_PINGS_MAX;
        self.set(flag::REPORTS, self.has(flag::REPORTS) && !gave_up);
        let due = (gave_up && !self.is_in_ack_mode() && !self.owes_acks(seen)).then_some(u64::MAX);
        Verdict { due, ..self.verdict() }
    }

    /// Takes messages that were acknowledged for good.
    pub(crate) fn acknowledged(&mut self, seen: &Observed, acknowledged: &Acknowledged) -> Verdict {
        let was_due = self.is_in_ack_mode() || self.owes_acks(seen);
        let was_in_ack_mode = self.is_in_ack_mode();
        self.set(flag::ACKS, true);
        self.acks.latency_sum = self.acks.latency_sum.saturating_add(acknowledged.latency_ns);
        self.acks.latency_count += u64::from(acknowledged.messages);
        let outstanding = seen.outstanding.saturating_add(acknowledged.messages.into());
        self.acks.outstanding_most = self.acks.outstanding_most.max(outstanding);
        if self.acks.moment.messages == 0 || self.acks.at != seen.now {
            // If the message was already at the client when the previous one was finished, its work began then.
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

    /// Takes unacknowledged messages that left for the socket. `is_backlogged`: the socket takes no more for now.
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

    /// Takes a read probe: in `span_ns` the client has read `read` of the messages written for it, and `unread` are
    /// left.
    ///
    /// Messages that it will have read soon are no lag, since buffers exist to be used. A lag is assumed for at most a
    /// second. After that, another message tests whether the client reads again.
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
        // A range, so that it also applies after a concurrent pick, which knows nothing of the lag. Most messages
        // booked before are among the unread ones.
        let most = finish.saturating_add(self.processing_ns().unwrap_or(0).min(LAG_BELIEVED_NS));
        Verdict { finish: Finish::Within { least: finish, most }, ..self.verdict() }
    }

    /// Takes the end of a lag: the client has read the messages written for it, the last `read` within `span_ns`.
    ///
    /// Its speed is at least the average of the whole lag. So a client that stalled for a moment and then reads
    /// everything at once does not count as slow.
    pub(crate) fn caught_up(&mut self, read: u64, span_ns: u64) -> Verdict {
        if self.is_in_ack_mode() || self.has(flag::REPORTS) {
            return self.forget_lag();
        }
        self.reading.add(span_ns, read);
        self.ends_to_lag()
    }

    /// Ends a lag with the speed of the client's reading so far.
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

    /// Takes a processing time from an earlier session, with the weight of one message.
    pub(crate) fn assume(&mut self, processing_ns: u64) -> Verdict {
        if processing_ns > 0 {
            self.mean.recall(processing_ns as f64);
            self.correction = 1.0;
            self.margin = Margin::NONE;
        }
        self.verdict()
    }

    /// Returns whether the processing time comes only from [an earlier session](Self::assume).
    pub(crate) fn is_assumed(&self) -> bool {
        self.mean.is_recalled()
    }

    /// Takes messages that were taken back; `seen.outstanding` no longer includes them.
    pub(crate) fn taken_back(&self, seen: &Observed) -> Verdict {
        Verdict { due: self.no_ack_due(seen), ..self.verdict() }
    }

    /// Returns the effective processing time in whole nanoseconds; `None` = unknown.
    pub(crate) fn processing_ns(&self) -> Option<u64> {
        let effective = self.mean.value() * self.correction;
        (effective > 0.0).then(|| (effective as u64).clamp(1, speed::MAX_NS))
    }

    fn verdict(&self) -> Verdict {
        Verdict {
            processing_ns: self.processing_ns().unwrap_or(0),
            flags: self.flags,
            margin: self.margin.in_units(),
            finish: Finish::Keep,
            due: None,
        }
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

    /// Enters or leaves ack mode. Acknowledgements count unless they are known or suspected to come early. In a group
    /// with one such client, the others must be verified first.
    fn choose_mode(&mut self, seen: &Observed) {
        let is_suspect = seen.is_suspect && !self.has(flag::VERIFIED);
        let is_on = self.has(flag::ACKS) && !self.has(flag::EARLY) && !is_suspect;
        if self.is_in_ack_mode() && !is_on {
            // The mean shows only how fast the client acknowledges.
            self.mean = RunningMean::default();
            self.correction = 1.0;
        }
        self.set(flag::ACK_MODE, is_on);
    }

    fn clamp(&self, seen: &Observed, messages: u64) -> Finish {
        let Some((least, most)) = self.bounds(seen, messages) else { return Finish::Keep };
        let margin_ns = self.margin.in_ns(self.processing_ns().unwrap_or(0), seen.concurrency);
        let least_margin_ns = if messages > 0 { margin_ns } else { 0 };
        Finish::Within { least: least.saturating_add(least_margin_ns), most: most.saturating_add(margin_ns) }
    }

    /// Returns when the client will have finished `messages` waiting ones and those in service, at the earliest and at
    /// the latest.
    fn bounds(&self, seen: &Observed, messages: u64) -> Option<(u64, u64)> {
        let processing_ns = self.processing_ns()?;
        let written_at = seen.now.saturating_sub(seen.delay);
        let after = |messages: u64| written_at.saturating_add(messages.saturating_mul(processing_ns));
        // If messages wait, the client works on its maximum number. Otherwise any number may be in service.
        let at_a_time = seen.concurrency.max(1);
        let least = if messages > 0 { messages + at_a_time - 1 } else { 0 };
        Some((after(least), after(messages + at_a_time)))
    }

    /// Compares the clock with a report.
    fn sample_error(&mut self, seen: &Observed, messages: u64) {
        let Some((least, most)) = self.bounds(seen, messages) else { return };
        let processing_ns = self.processing_ns().unwrap_or(1);
        let margin_ns = self.margin.in_ns(processing_ns, seen.concurrency);
        let finish = seen.finish.saturating_sub(margin_ns).max(seen.now.saturating_sub(seen.delay));
        let error_ns = least.saturating_sub(finish).max(finish.saturating_sub(most));
        self.margin.sample(error_ns as f64 / processing_ns as f64);
    }

    /// Computes the clock exactly: the time of all outstanding messages, and at least the processing time of the last
    /// one.
    fn anchor(&self, seen: &Observed) -> Finish {
        let Some(processing_ns) = self.processing_ns() else { return Finish::Keep };
        let client_now = seen.now.saturating_sub(seen.delay);
        let last = seen.sent_at.saturating_add(seen.delay + processing_ns);
        Finish::Exactly(match seen.outstanding {
            0 => client_now,
            messages => client_now.saturating_add(messages.saturating_mul(processing_ns)).max(last),
        })
    }

    /// Returns `MAX` (nothing is due) if an acknowledgement was expected and no message is outstanding.
    fn no_ack_due(&self, seen: &Observed) -> Option<u64> {
        let was_due = self.is_in_ack_mode() || self.owes_acks(seen);
        (was_due && seen.outstanding == 0).then_some(u64::MAX)
    }

    /// Returns whether the client was asked for acknowledgements and never gave one.
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

/// Returns the idle time after which a client with this mean may have changed its speed, so that few messages should
/// suffice to show it.
fn doubtful_after(mean_ns: f64) -> u64 {
    (DOUBT_MESSAGES * mean_ns).clamp(DOUBT_LEAST_NS, DOUBT_MOST_NS) as u64
}

const DOUBT_MESSAGES: f64 = 16.0;
const DOUBT_LEAST_NS: f64 = 1e9;
/// Shorter than the pause after which the slowest members are tried again.
const DOUBT_MOST_NS: f64 = 4e9;
/// Pings without a report after which a client counts as one that no longer reports.
const PLAIN_PINGS_MAX: u32 = 3;
/// Shortest processing time that an acknowledgement can show.
const ACK_FLOOR_NS: f64 = 10_000.0;
/// Weight of a throughput measurement, in messages.
const DRAIN_WEIGHT: f64 = 8.0;
const DRAIN_ENOUGH_NS: u64 = 100_000_000;
const DRAIN_MEMORY_NS: u64 = 2_000_000_000;
/// Shorter waits are no lag.
const LAG_LEAST_NS: u64 = 50_000_000;
const LAG_BELIEVED_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests;
