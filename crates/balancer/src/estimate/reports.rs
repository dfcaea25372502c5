//! Evaluation of a report in comparison with the previous one.

use super::{Estimate, Observed, flag, margin};

/// A report as compared with the previous one.
pub(super) struct Report {
    /// m_q of this report.
    messages: u64,
    /// The mean processing time; 0 = nothing was processed.
    processing_ns: f64,
    /// Time since the previous report, or since the session was established.
    gap_ns: u64,
    /// Messages taken out of the queue since, if none was on the wire at either moment.
    dequeued: u64,
    /// Whether messages were sent since.
    pub(super) has_sent: bool,
    is_first: bool,
    /// Whether messages waited at both moments, so that the client was probably never idle.
    is_busy: bool,
}

/// State of the last report.
#[derive(Debug, Default)]
pub(super) struct Reports {
    count: u64,
    /// Time of the last report; before the first, the beginning of the session.
    at: u64,
    messages: u64,
    /// Messages sent up to the last report.
    sent: u64,
    /// Mean time between two reports in ns; 0 = unknown.
    interval: f64,
    /// Mean deviation from it.
    deviation: f64,
    /// Sum of the gaps that agreed with the interval, since a longer one.
    agreed: f64,
    /// Pings without a report since the last report.
    pub(super) plain_pings: u32,
    /// Reports in a row whose throughput shows the client to be faster than `mean · correction`.
    faster: u32,
}

impl Reports {
    pub(super) fn new(now: u64) -> Self {
        Self { at: now, ..Self::default() }
    }
}

impl Estimate {
    pub(super) fn since_last_report(&self, seen: &Observed, messages: u64, processing_ns: u64) -> Report {
        let last = &self.reports;
        let sent = seen.sent.saturating_sub(last.sent);
        Report {
            messages,
            processing_ns: processing_ns as f64,
            gap_ns: seen.now.saturating_sub(last.at),
            dequeued: (last.messages + sent).saturating_sub(messages),
            has_sent: sent > 0,
            is_first: last.count == 0,
            is_busy: messages > 0 && last.messages > 0,
        }
    }

    /// Stores the report as the last one.
    pub(super) fn keep_report(&mut self, seen: &Observed, report: &Report) {
        let last = &mut self.reports;
        let gap = report.gap_ns as f64;
        last.agreed = match last.interval {
            interval if report.is_first || gap > 1.5 * interval.max(SECOND) => 0.0,
            interval if gap > 0.5 * interval => last.agreed + gap,
            _ => last.agreed, // an early report
        };
        last.deviation = match last.interval {
            0.0 => gap / 3.0, // unknown as yet
            interval => last.deviation + ((gap - interval).abs() - last.deviation) / DEVIATION_MEMORY,
        };
        last.interval = match (report.is_first, last.interval) {
            (true, _) => 0.0,
            (false, 0.0) => gap,
            // Rises fast and falls slowly: early pings do not promise more of them. The earlier, the less they count.
            (false, interval) if gap > interval => (interval + gap.min(GAP_BELIEVED.max(4.0 * interval))) / 2.0,
            (false, interval) => interval - 0.05 * (interval - gap) * (gap / interval),
        };
        last.count += 1;
        (last.at, last.messages, last.sent, last.plain_pings) = (seen.now, report.messages, seen.sent, 0);
    }

    /// Updates the mean from the client's own figure, and the correction from its throughput.
    pub(super) fn sample_report(&mut self, seen: &Observed, report: &Report) {
        let &Report { processing_ns, dequeued, gap_ns, .. } = report;
        let per_message = gap_ns as f64 / dequeued.max(1) as f64;
        let is_regular = self.margin.in_units() < margin::MOST;
        if processing_ns == 0.0 {
            // The client finished nothing, or never times its work. If it was never idle, its throughput is a measure.
            if report.is_busy && dequeued >= 4 && !report.is_first {
                self.mean.sample_report(per_message, dequeued, is_regular);
            }
            return;
        }
        self.mean.sample_report(processing_ns, dequeued, is_regular);
        if seen.concurrency > 1 && self.correction == 1.0 {
            self.correction = (1.0 / seen.concurrency as f64).max(CORRECTION_LEAST);
        }
        let pace = per_message / processing_ns;
        let is_faster = dequeued >= 8 && !report.is_first && self.correction > 1.15 * pace;
        self.reports.faster = if is_faster { self.reports.faster + 1 } else { 0 };
        if self.reports.faster >= 2 {
            // More messages than one at a time would allow: the client works on several in parallel.
            self.correction = pace.max(CORRECTION_LEAST);
            self.reports.faster = 0;
        }
    }

    /// Judges whether the acknowledgements since the last report came before or after the work.
    ///
    /// They precede the report on the same connection. A client may have counted its queue before it sent them, so that
    /// only more messages than were outstanding at any time since show that it acknowledges early. Nothing is judged while there are
    /// unacknowledged messages, since the client's queue counts those too.
    pub(super) fn judge_earliness(&mut self, seen: &Observed, report: &Report) {
        let (sum, count) = self.acks.take_latencies();
        let outstanding_most = std::mem::take(&mut self.acks.outstanding_most).max(seen.outstanding);
        let is_pure = self.acks.shift_unacknowledged();
        if !self.has(flag::ACKS) || !is_pure {
            return;
        }
        let latency = sum.checked_div(count).unwrap_or(0).saturating_sub(2 * seen.delay) as f64;
        let longer_than = |times: f64| count >= 4 && report.processing_ns > times * latency + MILLISECOND;
        let holds_acknowledged = report.messages > outstanding_most + 1;
        if holds_acknowledged || longer_than(4.0) {
            self.acks.earliness += 2;
        } else if longer_than(2.0) {
            self.acks.earliness += 1;
        } else if count >= 2 && report.processing_ns > 0.0 && latency > 0.8 * report.processing_ns {
            self.acks.earliness = self.acks.earliness.saturating_sub(1);
            if self.acks.earliness == 0 {
                self.set(flag::VERIFIED, true);
                self.set(flag::EARLY, false);
            }
        }
        self.acks.earliness = self.acks.earliness.min(EARLINESS_MAX);
        if self.acks.earliness >= EARLY_AT {
            self.set(flag::EARLY, true);
            self.set(flag::VERIFIED, false);
        }
    }

    /// Returns the time at which the next report is due; `MAX` = none is, as their interval is unknown.
    pub(super) fn next_report_due(&self, seen: &Observed) -> u64 {
        let last = &self.reports;
        if last.agreed < AGREED_UNTIL_DUE {
            return u64::MAX;
        }
        let wait_ns = 1.5 * last.interval.max(SECOND) + 4.0 * last.deviation;
        seen.now.saturating_add(wait_ns as u64 + GRACE_NS + 2 * seen.delay)
    }
}

/// At most 64 messages at a time count.
const CORRECTION_LEAST: f64 = 1.0 / 64.0;
const MILLISECOND: f64 = 1e6;
const SECOND: f64 = 1e9;
/// Amount of evidence that makes early acknowledgements certain, and the maximum kept.
const EARLY_AT: u32 = 2;
const EARLINESS_MAX: u32 = 3;
/// Time of agreeing gaps after which the interval is known well enough to miss a report. A number of reports would not
/// do: a few early ones in a row say nothing of the next regular one.
const AGREED_UNTIL_DUE: f64 = 2.0 * SECOND;
/// Longer gaps than this, and four intervals, count as the longer of the two: the client may have stood still.
const GAP_BELIEVED: f64 = 10.0 * SECOND;
/// Reports over which the deviation of their interval is averaged.
const DEVIATION_MEMORY: f64 = 3.0;
/// Tolerance for a report beyond half an interval.
const GRACE_NS: u64 = 50_000_000;
