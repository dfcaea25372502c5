//! One wake-up for all tasks of a thread that wait for messages to be durable.
//!
//! A wake-up from another thread is a system call, and one write of the log confirms the messages of many publishers.
//! So the log wakes one future of each thread, which wakes the tasks of its thread without a system call.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, RawWakerVTable, Waker};

use rustc_hash::FxHashMap;
use tenbin_store::spool::{Position, Spool};

thread_local! {
    /// `Some` while [`serve`] runs on this thread.
    static WAKES: RefCell<Option<ThreadWakes>> = const { RefCell::new(None) };
}

/// Tasks of this thread that wait for the log.
struct ThreadWakes {
    /// Wakes [`serve`].
    waker: Waker,
    /// The log that the tasks wait for.
    spool: Weak<Spool>,
    /// Each task once, with the first position that it waits for.
    waiting: FxHashMap<Task, (Position, Waker)>,
    /// The position at which the log wakes [`serve`].
    asked: Option<Position>,
}

/// Identity of a task, the same for all of its wakers: see [`Waker::will_wake`].
type Task = (usize, usize);

/// Runs `main` on this thread, and wakes the thread's tasks at the same time. It has to be the future of a `block_on`: only
/// there are wake-ups within the thread free.
pub(crate) async fn serve<T>(main: impl Future<Output = T>) -> T {
    let mut main = pin!(main);
    let served = poll_fn(|context| {
        wake_tasks(context);
        main.as_mut().poll(context)
    });
    let served = served.await;
    WAKES.take();
    served
}

/// Wakes a task of this thread as [`Spool::wake_at`] does.
pub(crate) fn wake_at(spool: &Arc<Spool>, position: Position, waker: &Waker) {
    let asker = WAKES.with_borrow_mut(|wakes| match wakes {
        Some(wakes) => wakes.add(spool, position, waker),
        None => Some(waker.clone()),
    });
    if let Some(asker) = asker {
        spool.wake_at(position, &asker);
    }
}

impl ThreadWakes {
    fn new(waker: &Waker) -> Self {
        Self { waker: waker.clone(), spool: Weak::new(), waiting: FxHashMap::default(), asked: None }
    }

    /// Adds a task. Returns the waker to register with the spool, if one is needed.
    fn add(&mut self, spool: &Arc<Spool>, position: Position, waker: &Waker) -> Option<Waker> {
        if self.waiting.is_empty() {
            self.spool = Arc::downgrade(spool);
        } else if !std::ptr::eq(self.spool.as_ptr(), Arc::as_ptr(spool)) {
            return Some(waker.clone());
        }
        let task = (waker.data().addr(), (waker.vtable() as *const RawWakerVTable).addr());
        let (first, _) = self.waiting.entry(task).or_insert_with(|| (position, waker.clone()));
        *first = position.min(*first);
        let is_first = self.asked.is_none_or(|asked| position < asked);
        is_first.then(|| {
            self.asked = Some(position);
            self.waker.clone()
        })
    }

    /// Takes the tasks that can go on. If none can, the log has failed, and all tasks have to check.
    fn take_ready(&mut self, durable: Option<Position>) -> Vec<Waker> {
        let is_ready = |position: Position| durable.is_none_or(|durable| position <= durable);
        let has_failed = !self.waiting.values().any(|&(position, _)| is_ready(position));
        let ready = self.waiting.extract_if(|_, (position, _)| has_failed || is_ready(*position));
        let ready = ready.map(|(_, (_, waker))| waker).collect();
        self.asked = self.waiting.values().map(|&(position, _)| position).min();
        ready
    }
}

fn wake_tasks(context: &Context<'_>) {
    let (ready, next, spool) = WAKES.with_borrow_mut(|wakes| {
        let wakes = wakes.get_or_insert_with(|| ThreadWakes::new(context.waker()));
        wakes.waker.clone_from(context.waker());
        let spool = wakes.spool.upgrade();
        let ready = wakes.take_ready(spool.as_ref().map(|spool| spool.durable()));
        (ready, wakes.asked, spool)
    });
    if let (Some(next), Some(spool)) = (next, spool) {
        spool.wake_at(next, context.waker());
    }
    ready.into_iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Poll, Wake};
    use std::time::{Duration, Instant};

    use tenbin_store::spool::{Batch, Options, Origin, QueueId};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Count {
        fn get(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    /// A thread that serves, polled by hand, and a spool.
    struct Stage {
        thread: Arc<Count>,
        serving: Pin<Box<dyn Future<Output = ()>>>,
        spool: Arc<Spool>,
        _directory: tempfile::TempDir,
    }

    impl Stage {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let (spool, _) = Spool::open(directory.path(), Options::default()).unwrap();
            let serving = Box::pin(serve(std::future::pending()));
            let mut stage = Self { thread: Arc::default(), serving, spool: Arc::new(spool), _directory: directory };
            stage.poll();
            stage
        }

        fn poll(&mut self) {
            let waker = Waker::from(Arc::clone(&self.thread));
            assert_eq!(self.serving.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
        }

        /// Lets the spool wake the thread, and the thread its tasks, until this task is woken.
        fn poll_until_woken(&mut self, task: &Count) {
            let patience = Instant::now() + Duration::from_secs(60);
            let mut seen = 0;
            while task.get() == 0 {
                assert!(Instant::now() < patience, "the task is never woken");
                if self.thread.get() > seen {
                    seen = self.thread.get();
                    self.poll();
                }
                std::thread::yield_now();
            }
        }
    }

    fn append(batch: &mut Batch<'_>, sequence: u16) -> Position {
        batch.hold(Origin { queue: QueueId(1), identifier: sequence });
        batch.end()
    }

    fn waker(task: &Arc<Count>) -> Waker {
        Waker::from(Arc::clone(task))
    }

    #[test]
    fn one_write_wakes_the_thread_once_and_each_of_its_tasks() {
        let mut stage = Stage::new();
        let (spool, tasks) = (Arc::clone(&stage.spool), [0; 3].map(|_| Arc::<Count>::default()));
        // Nothing is written while the batch exists.
        let mut batch = spool.begin();
        for (task, sequence) in tasks.iter().zip(1..) {
            wake_at(&spool, append(&mut batch, sequence), &waker(task));
            wake_at(&spool, batch.end(), &waker(task));
        }
        drop(batch);
        stage.poll_until_woken(&tasks[2]);
        assert_eq!((stage.thread.get(), tasks.map(|task| task.get())), (1, [1; 3]));
    }

    #[test]
    fn a_task_sleeps_until_its_own_message_is_safe() {
        let mut stage = Stage::new();
        let (spool, tasks) = (Arc::clone(&stage.spool), [0; 2].map(|_| Arc::<Count>::default()));
        let first = append(&mut spool.begin(), 1);
        spool.wait(first).unwrap();
        let mut batch = spool.begin();
        let second = append(&mut batch, 2);
        wake_at(&spool, second, &waker(&tasks[1]));
        wake_at(&spool, first, &waker(&tasks[0]));
        stage.poll_until_woken(&tasks[0]);
        assert_eq!(tasks[1].get(), 0);
        drop(batch);
        stage.poll_until_woken(&tasks[1]);
        assert_eq!(tasks.map(|task| task.get()), [1, 1]);
    }

    #[test]
    fn tasks_of_a_spool_that_is_gone_are_woken() {
        let mut stage = Stage::new();
        let (mut batch, task) = (stage.spool.begin(), Arc::<Count>::default());
        wake_at(&stage.spool, append(&mut batch, 1), &waker(&task));
        drop(batch);
        let Stage { spool, .. } = &mut stage;
        *spool = Arc::new(Spool::open(tempfile::tempdir().unwrap().path(), Options::default()).unwrap().0);
        stage.poll();
        assert_eq!(task.get(), 1);
    }
}
