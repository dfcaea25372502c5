//! A simulated worker: its queue, its threads, and its load reports.

mod acknowledger;
mod nagle;

use std::collections::VecDeque;

use tenbin_balancer::{LoadReport, Nanos};
use tenbin_kit::Span;

pub(crate) use acknowledger::{Acknowledged, Acknowledger};
use nagle::Nagle;

use crate::{
    plan::{Direction, WorkerPlan},
    rules::Probe,
    scenario::{EAGER_GAP, Reports},
};

/// Current state of a worker.
#[derive(Debug)]
pub(crate) struct Worker<'a> {
    pub(crate) plan: &'a WorkerPlan<'a>,
    /// Messages that have arrived and were not taken yet.
    pub(crate) queue: VecDeque<Sent>,
    /// Threads at work.
    pub(crate) busy: u32,
    /// True if the worker and its messages are gone.
    pub(crate) is_dead: bool,
    /// Number of pings sent.
    pub(crate) pings: u32,
    /// True if an early ping is scheduled.
    pub(crate) has_eager_ping: bool,
    /// Its acknowledgements.
    pub(crate) acknowledger: Acknowledger,
    /// Acknowledgements that its kernel holds back.
    pub(crate) nagle: Nagle,
    /// When the last packet to the worker, and the last one to the broker, arrive.
    last_arrivals: [Nanos; 2],
    reporter: Reporter,
    /// The last completed messages: how many were at the worker before, and the time from receipt to completion.
    latencies: VecDeque<(u64, u64)>,
}

/// A message on its way through a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// Its number in the order of arrival at the broker.
    pub(crate) message: u32,
    /// Time when the broker sent it.
    pub(crate) at: Nanos,
    /// Time when it arrived at the worker.
    pub(crate) received: Nanos,
    /// Messages at the worker when it arrived there.
    pub(crate) ahead: u64,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(plan: &'a WorkerPlan<'a>) -> Self {
        Self {
            plan,
            queue: VecDeque::new(),
            busy: 0,
            is_dead: false,
            pings: 0,
            has_eager_ping: false,
            acknowledger: Acknowledger::new(plan.kind.acknowledges),
            nagle: Nagle::default(),
            last_arrivals: [Nanos(0); 2],
            reporter: Reporter::default(),
            latencies: VecDeque::new(),
        }
    }

    /// When a packet that is sent at `now` arrives. A connection keeps the order: a packet overtakes no earlier one.
    pub(crate) fn arrival(&mut self, direction: Direction, seed: u64, now: Nanos) -> Nanos {
        let last = &mut self.last_arrivals[usize::from(matches!(direction, Direction::ToBroker))];
        *last = Nanos(now.0 + self.plan.crossing_ns(direction, seed)).max(*last);
        *last
    }

    /// Takes note of a segment that is sent at `now` and arrives at the broker at `arrives`. A proxy confirms it at once.
    pub(crate) fn segment_sent(&mut self, arrives: Nanos, now: Nanos) {
        match (self.plan.kind.nagle, self.has_proxy()) {
            (false, _) => {}
            (true, false) => self.nagle.sent(arrives, self.plan.path_ns()),
            (true, true) => self.nagle.sent(now, 0),
        }
    }

    /// Takes note of a message that arrives at `now`: it confirms earlier segments.
    pub(crate) fn segment_received(&mut self, sent: &Sent, now: Nanos) {
        self.nagle.received(if self.has_proxy() { now } else { sent.at }, now);
    }

    /// Whether the other end of its connection is a proxy, which is near.
    fn has_proxy(&self) -> bool {
        self.plan.kind.hidden.ns() > 0
    }

    /// How many waiting messages it can begin with at `now`.
    pub(crate) fn free(&self, now: Nanos) -> u32 {
        match self.plan.kind.batch.get() {
            1 => self.plan.threads(now).saturating_sub(self.busy),
            batch if self.busy == 0 => batch,
            _ => 0,
        }
    }

    /// Records a completed message and its service time.
    pub(crate) fn finished(&mut self, sent: Sent, service_ns: u64, now: Nanos) {
        self.reporter.messages += 1;
        self.reporter.total_ns += service_ns;
        self.latencies.push_back((sent.ahead, now.0.saturating_sub(sent.received.0)));
        if self.latencies.len() > LATENCIES {
            self.latencies.pop_front();
        }
    }

    /// Messages that it has received and not completed.
    pub(crate) fn in_flight(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.busy)
    }

    /// Answers a probe.
    pub(crate) fn probe(&self) -> Probe {
        let in_flight = self.in_flight();
        let mut near: Vec<_> = self.latencies.iter().map(|(ahead, ns)| (ahead.abs_diff(in_flight), *ns)).collect();
        near.sort_unstable();
        near.truncate(LATENCIES_NEAR);
        near.sort_unstable_by_key(|(_, ns)| *ns);
        Probe { in_flight, latency_ns: near.get(near.len() / 2).map_or(0, |(_, ns)| *ns) }
    }

    /// Returns the report of a ping at `now`, or `None` for a plain ping.
    pub(crate) fn ping(&mut self, now: Nanos) -> Option<LoadReport> {
        self.pings += 1;
        self.has_eager_ping = false;
        let report = self.reporter.take(self.queue.len() as u64, now);
        match self.plan.kind.reports {
            Reports::Honest => Some(report),
            Reports::Never => None,
            Reports::Lie { queue, processing } => {
                Some(LoadReport { messages_in_queue: queue, processing_time: processing.duration(), draining: false })
            }
        }
    }

    /// Time of an early ping because of changes since the last one, or `None` without such changes.
    pub(crate) fn eager_ping_at(&self, now: Nanos) -> Option<Nanos> {
        let is_due = self.plan.kind.reports == Reports::Honest && self.reporter.has_news(self.queue.len() as u64);
        is_due.then(|| now.max(Nanos(self.reporter.pinged_at.0 + EAGER_GAP.ns())))
    }
}

/// Counters of the client library between two pings (`LoadReporter` of `tenbin-client`).
#[derive(Debug, Default)]
struct Reporter {
    messages: u64,
    total_ns: u64,
    pinged_at: Nanos,
    /// Queue and mean of the last ping. The mean is an earlier one if no message was finished since.
    reported_queue: u64,
    reported_mean_ns: Option<u64>,
}

impl Reporter {
    fn take(&mut self, queue: u64, now: Nanos) -> LoadReport {
        let mean_ns = self.total_ns.checked_div(self.messages);
        self.reported_mean_ns = mean_ns.or(self.reported_mean_ns);
        (self.messages, self.total_ns) = (0, 0);
        (self.reported_queue, self.pinged_at) = (queue, now);
        LoadReport {
            messages_in_queue: queue,
            processing_time: Span::from_ns(mean_ns.unwrap_or(0)).duration(),
            draining: false,
        }
    }

    /// The rules of early pings: first finished message, mean × 1.5 or ÷ 1.5, queue at twice the reported one + 4.
    fn has_news(&self, queue: u64) -> bool {
        let mean_has_moved = match (self.total_ns.checked_div(self.messages), self.reported_mean_ns) {
            (Some(_), None) => true,
            (Some(mean), Some(reported)) => 2 * mean >= 3 * reported || 3 * mean <= 2 * reported,
            (None, _) => false,
        };
        mean_has_moved || queue >= 2 * self.reported_queue + 4
    }
}

/// Completed messages that the answer to a probe considers, and how many of these count.
const LATENCIES: usize = 32;
const LATENCIES_NEAR: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::Plan, scenario::Scenario};

    const MS: u64 = 1_000_000;
    const SENT: Sent = Sent { message: 0, at: Nanos(0), received: Nanos(0), ahead: 0 };

    fn with_worker(rest: &str, check: impl FnOnce(&mut Worker<'_>)) {
        let text = format!("messages = 1\narrivals = {{ fixed = \"1s\" }}\n[[workers]]\nservice = \"25ms\"\n{rest}");
        let scenario = Scenario::parse("test", &text).unwrap();
        check(&mut Worker::new(&Plan::new(&scenario, 1).workers[0]));
    }

    fn queue(worker: &mut Worker<'_>, messages: usize) {
        worker.queue.resize(messages, SENT);
    }

    #[test]
    fn ping_reports_queue_and_mean_and_resets_the_mean() {
        with_worker("", |worker| {
            queue(worker, 3);
            worker.finished(SENT, 20 * MS, Nanos(0));
            worker.finished(SENT, 30 * MS, Nanos(0));
            let report = |ms| LoadReport {
                messages_in_queue: 3,
                processing_time: Span::from_ns(ms * MS).duration(),
                draining: false,
            };
            assert_eq!(worker.ping(Nanos(1)), Some(report(25)));
            assert_eq!(worker.ping(Nanos(2)), Some(report(0)));
            assert_eq!(worker.pings, 2);
        });
    }

    #[test]
    fn silent_workers_send_no_reports_and_liars_constant_ones() {
        with_worker("reports = \"never\"", |worker| {
            worker.finished(SENT, MS, Nanos(0));
            assert_eq!((worker.ping(Nanos(1)), worker.eager_ping_at(Nanos(1))), (None, None));
        });
        with_worker("reports = { lie = { queue = 7, processing = \"1us\" } }", |worker| {
            queue(worker, 100);
            let report = worker.ping(Nanos(1)).expect("it reports");
            assert_eq!((report.messages_in_queue, report.processing_time.as_nanos()), (7, 1000));
        });
    }

    #[test]
    fn eager_pings_have_three_reasons_and_a_minimum_gap() {
        with_worker("", |worker| {
            worker.ping(Nanos(0));
            assert_eq!(worker.eager_ping_at(Nanos(MS)), None, "nothing is new");
            worker.finished(SENT, 25 * MS, Nanos(0));
            assert_eq!(worker.eager_ping_at(Nanos(30 * MS)), Some(Nanos(100 * MS)), "first finished message");
            assert_eq!(worker.eager_ping_at(Nanos(130 * MS)), Some(Nanos(130 * MS)));
            worker.ping(Nanos(130 * MS));

            worker.finished(SENT, 37 * MS, Nanos(0));
            assert_eq!(worker.eager_ping_at(Nanos(500 * MS)), None, "less than 1.5 times as long");
            worker.finished(SENT, 38 * MS, Nanos(0));
            assert_eq!(worker.eager_ping_at(Nanos(500 * MS)), Some(Nanos(500 * MS)), "1.5 times as long");
            worker.ping(Nanos(500 * MS));

            queue(worker, 3);
            assert_eq!(worker.eager_ping_at(Nanos(900 * MS)), None);
            queue(worker, 4);
            assert_eq!(worker.eager_ping_at(Nanos(900 * MS)), Some(Nanos(900 * MS)), "from 0 to 4");
            worker.ping(Nanos(900 * MS));
            queue(worker, 11);
            assert_eq!(worker.eager_ping_at(Nanos(1900 * MS)), None);
            queue(worker, 12);
            assert_eq!(worker.eager_ping_at(Nanos(1900 * MS)), Some(Nanos(1900 * MS)), "from 4 to 2 × 4 + 4");
        });
    }
}
