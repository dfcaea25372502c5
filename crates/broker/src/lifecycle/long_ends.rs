//! Due work for sessions without a connection: their Wills are published, and they end.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::registry::Client;

/// Sessions with due work, whose owners take turns. However many there are, other tasks of the thread run each
/// millisecond, and the threads that serve clients have none of this work.
///
/// The lease of a queued session is free: a client that comes back goes first, and does the due work itself. Wills have
/// a separate lane, since the end of a session with many subscriptions takes long.
#[derive(Debug, Default)]
pub(crate) struct LongEnds {
    /// Sessions whose Will may be due, or whose end.
    pub(crate) wills: Lane,
    /// Sessions whose end is due.
    pub(crate) ends: Lane,
}

/// A session with due work.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) client: Arc<Client>,
    /// Dropped when the work is done.
    pub(crate) done: Option<oneshot::Sender<()>>,
}

/// Due sessions, whose owners take turns.
#[derive(Debug, Default)]
pub(crate) struct Lane {
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
}

impl Lane {
    /// Adds a session, unless the lane is closed.
    pub(crate) fn push(&self, due: Due) {
        let owner = due.client.outbox.account().map_or(0, |account| Arc::as_ptr(&account).addr());
        let mut queue = self.queue();
        if queue.is_closed {
            return;
        }
        queue.turns.push(owner, due);
        drop(queue);
        self.added.notify_one();
    }

    /// Takes the next session.
    pub(crate) fn take(&self) -> Option<Due> {
        self.queue().turns.take()
    }

    /// Waits until a session is added.
    pub(crate) async fn added(&self) {
        self.added.notified().await;
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

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let closed = || Queue { is_closed: true, turns: Turns::default() };
        let left = [&self.0.wills, &self.0.ends].map(|lane| std::mem::replace(&mut *lane.queue(), closed()));
        drop(left); // without the locks: this wakes connections
    }
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
