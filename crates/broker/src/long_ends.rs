//! Ends of sessions that take long, such as those of clients with many subscriptions, or with a Will.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Instant;

use tokio::sync::{Notify, oneshot};

use crate::lifecycle::{self, ConnectionEnd};
use crate::registry::Lease;
use crate::shared::Shared;
use crate::slices::Pace;

/// Sessions whose connection has ended, to be ended by one task, one after the other. However many clients leave at once,
/// other tasks of its thread run each millisecond, and the threads that serve clients are left alone.
///
/// A session's lease goes with its end: a client that comes back waits for it.
#[derive(Debug, Default)]
pub(crate) struct LongEnds {
    queue: Mutex<Queue>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Its task is there to work through it.
    is_open: bool,
    ends: VecDeque<Box<LongEnd>>,
}

#[derive(Debug)]
struct LongEnd {
    lease: Lease,
    end: ConnectionEnd,
    at: Instant,
    /// Dropped when it is over.
    _done: oneshot::Sender<()>,
}

impl LongEnds {
    /// Ends a connection of this session at `at`: returns when it has ended.
    pub(crate) async fn end(&self, shared: &Shared, lease: Lease, end: ConnectionEnd, at: Instant) {
        if !is_long(&lease, &end) {
            return lifecycle::end(shared, lease, end, at, &mut Pace::default()).await;
        }
        let (sender, done) = oneshot::channel();
        match self.push(Box::new(LongEnd { lease, end, at, _done: sender })) {
            Ok(()) => {
                let _ = done.await; // an error: it is over
            }
            Err(refused) => {
                let LongEnd { lease, end, at, .. } = *refused;
                lifecycle::end(shared, lease, end, at, &mut Pace::default()).await;
            }
        }
    }

    /// Comes back where nobody would take it.
    fn push(&self, end: Box<LongEnd>) -> Result<(), Box<LongEnd>> {
        let mut queue = self.queue();
        if !queue.is_open {
            return Err(end);
        }
        queue.ends.push_back(end);
        drop(queue);
        self.added.notify_one();
        Ok(())
    }

    /// Ends sessions, for ever.
    pub(crate) async fn run(shared: Arc<Shared>) {
        let open = Open::new(&shared.long_ends);
        loop {
            let mut pace = Pace::default();
            while let Some(next) = open.take() {
                let LongEnd { lease, end, at, _done } = *next;
                unless_it_panics(lifecycle::end(&shared, lease, end, at, &mut pace)).await;
            }
            shared.long_ends.added.notified().await;
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_long(lease: &Lease, end: &ConnectionEnd) -> bool {
    end.will.is_some() || lease.state.subscriptions.len() > FEW
}

/// As long as this is there, ends are taken; what is left then is dropped.
struct Open<'a>(&'a LongEnds);

impl<'a> Open<'a> {
    fn new(ends: &'a LongEnds) -> Self {
        ends.queue().is_open = true;
        Self(ends)
    }

    fn take(&self) -> Option<Box<LongEnd>> {
        self.0.queue().ends.pop_front()
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let left = std::mem::take(&mut *self.0.queue());
        drop(left); // without the lock: connections wake up
    }
}

/// A panic ends only this work: its message is out already.
async fn unless_it_panics(work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| if cfg!(test) { resume_unwind(panic) } else { Poll::Ready(()) })
    })
    .await;
}

/// Subscriptions that a session may have whose end is not long.
const FEW: usize = 32;
