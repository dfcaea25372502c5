//! Long work in slices, so that other tasks run in between.
//!
//! A lap of a thread is over when each of its tasks that could run has run, and the system has reported which others
//! can. Connections that begin or end share a slice of each lap ([`in_turn`]). A thousand of them at once take longer,
//! but delay other tasks no more than one does.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Lets other tasks run each millisecond of long work.
#[derive(Debug)]
pub(crate) struct Pauses {
    rested_at: Instant,
}

impl Pauses {
    /// Call this after each piece of the work.
    pub(crate) async fn rest(&mut self) {
        if self.rested_at.elapsed() >= PIECE {
            tokio::task::yield_now().await;
            self.rested_at = Instant::now();
        }
    }
}

impl Default for Pauses {
    fn default() -> Self {
        Self { rested_at: Instant::now() }
    }
}

/// Polls `work` when its turn comes among all such work of the thread: first come, first served.
pub(crate) fn in_turn<F: Future + Unpin>(work: F) -> InTurn<F> {
    InTurn { work, ticket: None }
}

/// See [`in_turn`].
#[must_use = "futures do nothing unless polled"]
pub(crate) struct InTurn<F> {
    work: F,
    /// Present while it waits for its turn.
    ticket: Option<Arc<Ticket>>,
}

/// Work that waits for its turn.
#[derive(Debug)]
struct Ticket {
    /// It has its turn. Relaxed: one thread reads and writes it.
    is_called: AtomicBool,
    waker: Mutex<Waker>,
}

/// Such work in a thread's laps.
#[derive(Debug, Default)]
struct Laps(Mutex<Lap>);

#[derive(Debug)]
struct Lap {
    waiting: VecDeque<Arc<Ticket>>,
    /// Time that turns took in this lap, and their number.
    spent: Duration,
    turns: u32,
    /// Bound of `spent`.
    slice: Duration,
    /// A task runs [`Running`].
    is_running: bool,
}

thread_local! {
    static LAPS: Arc<Laps> = Arc::default();
}

impl<F: Future + Unpin> Future for InTurn<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let laps = LAPS.with(Arc::clone);
        if !laps.may_run(&mut self.ticket, context) {
            return Poll::Pending;
        }
        self.ticket = None;
        let begun = Instant::now();
        let polled = Pin::new(&mut self.work).poll(context);
        let mut lap = laps.lock();
        lap.spent += begun.elapsed();
        lap.turns += 1;
        polled
    }
}

impl Laps {
    /// Whether it is the turn of this work; else it is woken when its turn comes.
    fn may_run(self: &Arc<Self>, ticket: &mut Option<Arc<Ticket>>, context: &Context<'_>) -> bool {
        let mut lap = self.lock();
        let is_first = !std::mem::replace(&mut lap.is_running, true);
        let may_run = lap.may_run(ticket, context);
        drop(lap);
        if is_first {
            tokio::spawn(Running(Arc::clone(self)).run());
        }
        may_run
    }

    fn lock(&self) -> MutexGuard<'_, Lap> {
        // No panic occurs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lap {
    /// See [`Laps::may_run`].
    fn may_run(&mut self, ticket: &mut Option<Arc<Ticket>>, context: &Context<'_>) -> bool {
        let is_called = ticket.as_ref().is_some_and(|ticket| ticket.is_called.swap(false, Ordering::Relaxed));
        if self.spent < self.slice && (is_called || ticket.is_none() && self.waiting.is_empty()) {
            return true;
        }
        match ticket {
            Some(ticket) => {
                ticket.waker.lock().unwrap_or_else(PoisonError::into_inner).clone_from(context.waker());
                if is_called {
                    self.waiting.push_front(Arc::clone(ticket)); // turns before it took longer than expected
                }
            }
            None => {
                let waker = Mutex::new(context.waker().clone());
                let new = ticket.insert(Arc::new(Ticket { is_called: AtomicBool::new(false), waker }));
                self.waiting.push_back(Arc::clone(new));
            }
        }
        false
    }

    /// Begins the next lap: calls as much work as its slice probably has time for. `None`: no work waits.
    fn begin(&mut self, last: Duration) -> Option<Vec<Waker>> {
        let turn = self.spent.checked_div(self.turns).unwrap_or(SLICE);
        // Where other tasks take long, such work gets more time too: else it would hardly advance.
        self.slice = (last / SHARE).clamp(SLICE, SLICE_MAX);
        (self.spent, self.turns) = (Duration::ZERO, 0);
        // A dropped future leaves its ticket behind.
        self.waiting.retain(|ticket| Arc::strong_count(ticket) > 1);
        self.is_running = !self.waiting.is_empty();
        self.is_running.then(|| self.call(turns_in(self.slice, turn)))
    }

    fn call(&mut self, turns: usize) -> Vec<Waker> {
        let called = self.waiting.drain(..turns.min(self.waiting.len()));
        let waker = |ticket: Arc<Ticket>| {
            ticket.is_called.store(true, Ordering::Relaxed);
            ticket.waker.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        called.map(waker).collect()
    }
}

/// Turns that fit into a slice, at least one.
fn turns_in(slice: Duration, turn: Duration) -> usize {
    (slice.as_nanos() / turn.as_nanos().max(1)).clamp(1, TURNS_MAX) as usize
}

impl Default for Lap {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), spent: Duration::ZERO, turns: 0, slice: SLICE, is_running: false }
    }
}

/// Ends laps in a task. If its runtime ends first, even before the first poll, the rest of the work goes on without turns.
struct Running(Arc<Laps>);

impl Running {
    /// Ends laps as long as work waits.
    async fn run(self) {
        loop {
            let begun = Instant::now();
            tokio::task::yield_now().await; // returns when all others have run and the system has been asked
            let called = self.0.lock().begin(begun.elapsed());
            let Some(called) = called else { return };
            called.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut lap = self.0.lock();
        lap.is_running = false;
        let called = lap.call(usize::MAX);
        drop(lap);
        called.into_iter().for_each(Waker::wake);
    }
}

/// Time after which other tasks run at the latest. In tests they run after each piece.
const PIECE: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 1 });

/// A lap's time for connections that begin or end: an eighth of the last lap within these bounds. The last connection may
/// exceed it. In tests a lap has time for one connection.
const SHARE: u32 = 8;
const SLICE: Duration = Duration::from_nanos(if cfg!(test) { 1 } else { 200_000 });
const SLICE_MAX: Duration = Duration::from_nanos(if cfg!(test) { 1 } else { 2_000_000 });
/// Connections that are woken in one lap at most.
const TURNS_MAX: u128 = 64;

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;

    use super::*;

    /// Ends after this number of `polls`.
    fn work(polls: usize, done: Rc<Cell<usize>>) -> impl Future<Output = ()> {
        let mut left = polls;
        poll_fn(move |context| {
            done.set(done.get() + 1);
            left -= 1;
            if left == 0 {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
    }

    #[tokio::test]
    async fn other_tasks_run_between_turns_and_all_work_completes() {
        let (local, done) = (tokio::task::LocalSet::new(), Rc::new(Cell::new(0)));
        local
            .run_until(async {
                let work = (0..20).map(|_| tokio::task::spawn_local(in_turn(Box::pin(work(3, Rc::clone(&done))))));
                let work: Vec<_> = work.collect();
                let (mut before, mut most) = (0, 0);
                while done.get() < 60 {
                    tokio::task::yield_now().await;
                    most = most.max(done.get() - before);
                    before = done.get();
                }
                assert!(most <= 1, "{most} turns in one lap");
                for work in work {
                    work.await.unwrap();
                }
            })
            .await;
        assert_eq!(done.get(), 60);
    }

    #[test]
    fn as_many_turns_as_fit_into_the_slice() {
        let turns = |turn| turns_in(Duration::from_micros(200), Duration::from_micros(turn));
        assert_eq!([50, 150, 1000].map(turns), [4, 1, 1]);
        assert_eq!(turns(0), TURNS_MAX as usize);
    }

    #[test]
    fn work_goes_on_after_the_end_of_another_runtime() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ended = runtime();
        ended.block_on(async {
            for _ in 0..3 {
                tokio::spawn(in_turn(Box::pin(std::future::pending::<()>())));
            }
            tokio::task::yield_now().await;
        });
        drop(ended);
        let ended = runtime();
        LAPS.with(|laps| laps.lock().spent = Duration::ZERO); // it runs at once
        ended.block_on(in_turn(Box::pin(std::future::ready(()))));
        drop(ended); // before its lap ends
        let done = Rc::new(Cell::new(0));
        runtime().block_on(in_turn(Box::pin(work(3, Rc::clone(&done)))));
        assert_eq!(done.get(), 3);
    }

    #[tokio::test]
    async fn dropped_work_leaves_the_turn_to_others() {
        let done = Rc::new(Cell::new(0));
        let mut first = in_turn(Box::pin(work(9, Rc::clone(&done))));
        let mut second = in_turn(Box::pin(work(9, Rc::clone(&done))));
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut first).poll(&mut context).is_pending());
        assert!(Pin::new(&mut second).poll(&mut context).is_pending());
        assert_eq!(done.get(), 1, "the second one waits");
        drop(first);
        drop(second);
        in_turn(Box::pin(work(1, Rc::clone(&done)))).await;
        assert_eq!(done.get(), 2);
    }
}
