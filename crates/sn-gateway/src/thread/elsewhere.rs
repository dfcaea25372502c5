//! Clients whose datagrams reach the socket of another thread.
//!
//! The *home* of an address is the thread whose socket receives its datagrams. A client stays on one thread until it
//! ends. If its address changes while it sleeps, the new address may have another home, which hands its datagrams off:
//!
//! ```text
//!   socket ─► home ── Handoff::Datagram ──► thread of the client ─► socket      the answers have the same source
//!              away ◄── Handoff::Release ──  guests                             address, since all sockets share it
//! ```
//!
//! Only the home decides which thread serves an address, so an address never has two peers. It accepts new peers of its
//! addresses itself: a CONNECT that begins a peer comes back to it.

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;
use tenbin_sn_codec::v1_2::Message;

use super::Thread;
use crate::counters::count;
use crate::peers::{Address, Handoff, Home, Origin};

/// Addresses whose home and client are on different threads.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// Addresses of this home that another thread serves. Each belongs to a guest or a handoff under way.
    away: HashMap<Address, Away, FxBuildHasher>,
    /// Addresses of other homes that this thread serves.
    guests: HashMap<Address, Home, FxBuildHasher>,
    /// Guests to release at the end of the lap, if they have no peer then.
    vacated: Vec<Address>,
    /// Datagrams that this thread has handed off.
    handed_off: u64,
}

struct Away {
    thread: usize,
    /// The last datagram that was handed off.
    number: u64,
}

impl Elsewhere {
    /// The thread that serves an address of this home, if it is another one.
    pub(super) fn thread_of(&self, origin: Origin<'_>) -> Option<usize> {
        if self.away.is_empty() {
            return None;
        }
        self.away.get(&origin.to_address()).map(|away| away.thread)
    }

    /// Whether another thread is the home of an address.
    pub(super) fn is_guest(&self, origin: Origin<'_>) -> bool {
        !self.guests.is_empty() && self.guests.contains_key(&origin.to_address())
    }

    /// Notes that this thread may have nothing to do with an address any more.
    pub(super) fn vacate(&mut self, address: &Address) {
        if self.guests.contains_key(address) {
            self.vacated.push(address.clone());
        }
    }
}

impl Thread {
    /// Hands a message of a stranger off to the thread that has its client `[SN-ADDRESS-5]`.
    pub(super) fn hand_off(&mut self, thread: usize, origin: Origin<'_>, message: &Message<'_>, is_admitted: bool) {
        if self.elsewhere.is_guest(origin) {
            return self.hand_back(origin, message);
        }
        let Some(inbox) = self.shared.inboxes.get(thread) else { return };
        let (address, datagram) = (origin.to_address(), encode(message));
        let number = self.elsewhere.handed_off + 1;
        let home = Home { thread: self.number, number };
        // First, so that an answer finds it counted.
        count(&self.counters.handoffs, 1);
        if !inbox.post(Handoff::Datagram { home, address: address.clone(), datagram, is_admitted }) {
            return count(&self.counters.handoffs_dropped, 1);
        }
        self.elsewhere.handed_off = number;
        self.elsewhere.away.insert(address, Away { thread, number });
    }

    /// Lets the home of a guest without a peer handle its message.
    pub(super) fn hand_back(&mut self, origin: Origin<'_>, message: &Message<'_>) {
        let address = origin.to_address();
        if let Some(home) = self.elsewhere.guests.remove(&address) {
            self.release(home, address, Some(encode(message)));
        }
    }

    pub(super) fn handle_handoff(&mut self, handoff: Handoff) {
        match handoff {
            Handoff::Datagram { home, address, datagram, is_admitted } => {
                let last = self.elsewhere.guests.insert(address.clone(), home);
                if let Some(last) = last.filter(|last| last.thread != home.thread) {
                    // The kernel chose another socket, such as while the gateway opened its sockets.
                    self.release(last, address.clone(), None);
                }
                let (origin, size) = (address.origin(), datagram.len());
                if let Ok(message) = Message::decode(&datagram) {
                    match self.peers.find_via(origin) {
                        Some(key) => self.handle_of_peer(key, origin, &message, size),
                        None => self.handle_of_stranger(origin, &message, size, is_admitted),
                    }
                }
                self.elsewhere.vacate(&address);
            }
            Handoff::Relayed { address, datagram } => {
                count(&self.counters.datagrams_received, 1);
                self.receive_datagram(&datagram, address.route());
            }
            Handoff::Release { address, number, datagram } => {
                // Datagrams under way will be answered by another release, or have a peer.
                if self.elsewhere.away.get(&address).is_none_or(|away| away.number != number) {
                    return;
                }
                self.elsewhere.away.remove(&address);
                if let Some(datagram) = datagram
                    && let Ok(message) = Message::decode(&datagram)
                {
                    self.handle_of_stranger(address.origin(), &message, datagram.len(), true);
                }
            }
        }
    }

    /// Releases vacated guests without a peer and without a takeover under way.
    pub(super) fn release_guests(&mut self) {
        while let Some(address) = self.elsewhere.vacated.pop() {
            let origin = address.origin();
            if self.peers.find(origin).is_none()
                && !self.is_taking_over(origin)
                && !self.candidates.contains(origin)
                && let Some(home) = self.elsewhere.guests.remove(&address)
            {
                self.release(home, address, None);
            }
        }
    }

    fn release(&self, home: Home, address: Address, datagram: Option<Box<[u8]>>) {
        if let Some(inbox) = self.shared.inboxes.get(home.thread) {
            let _always = inbox.post(Handoff::Release { address, number: home.number, datagram });
        }
    }
}

fn encode(message: &Message<'_>) -> Box<[u8]> {
    let mut datagram = Vec::new();
    message.encode(&mut datagram);
    datagram.into()
}
