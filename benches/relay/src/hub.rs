//! The receivers and their queues.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use crate::frame::Publish;

/// State that all connections share.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    receivers: Mutex<Arc<Receivers>>,
    /// Incremented with each change of the receivers; connections cache them by version.
    version: AtomicU64,
    /// Number of messages given to the group.
    turn: AtomicUsize,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Receivers {
    /// Receivers of every message.
    each: Vec<Arc<Outbox>>,
    /// Members of the share group, in rotation.
    group: Vec<Arc<Outbox>>,
}

/// Queue of one receiver.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    waker: Option<Waker>,
    /// Packet Identifier of the last message above QoS 0.
    id: u16,
}

impl Hub {
    pub(crate) fn subscribe(&self, outbox: &Arc<Outbox>, is_shared: bool) {
        self.change(|receivers| {
            let list = if is_shared { &mut receivers.group } else { &mut receivers.each };
            if !list.iter().any(|other| Arc::ptr_eq(other, outbox)) {
                list.push(Arc::clone(outbox));
            }
        });
    }

    pub(crate) fn leave(&self, outbox: &Arc<Outbox>) {
        self.change(|receivers| {
            for list in [&mut receivers.each, &mut receivers.group] {
                list.retain(|other| !Arc::ptr_eq(other, outbox));
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Receivers)) {
        let mut receivers = lock(&self.receivers);
        change(Arc::make_mut(&mut receivers));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Updates `known`, a version and its receivers, if it is out of date.
    pub(crate) fn refresh(&self, known: &mut (u64, Arc<Receivers>)) {
        let version = self.version.load(Ordering::Acquire);
        if version != known.0 {
            *known = (version, Arc::clone(&lock(&self.receivers)));
        }
    }

    /// Copies `messages`, which lie in `bytes`, to their receivers. `is_one_run`: the messages are contiguous.
    pub(crate) fn deliver(&self, receivers: &Receivers, bytes: &[u8], messages: &[Publish], is_one_run: bool) {
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else { return };
        for outbox in &receivers.each {
            if is_one_run {
                outbox.append(|waiting| waiting.bytes.extend_from_slice(&bytes[first.start..last.end]));
            } else {
                outbox.append(|waiting| messages.iter().for_each(|message| waiting.push(bytes, message)));
            }
        }
        let members = receivers.group.len();
        if members == 0 {
            return;
        }
        let turn = self.turn.fetch_add(messages.len(), Ordering::Relaxed);
        for place in 0..members.min(messages.len()) {
            let outbox = &receivers.group[turn.wrapping_add(place) % members];
            let theirs = messages.iter().skip(place).step_by(members);
            outbox.append(|waiting| theirs.for_each(|message| waiting.push(bytes, message)));
        }
    }
}

impl Outbox {
    /// Appends bytes and wakes the receiver once.
    fn append(&self, add: impl FnOnce(&mut Waiting)) {
        let mut waiting = lock(&self.waiting);
        add(&mut waiting);
        let waker = waiting.waker.take();
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Swaps the queued bytes into the empty `into`; returns whether there were any. If not, the receiver's task is
    /// woken when bytes come.
    pub(crate) fn take(&self, cx: &Context<'_>, into: &mut Vec<u8>) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.bytes.is_empty() {
            waiting.waker = Some(cx.waker().clone());
            return false;
        }
        std::mem::swap(&mut waiting.bytes, into);
        true
    }
}

impl Waiting {
    #[inline]
    fn push(&mut self, bytes: &[u8], message: &Publish) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&bytes[message.start..message.end]);
        if let Some(id_at) = message.id_at {
            self.id = self.id.checked_add(1).unwrap_or(1);
            let id_at = at + id_at - message.start;
            self.bytes[id_at..id_at + 2].copy_from_slice(&self.id.to_be_bytes());
        }
    }
}

/// Locks a mutex. Poisoning is ignored: no code under these locks leaves a half-made change when it panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(outbox: &Outbox) -> Vec<u8> {
        let mut bytes = Vec::new();
        outbox.take(&Context::from_waker(Waker::noop()), &mut bytes);
        bytes
    }

    #[test]
    fn a_group_takes_turns_and_everybody_else_gets_all() {
        let (hub, mut known) = (Hub::default(), Default::default());
        let outboxes: [Arc<Outbox>; 4] = Default::default();
        outboxes[..3].iter().for_each(|outbox| hub.subscribe(outbox, true));
        hub.subscribe(&outboxes[3], false);
        hub.refresh(&mut known);
        let messages: Vec<_> = (0..5).map(|start| Publish { start, end: start + 1, id_at: None }).collect();
        hub.deliver(&known.1, b"abcde", &messages, true);
        hub.deliver(&known.1, b"xxf", &[Publish { start: 2, end: 3, id_at: None }], true);
        assert_eq!(outboxes.each_ref().map(|outbox| taken(outbox)), [&b"ad"[..], b"be", b"cf", b"abcdef"]);
        hub.leave(&outboxes[1]);
        hub.refresh(&mut known);
        hub.deliver(&known.1, b"gh", &messages[..2], true);
        assert_eq!(outboxes.each_ref().map(|outbox| taken(outbox).len()), [1, 0, 1, 2]);
    }

    #[test]
    fn each_receiver_has_packet_identifiers_of_its_own() {
        let outbox = Outbox::default();
        let message = Publish { start: 1, end: 5, id_at: Some(3) };
        outbox.append(|waiting| {
            waiting.id = u16::MAX - 1;
            (0..2).for_each(|_| waiting.push(b".ab\0\x09", &message));
        });
        assert_eq!(taken(&outbox), b"ab\xFF\xFFab\0\x01");
    }
}
