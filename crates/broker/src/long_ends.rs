//! Due work for sessions without a connection: their Wills are published, and they end.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Instant;

use tokio::sync::{Notify, oneshot};

use crate::broker_state::BrokerState;
use crate::lifecycle;
use crate::registry::Client;
use crate::slices::Pace;

/// Sessions with due work, whose owners take turns. However many there are, other tasks of the thread run each
/// millisecond, and the threads that serve clients have none of this work.
///
/// The lease of a queued session is free: a client that comes back goes first, and does the due work itself. Wills have
/// a lane of their own, since the end of a session with many subscriptions takes long.
#[derive(Debug, Default)]
pub(crate) struct LongEnds {
    wills: Lane,
    ends: Lane,
}

/// A session with due work.
#[derive(Debug)]
struct Due {
    client: Arc<Client>,
    /// Dropped when the work is done.
    done: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Default)]
struct Lane {
    queue: Mutex<Queue>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Its task has ended.
    is_closed: bool,
    turns: Turns<Due>,
}

/// Entries by owner. Owners take turns, with one entry each.
#[derive(Debug)]
struct Turns<T> {
    by_owner: HashMap<usize, VecDeque<T>>,
    /// Owners with entries, the next one first.
    owners: VecDeque<usize>,
}

impl LongEnds {
    /// Queues a session for which work may be due, and whose lease is free.
    pub(crate) fn look_at(&self, client: Arc<Client>) {
        self.wills.push(Due { client, done: None });
    }

    /// As [`LongEnds::look_at`]. The receiver ends once the session has had its turn, even if its client came back
    /// before.
    pub(crate) fn end(&self, client: Arc<Client>) -> oneshot::Receiver<()> {
        let (sender, done) = oneshot::channel();
        self.wills.push(Due { client, done: Some(sender) });
        done
    }

    /// Accepts sessions until the guard is dropped, which drops all queued sessions.
    pub(crate) fn open(&self) -> Open<'_> {
        for lane in [&self.wills, &self.ends] {
            lane.queue().is_closed = false;
        }
        Open(self)
    }

    /// Does due work, for as long as the broker runs.
    pub(crate) async fn run(shared: Arc<BrokerState>) {
        let open = shared.long_ends.open();
        tokio::join!(open.publish_wills(&shared), open.end_sessions(&shared));
    }
}

impl Lane {
    fn push(&self, due: Due) {
        let owner = due.client.outbox.account().map_or(0, |account| Arc::as_ptr(&account).addr());
        let mut queue = self.queue();
        if queue.is_closed {
            return;
        }
        queue.turns.push(owner, due);
        drop(queue);
        self.added.notify_one();
    }

    fn take(&self) -> Option<Due> {
        self.queue().turns.take()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Turns<T> {
    fn push(&mut self, owner: usize, entry: T) {
        let entries = self.by_owner.entry(owner).or_default();
        if entries.is_empty() {
            self.owners.push_back(owner);
        }
        entries.push_back(entry);
    }

    fn take(&mut self) -> Option<T> {
        let owner = self.owners.pop_front()?;
        let entries = self.by_owner.get_mut(&owner)?;
        let entry = entries.pop_front();
        match entries.is_empty() {
            true => drop(self.by_owner.remove(&owner)),
            false => self.owners.push_back(owner),
        }
        entry
    }
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { by_owner: HashMap::new(), owners: VecDeque::new() }
    }
}

/// See [`LongEnds::open`].
pub(crate) struct Open<'a>(&'a LongEnds);

impl Open<'_> {
    async fn publish_wills(&self, shared: &BrokerState) {
        let LongEnds { wills, ends } = self.0;
        loop {
            let mut pace = Pace::default();
            while let Some(due) = wills.take() {
                // The holder of a lease checks for due work when it gives the lease back.
                if let Some(lease) = due.client.try_lease() {
                    let mut is_over = false;
                    unless_it_panics(async { is_over = lifecycle::look_at(shared, lease, Instant::now()) }).await;
                    if is_over {
                        ends.push(due);
                    }
                }
                pace.rest().await;
            }
            wills.added.notified().await;
        }
    }

    async fn end_sessions(&self, shared: &BrokerState) {
        let ends = &self.0.ends;
        loop {
            let mut pace = Pace::default();
            while let Some(Due { client, done }) = ends.take() {
                if let Some(lease) = client.try_lease() {
                    unless_it_panics(lifecycle::expire(shared, lease, Instant::now(), &mut pace)).await;
                }
                drop(done);
                pace.rest().await;
            }
            ends.added.notified().await;
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let closed = || Queue { is_closed: true, turns: Turns::default() };
        let left = [&self.0.wills, &self.0.ends].map(|lane| std::mem::replace(&mut *lane.queue(), closed()));
        drop(left); // without the locks: this wakes connections
    }
}

/// Runs `work`. A panic ends only this work, and is logged by the panic hook.
async fn unless_it_panics(work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| if cfg!(test) { resume_unwind(panic) } else { Poll::Ready(()) })
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_take_turns() {
        let mut turns = Turns::default();
        (0..3).for_each(|entry| turns.push(1, (1, entry)));
        turns.push(2, (2, 0));
        assert_eq!(turns.take(), Some((1, 0)));
        turns.push(3, (3, 0));
        let rest = std::iter::from_fn(|| turns.take()).collect::<Vec<_>>();
        assert_eq!(rest, [(2, 0), (1, 1), (3, 0), (1, 2)]);
        assert!(turns.by_owner.is_empty() && turns.owners.is_empty());
    }
}
