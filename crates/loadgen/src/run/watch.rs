//! When a run ends.

use std::time::Duration;

use super::Plan;
use super::engine::Status;

/// Judges by what clients tell whether a run goes on. Times are from the start of the run; it reads no clock.
#[derive(Debug)]
pub(crate) struct Watch {
    time_limit: Duration,
    subscriber_timeout: Duration,
    /// A run without publishers of its own does not know what is to come.
    has_publishers: bool,
    /// Whether it is about connections alone, which are kept until the time is over.
    lasts: bool,
    /// How long nothing may have come after the last message that is expected.
    grace: Duration,
    /// How far everything was that can move, and when it moved last.
    moved: [u64; 4],
    moved_at: Duration,
    stopped_at: Option<Duration>,
    /// How long messages are waited for that keep coming when the time of the run is over.
    wait_max: Duration,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing.
    GoOn,
    /// Publishers are to be stopped; what is on its way is waited for.
    Stop,
    /// Everything has come that will come.
    End,
    /// Messages still come, but they have been waited for long enough.
    GiveUp,
}

impl Watch {
    pub(crate) fn new(plan: &Plan) -> Self {
        // Who reads slowly on purpose may have minutes to go; how much it has not got is what is asked for.
        let is_slow = plan.audiences.iter().any(|audience| audience.slow.is_some());
        let wait_max = if is_slow { Duration::ZERO } else { WAIT_MAX };
        Self {
            time_limit: plan.schedule.time_limit,
            subscriber_timeout: plan.schedule.subscriber_timeout,
            has_publishers: plan.publishers.count > 0,
            lasts: plan.publishers.count == 0 && (plan.idle.is_some() || plan.cuts.is_some()),
            // Where connections are cut, copies come, so that as much as is expected may not be all of it.
            grace: if plan.cuts.is_some() { GRACE_AFTER_CUTS } else { GRACE },
            moved: [0; 4],
            moved_at: Duration::ZERO,
            stopped_at: None,
            wait_max: wait_max.max(plan.schedule.subscriber_timeout),
        }
    }

    /// To be asked every now and then, with the sum of all processes' status.
    pub(crate) fn look(&mut self, status: &Status, at: Duration) -> Next {
        // What somebody else publishes may go on for ever.
        let moved = [status.published, status.received, status.copies, status.wills];
        if moved != self.moved {
            self.moved = moved;
            self.moved_at = at;
        }
        // Workers have something to do, or connections are to come: that is no standing still.
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
            // A copy that comes late is still counted.
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

/// An overloaded broker may have many.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::example;
    use crate::run::{Audience, Idle, Schedule};

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Half a second for subscribers, ten for the run.
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
    fn a_run_ends_once_all_has_been_sent_and_has_come() {
        let mut watch = watch(1);
        assert_eq!(watch.look(&status(1, 5, 5), at(10)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 10, 9), at(20)), Next::GoOn);
        let in_flight = Status { in_flight: 1, ..status(0, 10, 10) };
        assert_eq!(watch.look(&in_flight, at(30)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 10, 10), at(40)), Next::Stop);
        // A copy comes late.
        let copied = Status { copies: 1, ..status(0, 10, 10) };
        assert_eq!(watch.look(&copied, at(80)), Next::GoOn);
        assert_eq!(watch.look(&copied, at(129)), Next::GoOn);
        assert_eq!(watch.look(&copied, at(130)), Next::End);
    }

    #[test]
    fn where_something_may_have_come_twice_all_is_waited_for_as_long_as_the_plan_says() {
        let mut watch = watch(1);
        let doubtful = Status { doubtful: 1, ..status(0, 10, 10) };
        assert_eq!(watch.look(&doubtful, at(10)), Next::GoOn);
        assert_eq!(watch.look(&doubtful, at(509)), Next::GoOn);
        assert_eq!(watch.look(&doubtful, at(510)), Next::Stop);
        assert_eq!(watch.look(&doubtful, at(520)), Next::End);
    }

    #[test]
    fn what_does_not_come_is_waited_for_as_long_as_the_plan_says() {
        let mut watch = watch(1);
        assert_eq!(watch.look(&status(0, 10, 8), at(100)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 10, 9), at(500)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 10, 9), at(999)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 10, 9), at(1000)), Next::Stop);
        assert_eq!(watch.look(&status(0, 10, 9), at(1010)), Next::End);
    }

    #[test]
    fn when_the_time_is_over_what_is_on_its_way_is_waited_for() {
        let mut watch = watch(1);
        assert_eq!(watch.look(&status(1, 100, 50), at(9_999)), Next::GoOn);
        assert_eq!(watch.look(&status(1, 100, 50), at(10_000)), Next::Stop);
        assert_eq!(watch.look(&status(1, 101, 60), at(10_010)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 101, 70), at(10_400)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 101, 70), at(10_900)), Next::End);
    }

    #[test]
    fn workers_finish_what_they_have_and_connections_that_are_to_come_are_waited_for() {
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
    fn who_reads_slowly_on_purpose_is_not_waited_for() {
        let mut plan = example::plan(vec![Audience { slow: Some(1.0), ..example::audience("slow", "#") }]);
        plan.schedule.time_limit = at(10_000);
        plan.schedule.subscriber_timeout = at(500);
        let mut watch = Watch::new(&plan);
        assert_eq!(watch.look(&status(0, 100, 10), at(10_000)), Next::Stop);
        assert_eq!(watch.look(&status(0, 100, 20), at(10_499)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 100, 21), at(10_500)), Next::GiveUp);
    }

    #[test]
    fn messages_that_never_end_are_not_waited_for() {
        let mut watch = watch(1);
        assert_eq!(watch.look(&status(0, 100_000, 0), at(10_000)), Next::Stop);
        for ms in (10_100..40_000).step_by(100) {
            assert_eq!(watch.look(&status(0, 100_000, ms), at(ms)), Next::GoOn);
        }
        assert_eq!(watch.look(&status(0, 100_000, 40_000), at(40_000)), Next::GiveUp);
    }

    #[test]
    fn connections_without_publishers_are_kept_until_the_time_is_over_and_their_wills_are_waited_for() {
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
    fn who_only_receives_does_not_know_what_is_to_come() {
        let mut watch = watch(0);
        assert_eq!(watch.look(&status(0, 0, 0), at(0)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 0, 5), at(400)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 0, 5), at(899)), Next::GoOn);
        assert_eq!(watch.look(&status(0, 0, 5), at(900)), Next::Stop);
    }
}
