//! Work for a thread: its peers whose stream can be read, written, or is open, and handoffs of other threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::{Address, Key};

/// Work that waits for one thread.
#[derive(Debug, Default)]
pub(crate) struct Inbox(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    ready: Vec<Key>,
    handoffs: Vec<Handoff>,
    /// Memory of the datagrams that were handed off.
    handoff_bytes: usize,
    thread: Option<Waker>,
}

/// Message from one thread to another, or from a relay.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Handoff {
    /// A datagram whose client the receiving thread serves.
    Datagram {
        home: Home,
        address: Address,
        datagram: Box<[u8]>,
        /// A CONNECT that is within the rates of CONNECTs.
        is_admitted: bool,
    },
    /// A datagram that a relay has received.
    Relayed { address: Address, datagram: Box<[u8]> },
    /// The sending thread has no client at the address. Answers the datagram with this number and all before it.
    Release {
        address: Address,
        number: u64,
        /// A message that the home is to handle itself.
        datagram: Option<Box<[u8]>>,
    },
}

/// The thread that receives the datagrams of an address, and its number of the last datagram that it handed off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) thread: usize,
    pub(crate) number: u64,
}

/// Puts one peer on the list of its thread.
#[derive(Debug)]
pub(crate) struct PeerWaker {
    key: Key,
    is_listed: AtomicBool,
    inbox: Arc<Inbox>,
}

/// Memory of handed off datagrams in one inbox. Further ones are dropped, as by a full socket.
const HANDOFF_BYTES_MAXIMUM: usize = 1 << 20;
/// Memory of a handoff without its datagram.
const HANDOFF_OVERHEAD: usize = 128;

impl Inbox {
    /// Moves all work to `ready` and `handoffs`, which are empty. Pending while there is none.
    pub(crate) fn poll_take(
        &self,
        ready: &mut Vec<Key>,
        handoffs: &mut Vec<Handoff>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_empty() {
            match &mut waiting.thread {
                Some(thread) => thread.clone_from(cx.waker()),
                thread => *thread = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        std::mem::swap(&mut waiting.ready, ready);
        std::mem::swap(&mut waiting.handoffs, handoffs);
        waiting.handoff_bytes = 0;
        Poll::Ready(())
    }

    /// Adds a handoff. False if it is a datagram and there is no room.
    ///
    /// A release always has room: there is at most one for each datagram that was handed off.
    #[must_use]
    pub(crate) fn post(&self, handoff: Handoff) -> bool {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Handoff::Datagram { datagram, .. } | Handoff::Relayed { datagram, .. } = &handoff {
            let bytes = waiting.handoff_bytes + HANDOFF_OVERHEAD + datagram.len();
            if bytes > HANDOFF_BYTES_MAXIMUM {
                return false;
            }
            waiting.handoff_bytes = bytes;
        }
        let was_empty = waiting.is_empty();
        waiting.handoffs.push(handoff);
        let thread = if was_empty { waiting.thread.clone() } else { None };
        drop(waiting);
        if let Some(thread) = thread {
            thread.wake();
        }
        true
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.handoffs.is_empty()
    }
}

impl PeerWaker {
    pub(crate) fn new(key: Key, inbox: &Arc<Inbox>) -> Arc<Self> {
        Arc::new(Self { key, is_listed: AtomicBool::new(false), inbox: Arc::clone(inbox) })
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
        let mut waiting = self.inbox.0.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = waiting.is_empty();
        waiting.ready.push(self.key);
        let thread = if was_empty { waiting.thread.clone() } else { None };
        drop(waiting);
        if let Some(thread) = thread {
            thread.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Via;

    #[test]
    fn full_inbox_takes_releases_and_no_datagrams() {
        let inbox = Inbox::default();
        let address = Address { socket: ([127, 0, 0, 1], 1).into(), via: Via::default(), node: None };
        let datagram = || Handoff::Datagram {
            home: Home { thread: 0, number: 1 },
            address: address.clone(),
            datagram: [0; 1000].into(),
            is_admitted: false,
        };
        let posted = (0..10_000).take_while(|_| inbox.post(datagram())).count();
        assert_eq!(posted, HANDOFF_BYTES_MAXIMUM / (1000 + HANDOFF_OVERHEAD));
        assert!(inbox.post(Handoff::Release { address: address.clone(), number: 1, datagram: None }));

        let (mut ready, mut handoffs) = (Vec::new(), Vec::new());
        let mut context = Context::from_waker(Waker::noop());
        assert!(inbox.poll_take(&mut ready, &mut handoffs, &mut context).is_ready());
        assert_eq!(handoffs.len(), posted + 1);
        assert!(inbox.post(datagram()), "room again");
    }
}
