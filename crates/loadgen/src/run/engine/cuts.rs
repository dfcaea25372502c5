//! Schedule of connection cuts.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::driver_thread::DriverThread;
use crate::run::{CutWhose, Cuts, Plan};

/// Cuts connections of a thread's publishers or subscribers as planned, while messages are published.
pub(super) async fn cut_in_turns(driver: Rc<DriverThread>) {
    let (plan, layout) = (driver.plan(), driver.layout());
    let (whose, connections) = match plan.cuts.map(|cuts| cuts.whose) {
        Some(CutWhose::Publishers) => (CutWhose::Publishers, plan.publishers.count),
        Some(CutWhose::Subscribers) => (CutWhose::Subscribers, layout.receivers().len() as u32),
        Some(CutWhose::Idle) | None => return,
    };
    let Some(mut schedule) = CutSchedule::of(plan, whose, connections, driver.start_ns()) else { return };
    let controls = driver.controls().into_iter().filter(|control| control.whose == whose);
    let controls: HashMap<_, _> = controls.map(|control| (control.number, control)).collect();
    loop {
        let next = driver.common.clock.instant(schedule.next_ns());
        tokio::time::sleep_until(next.into()).await;
        if !driver.shared().may_cut() {
            return;
        }
        while let Some(number) = schedule.due(driver.now_ns()) {
            // Other connections belong to other threads.
            if let Some(control) = controls.get(&number) {
                control.cut(schedule.away());
            }
        }
    }
}

/// Cuts of one kind of connection.
///
/// The first cut comes one interval after the start and hits connection 0, the next one connection 1, and so on in
/// turns. All processes of a run count alike; each cuts only its own connections.
#[derive(Debug)]
pub(super) struct CutSchedule {
    cuts: Cuts,
    connections: u32,
    start_ns: u64,
    /// Number of cuts so far.
    done: u64,
}

impl CutSchedule {
    /// The schedule for `connections` connections of kind `whose` in the whole run; `None` if the plan does not cut
    /// them.
    pub(super) fn of(plan: &Plan, whose: CutWhose, connections: u32, start_ns: u64) -> Option<Self> {
        let cuts = plan.cuts.filter(|cuts| cuts.whose == whose && connections > 0)?;
        Some(Self { cuts, connections, start_ns, done: 0 })
    }

    /// When the next cut is due.
    pub(super) fn next_ns(&self) -> u64 {
        let every = u64::try_from(self.cuts.every.as_nanos()).unwrap_or(u64::MAX);
        self.start_ns.saturating_add(every.saturating_mul(self.done + 1))
    }

    /// The connection of the next cut, if the cut is due.
    pub(super) fn due(&mut self, now_ns: u64) -> Option<u32> {
        if self.next_ns() > now_ns {
            return None;
        }
        let connection = (self.done % u64::from(self.connections)) as u32;
        self.done += 1;
        Some(connection)
    }

    /// How long the client stays away after a cut.
    pub(super) fn away(&self) -> Duration {
        self.cuts.away
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn connections_are_cut_in_turns_at_equal_intervals() {
        let (every, away) = (Duration::from_secs(2), Duration::from_secs(1));
        let cuts = Cuts { every, whose: CutWhose::Idle, away };
        let mut schedule = CutSchedule { cuts, connections: 3, start_ns: 10 * SECOND, done: 0 };
        assert_eq!((schedule.next_ns(), schedule.due(11 * SECOND)), (12 * SECOND, None));
        assert_eq!((schedule.due(12 * SECOND), schedule.due(12 * SECOND)), (Some(0), None));
        // Called late: it returns all overdue cuts.
        let late = std::iter::from_fn(|| schedule.due(21 * SECOND)).collect::<Vec<_>>();
        assert_eq!((late, schedule.next_ns()), (vec![1, 2, 0, 1], 22 * SECOND));
    }
}
