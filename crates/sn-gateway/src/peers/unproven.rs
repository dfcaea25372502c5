//! Peers at unproven addresses, in the order in which they make room `[SN-BOUND-5]`.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::{Key, Peer, Peers};

/// Evidence that a client receives at its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// Only CONNECT came.
    None,
    /// Further messages came, which can be forged.
    Messages,
    /// A proof.
    Proof,
}

/// Peers without a proof. Each queue has some whose evidence has changed, or that are gone.
#[derive(Default)]
pub(super) struct Unproven {
    count: usize,
    /// Peers without evidence, and when they were heard last, in about this order.
    silent: VecDeque<(Key, Instant)>,
    /// Peers with messages that are not asked for their proof yet.
    unasked: VecDeque<Key>,
    /// Asked peers, in the order of their questions.
    asked: VecDeque<Key>,
}

/// Peers that a search looks at: sleeping ones are passed over.
const LOOKS: usize = 64;

impl Peers {
    /// Peers without a proof.
    pub(crate) fn unproven(&self) -> usize {
        self.unproven.count
    }

    /// The unproven peer that makes room, of one IP address or of all: the one without further messages that is silent
    /// for the longest time, else one that was asked for its proof before `answer_time`.
    pub(crate) fn next_evicted(&mut self, of: Option<IpAddr>, answer_time: Duration, now: Instant) -> Option<Key> {
        self.silent(of).or_else(|| self.unanswered(of, answer_time, now))
    }

    fn silent(&mut self, of: Option<IpAddr>) -> Option<Key> {
        for _ in 0..self.unproven.silent.len() {
            let (key, since) = self.unproven.silent.pop_front()?;
            self.note_evidence(key);
            let Some(peer) = self.get(key).filter(|peer| peer.evidence == Evidence::None) else { continue };
            let last = peer.machine.last_received();
            if last > since {
                self.unproven.silent.push_back((key, last));
                continue;
            }
            if !is_of(peer, of) {
                // In its place again, after all others.
                self.unproven.silent.push_back((key, since));
                continue;
            }
            let may_be_evicted = peer.machine.may_be_evicted();
            self.unproven.silent.push_front((key, since));
            return may_be_evicted.then_some(key);
        }
        None
    }

    fn unanswered(&mut self, of: Option<IpAddr>, answer_time: Duration, now: Instant) -> Option<Key> {
        for _ in 0..looks(&self.unproven.asked, of) {
            let key = self.unproven.asked.pop_front()?;
            self.note_evidence(key);
            let Some(peer) = self.get(key).filter(|peer| peer.evidence == Evidence::Messages) else { continue };
            let Some(asked_at) = peer.machine.asked_at() else {
                // Its address has changed since.
                self.unproven.unasked.push_back(key);
                continue;
            };
            // A sleeper hears no question, but has had its answer time if it was heard that much later.
            let until = if peer.machine.is_asleep() { peer.machine.last_received() } else { now };
            let is_overdue = asked_at + answer_time <= until && peer.machine.may_be_evicted();
            let is_of = is_of(peer, of);
            if is_overdue && is_of {
                self.unproven.asked.push_front(key);
                return Some(key);
            }
            self.unproven.asked.push_back(key);
        }
        None
    }

    /// An unproven peer with messages that can be asked for its proof, which the caller does.
    pub(crate) fn next_asked(&mut self, of: Option<IpAddr>) -> Option<Key> {
        for _ in 0..looks(&self.unproven.unasked, of) {
            let key = self.unproven.unasked.pop_front()?;
            self.note_evidence(key);
            let Some(peer) = self.get(key).filter(|peer| peer.evidence == Evidence::Messages) else { continue };
            if !peer.machine.is_asked() && (!is_of(peer, of) || !peer.machine.may_be_asked()) {
                self.unproven.unasked.push_back(key);
                continue;
            }
            let is_new = !peer.machine.is_asked();
            self.unproven.asked.push_back(key);
            if is_new {
                return Some(key);
            }
        }
        None
    }

    /// Notes the evidence that a peer has given by now.
    pub(crate) fn note_evidence(&mut self, key: Key) {
        let Some(peer) = self.get_mut(key) else { return };
        let last = peer.evidence;
        if last == Evidence::Proof || peer.current_evidence() == last {
            return;
        }
        peer.evidence = peer.current_evidence();
        match peer.evidence {
            Evidence::Proof => self.unproven.count -= 1,
            Evidence::Messages => self.unproven.unasked.push_back(key),
            Evidence::None => {}
        }
    }

    pub(super) fn add_unproven(&mut self, key: Key) {
        let Some(peer) = self.get(key) else { return };
        let (evidence, last) = (peer.evidence, peer.machine.last_received());
        match evidence {
            Evidence::None => self.unproven.silent.push_back((key, last)),
            Evidence::Messages => self.unproven.unasked.push_back(key),
            Evidence::Proof => return,
        }
        self.unproven.count += 1;
        let Unproven { count, silent, unasked, asked } = &self.unproven;
        if silent.len() + unasked.len() + asked.len() > 2 * count + 1000 {
            let mut unproven = std::mem::take(&mut self.unproven);
            let has = |key, evidence| self.get(key).is_some_and(|peer| peer.evidence == evidence);
            unproven.silent.retain(|&(key, _)| has(key, Evidence::None));
            unproven.unasked.retain(|&key| has(key, Evidence::Messages));
            unproven.asked.retain(|&key| has(key, Evidence::Messages));
            self.unproven = unproven;
        }
    }

    pub(super) fn remove_unproven(&mut self, peer: &Peer) {
        self.unproven.count -= usize::from(peer.evidence != Evidence::Proof);
    }
}

fn is_of(peer: &Peer, of: Option<IpAddr>) -> bool {
    of.is_none_or(|ip| peer.address.ip() == ip)
}

/// Looks at a queue: peers of one address may stand anywhere.
fn looks(queue: &VecDeque<Key>, of: Option<IpAddr>) -> usize {
    if of.is_some() { queue.len() } else { queue.len().min(LOOKS) }
}
