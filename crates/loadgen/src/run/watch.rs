//! Decides when a run ends.

use std::time::Duration;

use super::{Plan, Status};

/// Decides from the clients' status whether a run goes on. Times are from the start of the run; it reads no clock.
#[derive(Debug)]
pub(crate) struct Watch {
    time_limit: Duration,
    subscriber_timeout: Duration,
    /// A run without publishers cannot know which messages to expect.
    has_publishers: bool,
    /// Whether the run is only about connections, which it keeps until the time limit.
    lasts: bool,
    /// Time without arrivals after the last expected message that ends the run.
    grace: Duration,
    /// Last progress counters, and when they last changed.
    moved: [u64; 4],
    moved_at: Duration,
    stopped_at: Option<Duration>,
    /// Maximum wait, after the time limit, for messages that keep arriving.
    wait_max: Duration,
}

/// Next action of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Go on.
    GoOn,
    /// Stop publishers and wait for messages under way.
    Stop,
    /// End the run: everything that can be expected has arrived.
    End,
    /// End the run: messages still arrive, but the maximum wait is over.
    GiveUp,
}

impl Watch {
    pub(crate) fn new(plan: &Plan) -> Self {
        // A deliberately slow reader may need minutes. The unread rest is the result that is asked for.
        let is_slow = plan.audiences.iter().any(|audience| audience.slow.is_some());
        let wait_max = if is_slow { Duration::ZERO } else { WAIT_MAX };
        Self {
            time_limit: plan.schedule.time_limit,
            subscriber_timeout: plan.schedule.subscriber_timeout,
            has_publishers: plan.publishers.count > 0,
            lasts: plan.publishers.count == 0 && (plan.idle.is_some() || plan.cuts.is_some()),
            // After cuts copies arrive, so that the expected number may include copies.
            grace: if plan.cuts.is_some() || plan.on_lost.reconnects() { GRACE_AFTER_CUTS } else { GRACE },
            moved: [0; 4],
            moved_at: Duration::ZERO,
            stopped_at: None,
            wait_max: wait_max.max(plan.schedule.subscriber_timeout),
        }
    }

    /// Publishing was stopped from outside.
    pub(crate) fn stop(&mut self, at: Duration) {
        self.stopped_at.get_or_insert(at);
    }

    /// Returns the next action. Call it regularly, with the sum of all processes' status.
    pub(crate) fn look(&mut self, status: &Status, at: Duration) -> Next {
        // Foreign messages do not count as progress: other programs may publish for ever.
        let moved = [status.published, status.received, status.copies, status.wills];
        if moved != self.moved {
            self.moved = moved;
            self.moved_at = at;
        }
        // Busy workers and pending connections count as progress.
        let is_settled = status.queued == 0 && status.connecting == 0;
        if !is_settled {
            self.moved_at = at;
        }
        let still = at.saturating_sub(self.moved_at);
        let is_all_sent = status.publishing == 0;
        let is_answered = status.in_flight == 0 && status.received >= status.expected;
        let has_all_come = self.has_publishers && is_answered && is_settled && status.doubtful == 0;
        let is_enough = is_all_sent && !self.lasts && (has_all_come || still >= self.subscriber_timeout);
        match self.stopped_at {
            None if at >= self.time_limit || is_enough => {
                self.stopped_at = Some(at);
                Next::Stop
            }
            None => Next::GoOn,
            // Late copies are still counted.
            Some(_) if is_all_sent && still >= if has_all_come { self.grace } else { self.subscriber_timeout } => {
                Next::End
            }
            Some(since) if at.saturating_sub(since) >= self.wait_max => Next::GiveUp,
            Some(_) => Next::GoOn,
        }
    }
}

const GRACE: Duration = Duration::from_millis(50);
const GRACE_AFTER_CUTS: Duration = Duration::from_millis(500);

/// An overloaded broker may have many messages left.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::example;
    use crate::run::{Audience, Idle, Schedule, Slow};

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A run with half a second for subscribers, and ten seconds in all.
    fn watch(publishers: u32) -> Watch {
        let mut plan = example::plan(vec![]);
        plan.publishers.count = publishers;
        plan.schedule.time_limit = at(10_000);
        plan.schedule.subscriber_timeout = at(500);
        Watch::new(&plan)
    }

    fn status(publishing: u64, published: u64, received: u64) -> Status {
        Status { publishing, published, expected: published, received, ..Status::default() }
    }

    #[test]
    fn run_ends_once_everything_is_sent_and_received() {
        let mut watch = watch(1);
        assert_eq!(watch.look(&status(1, 5, 5), at(10)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 10, 9), at(20)), Next::GoOn);
        let in_flight = Status { in_flight: 1, ..status(0, 10, 10) };
        assert_eq!(watch.look(&in_flight, at(30)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 10, 10), at(40)), Next::Stop);
        // A copy arrives late.
        let copied = Status { copies: 1, ..status(0, 10, 10) };
        assert_eq!(watch.look(&copied, at(80)), Next::GoOn);
        assert_eq!(watch.look(&copied, at(129)), Next::GoOn);
        assert_eq!(watch.look(&copied, at(130)), Next::End);
    }

    #[test]
    fn doubtful_deliveries_wait_for_subscriber_timeout() {
        let mut watch = watch(1);
        let doubtful = Status { doubtful: 1, ..status(0, 10, 10) };
        assert_eq!(watch.look(&doubtful, at(10)), Next::GoOn);
        assert_eq!(watch.look(&doubtful, at(509)), Next::GoOn);
        assert_eq!(watch.look(&doubtful, at(510)), Next::Stop);
        assert_eq!(watch.look(&doubtful, at(520)), Next::End);
    }

    #[test]
    fn missing_deliveries_wait_for_subscriber_timeout() {
        let mut watch = watch(1);
        assert_eq!(watch.look(&status(0, 10, 8), at(100)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 10, 9), at(500)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 10, 9), at(999)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 10, 9), at(1000)), Next::Stop);
        assert_eq!(watch.look(&status(0, 10, 9), at(1010)), Next::End);
    }

    #[test]
    fn messages_under_way_are_awaited_after_time_limit() {
        let mut watch = watch(1);
        assert_eq!(watch.look(&status(1, 100, 50), at(9_999)), Next::GoOn);
        assert_eq!(watch.look(&status(1, 100, 50), at(10_000)), Next::Stop);
        assert_eq!(watch.look(&status(1, 101, 60), at(10_010)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 101, 70), at(10_400)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 101, 70), at(10_900)), Next::End);
    }

    #[test]
    fn busy_workers_and_pending_connections_are_awaited() {
        for unsettled in [Status { queued: 1, ..status(0, 10, 10) }, Status { connecting: 1, ..status(0, 10, 10) }] {
            let mut watch = watch(1);
            assert_eq!(watch.look(&unsettled, at(20)), Next::GoOn);
            assert_eq!(watch.look(&unsettled, at(5_000)), Next::GoOn);
            assert_eq!(watch.look(&status(0, 10, 10), at(5_010)), Next::Stop);
            assert_eq!(watch.look(&unsettled, at(5_020)), Next::GoOn);
            assert_eq!(watch.look(&status(0, 10, 10), at(5_069)), Next::GoOn);
            assert_eq!(watch.look(&status(0, 10, 10), at(5_070)), Next::End);
        }
    }

    #[test]
    fn deliberately_slow_reader_is_not_awaited() {
        let mut plan =
            example::plan(vec![Audience { slow: Some(Slow::last_member(1.0)), ..example::audience("slow", "#") }]);
        plan.schedule.time_limit = at(10_000);
        plan.schedule.subscriber_timeout = at(500);
        let mut watch = Watch::new(&plan);
        assert_eq!(watch.look(&status(0, 100, 10), at(10_000)), Next::Stop);
        assert_eq!(watch.look(&status(0, 100, 20), at(10_499)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 100, 21), at(10_500)), Next::GiveUp);
    }

    #[test]
    fn endless_messages_are_not_awaited() {
        let mut watch = watch(1);
        assert_eq!(watch.look(&status(0, 100_000, 0), at(10_000)), Next::Stop);
        for ms in (10_100..40_000).step_by(100) {
            assert_eq!(watch.look(&status(0, 100_000, ms), at(ms)), Next::GoOn);
        }
        assert_eq!(watch.look(&status(0, 100_000, 40_000), at(40_000)), Next::GiveUp);
    }

    #[test]
    fn idle_connections_last_until_limit_then_await_wills() {
        let mut plan = example::plan(vec![]);
        plan.publishers.count = 0;
        plan.idle = Some(Idle { count: 5, rate: None });
        plan.schedule = Schedule { time_limit: at(10_000), subscriber_timeout: at(500), ..plan.schedule };
        let mut watch = Watch::new(&plan);
        assert_eq!(watch.look(&status(0, 0, 0), at(9_999)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 0, 0), at(10_000)), Next::Stop);
        let will = Status { wills: 1, ..status(0, 0, 0) };
        assert_eq!(watch.look(&will, at(10_400)), Next::GoOn);
        assert_eq!(watch.look(&will, at(10_899)), Next::GoOn);
        assert_eq!(watch.look(&will, at(10_900)), Next::End);
    }

    #[test]
    fn receive_only_run_ends_by_subscriber_timeout() {
        let mut watch = watch(0);
        assert_eq!(watch.look(&status(0, 0, 0), at(0)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 0, 5), at(400)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 0, 5), at(899)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 0, 5), at(900)), Next::Stop);
    }
}
