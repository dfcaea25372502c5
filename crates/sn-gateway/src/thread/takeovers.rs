//! Clients that appear at another address.

use std::time::{Duration, Instant};

use tenbin_sn::Io;
use tenbin_sn_codec::v1_2::{Connect, Message};

use super::Thread;
use crate::counters::count;
use crate::peers::{Address, Key, Origin};

/// A CONNECT with the client id of a peer elsewhere, which is asked whether it is there.
pub(super) struct Takeover {
    old: Key,
    deadline: Instant,
    is_answered: bool,
    address: Address,
    /// The CONNECT.
    datagram: Vec<u8>,
}

/// Time for the answer of the peer.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Takeovers at a time; further CONNECTs are answered "congestion".
const TAKEOVERS_MAXIMUM: usize = 1024;

impl Thread {
    /// The sleeping peer with this client id, if it may come back from `origin`.
    pub(super) fn sleeper_that_may_move(&mut self, client_id: &str, origin: Origin<'_>) -> Option<Key> {
        let key = self.peers.find_client(client_id.as_bytes())?;
        let rebind = self.shared.config.listener.rebind;
        let peer = self.peers.get_mut(key)?;
        (peer.machine.is_asleep() && rebind.allows(peer.address.socket.ip(), origin.socket.ip())).then_some(key)
    }

    /// Moves a peer to the address of its message.
    pub(super) fn move_peer(&mut self, key: Key, origin: Origin<'_>, message: &Message<'_>, size: usize) {
        count(&self.counters.rebound, 1);
        self.peers.rebind(key, origin);
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.machine.rebind();
        self.handle_of_peer(key, origin, message, size);
    }

    /// Asks the peer that has the client id whether it is there; its answer decides.
    pub(super) fn take_over(&mut self, old: Key, origin: Origin<'_>, connect: &Connect<'_>, size: usize) {
        if self.takeovers.iter().any(|takeover| takeover.old == old) {
            return; // Repeated, or the second address that wants the session.
        }
        let Some(peer) = self.peers.get_mut(old) else { return };
        if !peer.machine.is_connected() {
            // It has no session yet.
            self.remove(old);
            self.accept(origin, connect, size);
            return;
        }
        if self.takeovers.len() >= TAKEOVERS_MAXIMUM {
            return self.refuse(origin);
        }
        let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
        peer.machine.probe(&mut io);
        self.after(old, tenbin_sn::Action::Continue);
        let mut datagram = Vec::new();
        Message::Connect(*connect).encode(&mut datagram);
        let deadline = self.now + ANSWER_TIME;
        self.takeovers.push(Takeover { old, deadline, is_answered: false, address: origin.to_address(), datagram });
        self.next_alarm = Some(self.next_alarm.map_or(deadline, |next| next.min(deadline)));
    }

    /// Notes a message of a peer: it is there.
    #[inline]
    pub(super) fn note_answer(&mut self, key: Key) {
        for takeover in self.takeovers.iter_mut().filter(|takeover| takeover.old == key) {
            takeover.is_answered = true;
        }
    }

    /// Ends the takeovers that are decided.
    pub(super) fn decide_takeovers(&mut self) {
        let mut index = 0;
        while let Some(takeover) = self.takeovers.get(index) {
            let (old, deadline) = (takeover.old, takeover.deadline);
            let is_there = self.peers.get_mut(old).is_some();
            if is_there && !takeover.is_answered && self.now < deadline {
                index += 1;
                // The wheel knows nothing of it.
                self.next_alarm = Some(self.next_alarm.map_or(deadline, |next| next.min(deadline)));
                continue;
            }
            let Takeover { address, datagram, is_answered, .. } = self.takeovers.swap_remove(index);
            let origin = address.origin();
            if is_there && is_answered {
                self.refuse(origin);
                continue;
            }
            if let Some(peer) = self.peers.get_mut(old) {
                count(&self.counters.taken_over, 1);
                let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
                let action = peer.machine.close(&mut io);
                self.after(old, action);
            }
            if let Ok(Message::Connect(connect)) = Message::decode(&datagram)
                && self.peers.find(origin).is_none()
            {
                self.accept(origin, &connect, datagram.len());
            }
        }
    }
}
