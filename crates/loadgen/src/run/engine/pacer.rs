use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::Duration;

use tokio::sync::Notify;

use super::alarm::Alarm;
use crate::run::clock::RunClock;

/// Wakes the publishers of a thread when their next message is due.
///
/// The runtime's timers count whole milliseconds. The pacer waits with a system timer ([`Alarm`]), exact to some ten
/// microseconds, without keeping a processor busy. It wakes at most once per [`WAKE_INTERVAL`]. Messages that are due within
/// one interval go out together, each with its own due time in its stamp.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// Due times and connection numbers; the earliest on top.
    waiting: RefCell<BinaryHeap<Reverse<(u64, usize)>>>,
    /// Due time that the alarm is set for.
    set_for: Cell<Option<u64>>,
    /// Notified when a connection waits for an earlier time than the alarm's.
    earlier: Notify,
}

impl Pacer {
    /// Registers connection `number` to be woken at `due_ns`.
    pub(super) fn wake_at(&self, due_ns: u64, number: usize) {
        self.waiting.borrow_mut().push(Reverse((due_ns, number)));
        if self.set_for.get().is_none_or(|set_for| due_ns < set_for) {
            self.earlier.notify_one();
        }
    }

    /// Runs for ever.
    ///
    /// # Errors
    /// The system has no timer left.
    pub(super) async fn run(&self, clock: RunClock, wake: impl Fn(usize)) -> io::Result<()> {
        let mut alarm = Alarm::new()?;
        let mut not_before = 0;
        loop {
            let next = self.waiting.borrow().peek().map(|&Reverse((due_ns, _))| due_ns);
            self.set_for.set(next);
            tokio::select! {
                rung = alarm.at(next.map(|due_ns| clock.instant(due_ns.max(not_before)))) => rung?,
                () = self.earlier.notified() => continue,
            }
            let now = clock.now_ns();
            not_before = now + WAKE_INTERVAL.as_nanos() as u64;
            while let Some(number) = self.take_due(now) {
                wake(number);
            }
        }
    }

    /// Removes and returns a connection that is due.
    fn take_due(&self, now_ns: u64) -> Option<usize> {
        let mut waiting = self.waiting.borrow_mut();
        let &Reverse((due_ns, number)) = waiting.peek()?;
        (due_ns <= now_ns).then(|| {
            waiting.pop();
            number
        })
    }
}

/// Least time between two wake-ups.
const WAKE_INTERVAL: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn connections_wake_in_due_order_and_not_early() {
        let clock = RunClock::new(0);
        let pacer = Pacer::default();
        let (begun, start) = (Instant::now(), clock.now_ns());
        let due = |ms: u64| start + ms * 1_000_000;
        let woken = RefCell::new(Vec::new());
        let wake = |number| {
            woken.borrow_mut().push((number, begun.elapsed()));
            // Asks while the alarm is set for the last connection.
            if number == 0 {
                pacer.wake_at(due(12), 3);
            }
        };
        [(0, 5), (1, 20), (2, 10)].into_iter().for_each(|(number, ms)| pacer.wake_at(due(ms), number));
        let all = async {
            while woken.borrow().len() < 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            failed = pacer.run(clock, wake) => failed.unwrap(),
            () = all => {}
        }
        let woken = woken.into_inner();
        assert_eq!(woken.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 2, 3, 1]);
        for ((_, after), ms) in woken.iter().zip([5, 10, 12, 20]) {
            assert!(*after >= Duration::from_millis(ms), "{woken:?}");
        }
    }
}
