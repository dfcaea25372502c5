use std::time::{Duration, Instant};

use tenbin_codec::PingReq;

use crate::LoadReporter;

/// When a connection pings, and when the broker counts as gone.
///
/// The session has timers of its own; these know two things more: the reporter's interval, and that no answer
/// can be expected while we do not read.
#[derive(Debug)]
pub(super) struct Pings {
    /// `None` = off.
    keep_alive: Option<Duration>,
    reports: Option<Reports>,
    last_sent: Instant,
    /// Since when a ping has no answer that we could have read.
    unanswered_since: Option<Instant>,
}

#[derive(Debug)]
struct Reports {
    reporter: LoadReporter,
    /// The smaller of the reporter's interval and Keep Alive, so that no plain ping is needed.
    interval: Duration,
    next: Instant,
}

impl Pings {
    /// `now` is the moment of CONNACK; the first report comes one interval later, as in the thesis.
    pub(super) fn new(keep_alive: Duration, reporter: Option<LoadReporter>, now: Instant) -> Self {
        let keep_alive = (!keep_alive.is_zero()).then_some(keep_alive);
        let reports = reporter.map(|reporter| {
            let interval = keep_alive.map_or(reporter.interval(), |keep_alive| keep_alive.min(reporter.interval()));
            Reports { reporter, interval, next: after(now, interval) }
        });
        Self { keep_alive, reports, last_sent: now, unanswered_since: None }
    }

    /// When something is due; `None` = never. `reading`: whether an answer can come.
    pub(super) fn next(&self, reading: bool) -> Option<Instant> {
        let ping = match (&self.reports, self.keep_alive) {
            (Some(reports), _) => Some(reports.next),
            (None, keep_alive) => keep_alive.map(|keep_alive| after(self.last_sent, keep_alive)),
        };
        match (ping, self.answer_due().filter(|_| reading)) {
            (Some(ping), Some(answer)) => Some(ping.min(answer)),
            (ping, answer) => ping.or(answer),
        }
    }

    /// The ping that is due. `congested`: much waits to be written, so that a report would be stale before it
    /// leaves; the reporter goes on counting for the next one.
    pub(super) fn due(&mut self, congested: bool, now: Instant) -> Option<PingReq> {
        let ping = match &mut self.reports {
            Some(reports) if reports.next <= now => {
                reports.next = after(reports.next, reports.interval);
                if reports.next <= now {
                    reports.next = after(now, reports.interval); // late: no burst to make up for it
                }
                (!congested).then(|| PingReq::with_payload(reports.reporter.take().to_json().into()))
            }
            Some(_) => None,
            None => {
                let due = self.keep_alive.is_some_and(|keep_alive| after(self.last_sent, keep_alive) <= now);
                due.then_some(PingReq::PLAIN) // [MQTT-3.1.2-20]
            }
        };
        if ping.is_some() {
            self.last_sent = now;
            self.unanswered_since.get_or_insert(now);
        }
        ping
    }

    /// Whether an answer should have come. Without Keep Alive there is no limit.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.answer_due().is_some_and(|due| due <= now)
    }

    /// Bytes were written to the socket.
    pub(super) fn sent(&mut self, now: Instant) {
        self.last_sent = now;
    }

    /// PINGRESP has come.
    pub(super) fn answered(&mut self) {
        self.unanswered_since = None;
    }

    /// The socket is read again after a time when it was not: the answer may lie there.
    pub(super) fn reading_resumed(&mut self, now: Instant) {
        if let Some(since) = &mut self.unanswered_since {
            *since = now;
        }
    }

    fn answer_due(&self) -> Option<Instant> {
        Some(after(self.unanswered_since?, self.keep_alive?))
    }
}

/// An absurdly long interval stands for one that nobody lives to see.
fn after(instant: Instant, interval: Duration) -> Instant {
    instant.checked_add(interval).unwrap_or_else(|| instant + YEAR)
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn reports_come_at_the_smaller_of_keep_alive_and_interval() {
        let now = Instant::now();
        for (keep_alive, interval, expected) in [(60, 1, 1), (2, 10, 2), (0, 10, 10)] {
            let reporter = LoadReporter::new(SECOND * interval);
            let mut pings = Pings::new(SECOND * keep_alive, Some(reporter), now);
            assert_eq!(pings.next(true), Some(now + SECOND * expected), "one interval after CONNACK");
            assert_eq!(pings.due(false, now), None);
            let at = now + SECOND * expected;
            assert!(pings.due(false, at).is_some_and(|ping| ping.body.is_some()));
            pings.answered();
            assert_eq!(pings.next(true), Some(at + SECOND * expected));
        }
    }

    #[test]
    fn without_reporter_a_plain_ping_follows_a_keep_alive_of_silence() {
        let now = Instant::now();
        let mut pings = Pings::new(SECOND * 10, None, now);
        pings.sent(now + SECOND * 4);
        assert_eq!(pings.due(false, now + SECOND * 13), None);
        assert_eq!(pings.due(true, now + SECOND * 14), Some(PingReq::PLAIN));
        assert_eq!(Pings::new(Duration::ZERO, None, now).next(true), None);
    }

    #[test]
    fn an_answer_is_not_overdue_while_nothing_is_read() {
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
    fn a_congested_connection_leaves_a_report_out_and_late_ones_are_not_made_up_for() {
        let now = Instant::now();
        let reporter = LoadReporter::new(SECOND);
        reporter.finish_after(SECOND);
        let mut pings = Pings::new(SECOND * 60, Some(reporter.clone()), now);
        assert_eq!(pings.due(true, now + SECOND), None);
        assert_eq!(reporter.snapshot().processing_time, SECOND, "kept for the next report");
        assert!(pings.due(false, now + SECOND * 30).is_some());
        assert_eq!(pings.next(false), Some(now + SECOND * 31));
    }

    #[test]
    fn absurd_intervals_do_not_overflow() {
        let pings = Pings::new(Duration::ZERO, Some(LoadReporter::new(Duration::MAX)), Instant::now());
        assert!(pings.next(true).is_some());
    }
}
