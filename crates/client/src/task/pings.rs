use std::future::pending;
use std::time::{Duration, Instant};

use tenbin_codec::{PingReq, ReportCarrier};

use crate::{LoadReport, LoadReporter};

/// Timers of a connection's pings and load reports, and of the broker's answer.
///
/// The session has separate timers. These also know the reporter's interval and its reasons for early reports. And
/// they expect no answer while the client does not read.
#[derive(Debug)]
pub(super) struct Pings {
    /// `None` if Keep Alive is off.
    keep_alive: Option<Duration>,
    reports: Option<Reports>,
    last_sent: Instant,
    /// When the oldest unanswered ping was sent, or when reading resumed after it.
    unanswered_since: Option<Instant>,
}

/// An action that is due now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Ping(PingReq),
    /// A load report to publish.
    Report(LoadReport),
}

#[derive(Debug)]
struct Reports {
    reporter: LoadReporter,
    carrier: ReportCarrier,
    /// The reporter's interval; with extended pings at most Keep Alive, so that no plain ping is needed.
    interval: Duration,
    /// When the next regular report is due.
    next: Instant,
    /// When the last report was due.
    last: Instant,
}

impl Pings {
    /// Starts the timers at CONNACK (`now`). The first report is due one interval later, as in the thesis, or earlier
    /// after a change.
    pub(super) fn new(keep_alive: Duration, reports: Option<(LoadReporter, ReportCarrier)>, now: Instant) -> Self {
        let keep_alive = (!keep_alive.is_zero()).then_some(keep_alive);
        let reports = reports.map(|(reporter, carrier)| {
            let shortest = keep_alive.filter(|_| carrier == ReportCarrier::PingReq);
            let interval = shortest.map_or(reporter.interval(), |keep_alive| keep_alive.min(reporter.interval()));
            reporter.connected();
            Reports { reporter, carrier, interval, next: after(now, interval), last: now }
        });
        Self { keep_alive, reports, last_sent: now, unanswered_since: None }
    }

    /// Returns the next deadline; `None` if there is none. `reading`: whether the client can receive an answer.
    pub(super) fn next(&self, reading: bool) -> Option<Instant> {
        let report = self.reports.as_ref().filter(|reports| reports.carrier != ReportCarrier::Ack).map(Reports::due);
        let answer = self.answer_due().filter(|_| reading);
        [report, self.plain_due(), answer].into_iter().flatten().min()
    }

    /// Waits until [`Pings::next`] may have moved to an earlier time. Cancel safe.
    pub(super) async fn news(&self) {
        match &self.reports {
            Some(reports) => reports.reporter.news().await,
            None => pending().await,
        }
    }

    /// Returns the actions that are due, one per call.
    ///
    /// `congested`: unwritten data would make a report stale before it leaves. Then it is skipped, and its counts go
    /// into the next.
    pub(super) fn due(&mut self, congested: bool, now: Instant) -> Option<Due> {
        if self.plain_due().is_some_and(|due| due <= now) {
            self.pinged(now);
            return Some(Due::Ping(PingReq::PLAIN)); // [MQTT-3.1.2-20]
        }
        let reports = self.reports.as_mut().filter(|reports| reports.carrier != ReportCarrier::Ack)?;
        if !reports.turn(now) || congested {
            return None;
        }
        let report = reports.reporter.take();
        if reports.carrier == ReportCarrier::Publish {
            return Some(Due::Report(report));
        }
        self.pinged(now);
        Some(Due::Ping(PingReq::with_payload(report.to_json().into())))
    }

    /// Returns the report for an acknowledgement to carry, if one is due.
    pub(super) fn report_for_ack(&mut self, now: Instant) -> Option<LoadReport> {
        let reports = self.reports.as_mut().filter(|reports| reports.carrier == ReportCarrier::Ack)?;
        reports.turn(now).then(|| reports.reporter.take())
    }

    /// Returns when a plain ping is due; never if pings carry reports.
    fn plain_due(&self) -> Option<Instant> {
        let reports_in_pings = self.reports.as_ref().is_some_and(|reports| reports.carrier == ReportCarrier::PingReq);
        let keep_alive = self.keep_alive.filter(|_| !reports_in_pings)?;
        Some(after(self.last_sent, keep_alive))
    }

    fn pinged(&mut self, now: Instant) {
        self.last_sent = now;
        self.unanswered_since.get_or_insert(now);
    }

    /// Whether an answer is overdue. Without Keep Alive there is no limit.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.answer_due().is_some_and(|due| due <= now)
    }

    /// Records a write to the socket.
    ///
    /// Published reports do not postpone pings: otherwise no packet would ever show whether the broker is still there.
    pub(super) fn sent(&mut self, now: Instant) {
        if !self.reports.as_ref().is_some_and(|reports| reports.carrier == ReportCarrier::Publish) {
            self.last_sent = now;
        }
    }

    /// Records a PINGRESP.
    pub(super) fn answered(&mut self) {
        self.unanswered_since = None;
    }

    /// Records that reading has resumed. Until then the answer may have been unread.
    pub(super) fn reading_resumed(&mut self, now: Instant) {
        if let Some(since) = &mut self.unanswered_since {
            *since = now;
        }
    }

    fn answer_due(&self) -> Option<Instant> {
        Some(after(self.unanswered_since?, self.keep_alive?))
    }
}

impl Reports {
    /// Returns when a report is due: once per interval, and earlier after a change.
    fn due(&self) -> Instant {
        match self.reporter.has_news() {
            true => self.next.min(after(self.last, LoadReporter::EAGER_GAP)),
            false => self.next,
        }
    }

    /// Whether a report is due; if so, schedules the next one.
    fn turn(&mut self, now: Instant) -> bool {
        if self.due() > now {
            return false;
        }
        // Keeps the rhythm of the interval, unless this report was early or late. Late reports cause no burst.
        let in_step = after(self.next, self.interval);
        let is_in_step = self.next <= now && in_step > now;
        self.next = if is_in_step { in_step } else { after(now, self.interval) };
        self.last = now;
        true
    }
}

/// Adds an interval; one too long for the clock counts as a year.
fn after(instant: Instant, interval: Duration) -> Instant {
    instant.checked_add(interval).unwrap_or_else(|| instant + YEAR)
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const GAP: Duration = LoadReporter::EAGER_GAP;

    fn reports(interval: Duration, carrier: ReportCarrier) -> Option<(LoadReporter, ReportCarrier)> {
        Some((LoadReporter::new(interval), carrier))
    }

    #[test]
    fn reports_come_at_the_smaller_of_keep_alive_and_interval() {
        let now = Instant::now();
        for (keep_alive, interval, expected) in [(60, 1, 1), (2, 10, 2), (0, 10, 10)] {
            let reporter = LoadReporter::new(SECOND * interval);
            let mut pings = Pings::new(SECOND * keep_alive, Some((reporter, ReportCarrier::PingReq)), now);
            assert_eq!(pings.next(true), Some(now + SECOND * expected), "one interval after CONNACK");
            assert_eq!(pings.due(false, now), None);
            let at = now + SECOND * expected;
            assert!(matches!(pings.due(false, at), Some(Due::Ping(ping)) if ping.body.is_some()));
            assert_eq!(pings.due(false, at), None);
            pings.answered();
            assert_eq!(pings.next(true), Some(at + SECOND * expected));
        }
    }

    #[test]
    fn plain_ping_follows_a_keep_alive_of_silence() {
        let now = Instant::now();
        let mut pings = Pings::new(SECOND * 10, None, now);
        pings.sent(now + SECOND * 4);
        assert_eq!(pings.due(false, now + SECOND * 13), None);
        assert_eq!(pings.due(true, now + SECOND * 14), Some(Due::Ping(PingReq::PLAIN)));
        assert_eq!(Pings::new(Duration::ZERO, None, now).next(true), None);
    }

    #[test]
    fn ping_answer_is_not_overdue_while_not_reading() {
        let now = Instant::now();
        let mut pings = Pings::new(SECOND * 10, None, now);
        assert!(pings.due(false, now + SECOND * 10).is_some());
        assert!(!pings.is_overdue(now + SECOND * 19));
        assert!(pings.is_overdue(now + SECOND * 20));
        pings.reading_resumed(now + SECOND * 100);
        assert!(!pings.is_overdue(now + SECOND * 109));
        pings.answered();
        assert!(!pings.is_overdue(now + SECOND * 1000));
    }

    #[test]
    fn congested_connection_skips_reports_without_later_burst() {
        let now = Instant::now();
        let reporter = LoadReporter::new(SECOND);
        let mut pings = Pings::new(SECOND * 60, Some((reporter.clone(), ReportCarrier::PingReq)), now);
        reporter.finish_after(SECOND);
        assert_eq!(pings.due(true, now + SECOND), None);
        assert!(pings.next(false) > Some(now + SECOND), "nothing is tried again at once");
        assert_eq!(reporter.snapshot().processing_time, SECOND, "kept for the next report");
        assert!(pings.due(false, now + SECOND * 30).is_some());
        assert_eq!(pings.next(false), Some(now + SECOND * 31));
    }

    #[test]
    fn absurd_intervals_do_not_overflow() {
        let pings = Pings::new(Duration::ZERO, reports(Duration::MAX, ReportCarrier::PingReq), Instant::now());
        assert!(pings.next(true).is_some());
    }

    #[test]
    fn early_report_keeps_gap_and_restarts_interval() {
        let now = Instant::now();
        let reporter = LoadReporter::new(SECOND);
        let mut pings = Pings::new(SECOND * 60, Some((reporter.clone(), ReportCarrier::PingReq)), now);
        reporter.finish_after(SECOND / 100);
        assert_eq!(pings.next(true), Some(now + GAP));
        assert_eq!(pings.due(false, now + GAP / 2), None);
        let first = now + GAP;
        assert!(pings.due(false, first).is_some());
        pings.answered();
        assert_eq!(pings.next(true), Some(first + SECOND));
        reporter.finish_after(SECOND / 10);
        assert_eq!(pings.next(true), Some(first + GAP));
        let second = first + SECOND / 2; // The change happens only now.
        assert!(pings.due(false, second).is_some());
        pings.answered();
        assert_eq!(pings.next(true), Some(second + SECOND));
    }

    #[test]
    fn published_reports_leave_the_plain_pings_to_keep_alive() {
        let now = Instant::now();
        let mut pings = Pings::new(SECOND * 3, reports(SECOND * 2, ReportCarrier::Publish), now);
        assert_eq!(pings.next(true), Some(now + SECOND * 2));
        assert_eq!(pings.due(false, now + SECOND * 2), Some(Due::Report(LoadReport::default())));
        pings.sent(now + SECOND * 2);
        assert_eq!(pings.next(true), Some(now + SECOND * 3));
        assert_eq!(pings.due(false, now + SECOND * 4), Some(Due::Ping(PingReq::PLAIN)));
        assert_eq!(pings.due(false, now + SECOND * 4), Some(Due::Report(LoadReport::default())));
        assert_eq!(pings.due(false, now + SECOND * 4), None);
    }

    #[test]
    fn acknowledgements_carry_due_reports_without_a_timer() {
        let now = Instant::now();
        let reporter = LoadReporter::new(SECOND);
        let mut pings = Pings::new(SECOND * 60, Some((reporter.clone(), ReportCarrier::Ack)), now);
        assert_eq!(pings.report_for_ack(now), None);
        assert_eq!(pings.next(true), Some(now + SECOND * 60), "but for Keep Alive");
        assert_eq!(pings.due(false, now + SECOND * 5), None);
        assert_eq!(pings.report_for_ack(now + SECOND * 5), Some(LoadReport::default()));
        assert_eq!(pings.report_for_ack(now + SECOND * 5), None);
        reporter.drain();
        assert!(pings.report_for_ack(now + SECOND * 5 + GAP).is_some_and(|report| report.draining));
    }
}
