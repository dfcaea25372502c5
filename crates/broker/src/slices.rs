//! Long work in slices, so that other tasks run in between.
//!
//! A lap of a thread is over when each of its tasks that could run has run, and the system has reported which others
//! can. Connections that begin or end share a slice of each lap ([`in_turn`]). A thousand of them at once take longer,
//! but delay other tasks no more than one does.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Lets other tasks run each millisecond of long work.
#[derive(Debug)]
pub(crate) struct Pace {
    rested_at: Instant,
}

impl Pace {
    /// Call this after each piece of the work.
    pub(crate) async fn rest(&mut self) {
        if self.rested_at.elapsed() >= PIECE {
            tokio::task::yield_now().await;
            self.rested_at = Instant::now();
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self { rested_at: Instant::now() }
    }
}

/// Polls `work` when its turn comes among all such work of the thread: first come, first served. `work` must not
/// contain other such work, which would wait for its own turn.
pub(crate) fn in_turn<F: Future + Unpin>(work: F) -> InTurn<F> {
    InTurn { work, turn: None }
}

/// See [`in_turn`].
#[must_use = "futures do nothing unless polled"]
pub(crate) struct InTurn<F> {
    work: F,
    /// Waits for the turn. Boxed, since work rarely waits.
    turn: Option<WaitsForTurn>,
}

type WaitsForTurn = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// Time that such work has spent of a thread's lap.
#[derive(Debug)]
struct Lap {
    /// Has one permit. Only its holder changes the other fields.
    turn: Arc<Semaphore>,
    /// Time spent in this lap, in nanoseconds.
    spent: AtomicU64,
    /// Bound of `spent`, in nanoseconds.
    slice: AtomicU64,
    /// When the lap began, in nanoseconds since `first`.
    begun: AtomicU64,
    first: Instant,
}

thread_local! {
    static LAP: Arc<Lap> = Arc::default();
}

impl<F: Future + Unpin> Future for InTurn<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let turn = match &mut self.turn {
            Some(waits) => ready!(waits.as_mut().poll(context)),
            None => match LAP.with(|lap| Arc::clone(&lap.turn)).try_acquire_owned() {
                Ok(turn) => Some(turn),
                Err(_) => {
                    let turn = LAP.with(|lap| Arc::clone(&lap.turn));
                    let waits = self.turn.insert(Box::pin(async { turn.acquire_owned().await.ok() }));
                    ready!(waits.as_mut().poll(context))
                }
            },
        };
        self.turn = None;
        let begun = Instant::now();
        let polled = Pin::new(&mut self.work).poll(context);
        if let Some(turn) = turn {
            LAP.with(|lap| lap.end_turn(turn, begun.elapsed()));
        }
        polled
    }
}

impl Lap {
    /// Passes the turn on: in this lap if it has time left, else in the next one.
    fn end_turn(self: &Arc<Self>, turn: OwnedSemaphorePermit, took: Duration) {
        let spent = self.spent.load(Ordering::Relaxed).saturating_add(took.as_nanos() as u64);
        self.spent.store(spent, Ordering::Relaxed);
        if spent < self.slice.load(Ordering::Relaxed) {
            return;
        }
        let lap = Arc::clone(self);
        tokio::spawn(async move {
            tokio::task::yield_now().await; // lets the system report events first
            lap.begin();
            drop(turn);
        });
    }

    /// Begins the next lap. If other tasks take long, such work gets more time too: else it would hardly advance.
    fn begin(&self) {
        let now = self.first.elapsed().as_nanos() as u64;
        let last = now.saturating_sub(self.begun.swap(now, Ordering::Relaxed));
        self.slice.store((last / SHARE).clamp(SLICE_NS, SLICE_NS_MAX), Ordering::Relaxed);
        self.spent.store(0, Ordering::Relaxed);
    }
}

impl Default for Lap {
    fn default() -> Self {
        let (turn, first) = (Arc::new(Semaphore::new(1)), Instant::now());
        let [spent, begun] = [AtomicU64::new(0), AtomicU64::new(0)];
        Self { turn, spent, slice: AtomicU64::new(SLICE_NS), begun, first }
    }
}

/// Time after which other tasks run at the latest. In tests they run after each piece.
const PIECE: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 1 });

/// A lap's time for connections that begin or end: an eighth of the last lap within these bounds, in ns.
///
/// The last connection may exceed it. In tests a lap has time for one connection.
const SHARE: u64 = 8;
const SLICE_NS: u64 = if cfg!(test) { 1 } else { 200_000 };
const SLICE_NS_MAX: u64 = if cfg!(test) { 1 } else { 2_000_000 };

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;

    use super::*;

    /// Ends after so many `polls`.
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

    #[tokio::test]
    async fn turns_of_one_lap_share_its_slice() {
        let lap = Arc::new(Lap::default());
        lap.slice.store(1000, Ordering::Relaxed);
        let turn = || Arc::clone(&lap.turn).try_acquire_owned();
        lap.end_turn(turn().unwrap(), Duration::from_nanos(600));
        lap.end_turn(turn().unwrap(), Duration::from_nanos(600));
        assert!(turn().is_err(), "the slice is used up");
        while lap.turn.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(lap.spent.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn dropped_work_leaves_the_turn_to_others() {
        let done = Rc::new(Cell::new(0));
        let mut first = in_turn(Box::pin(work(9, Rc::clone(&done))));
        let mut second = in_turn(Box::pin(work(9, Rc::clone(&done))));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut first).poll(&mut context).is_pending());
        assert!(Pin::new(&mut second).poll(&mut context).is_pending());
        assert_eq!(done.get(), 1, "the second one waits");
        drop(first);
        drop(second);
        in_turn(Box::pin(work(1, Rc::clone(&done)))).await;
        assert_eq!(done.get(), 2);
    }
}
