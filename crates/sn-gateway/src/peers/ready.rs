//! Peers whose stream can be read, written, or is open.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::Key;

/// Peers that wait to be served by their thread.
#[derive(Debug, Default)]
pub(crate) struct ReadyList(Mutex<Listed>);

#[derive(Debug, Default)]
struct Listed {
    keys: Vec<Key>,
    thread: Option<Waker>,
}

/// Puts one peer on the list of its thread.
#[derive(Debug)]
pub(crate) struct PeerWaker {
    key: Key,
    is_listed: AtomicBool,
    list: Arc<ReadyList>,
}

impl ReadyList {
    /// Moves all listed peers to `keys`, which is empty. Pending while there are none.
    pub(crate) fn poll_take(&self, keys: &mut Vec<Key>, cx: &mut Context<'_>) -> Poll<()> {
        let mut listed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if listed.keys.is_empty() {
            match &mut listed.thread {
                Some(thread) => thread.clone_from(cx.waker()),
                thread => *thread = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        std::mem::swap(&mut listed.keys, keys);
        Poll::Ready(())
    }
}

impl PeerWaker {
    pub(crate) fn new(key: Key, list: &Arc<ReadyList>) -> Arc<Self> {
        Arc::new(Self { key, is_listed: AtomicBool::new(false), list: Arc::clone(list) })
    }

    /// The peer is served now, and can be listed again.
    pub(crate) fn unlist(&self) {
        self.is_listed.store(false, Ordering::Release);
    }
}

impl Wake for PeerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut listed = self.list.0.lock().unwrap_or_else(PoisonError::into_inner);
        listed.keys.push(self.key);
        let thread = if listed.keys.len() == 1 { listed.thread.clone() } else { None };
        drop(listed);
        if let Some(thread) = thread {
            thread.wake();
        }
    }
}
