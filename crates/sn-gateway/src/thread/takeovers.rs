//! Clients that appear at another address.

use std::time::{Duration, Instant};

use tenbin_sn::Io;
use tenbin_sn_codec::v1_2::{Auth, Connect, Message};

use super::Thread;
use crate::counters::count;
use crate::peers::{Address, Key, Origin};

/// A CONNECT with the client id of a peer elsewhere, which is asked whether it is there.
pub(super) struct Takeover {
    old: Key,
    deadline: Instant,
    /// When the question is repeated.
    repeat_at: Instant,
    is_answered: bool,
    address: Address,
    /// Another thread was the home of the address.
    is_guest: bool,
    /// The CONNECT.
    datagram: Vec<u8>,
    /// Credentials of the client, where the gateway asks for them.
    credentials: Credentials,
}

/// Credentials of a client that wants the session of a peer.
enum Credentials {
    NotAsked,
    Awaited,
    /// AUTH, with the credentials of the peer.
    Equal(Vec<u8>),
}

/// Time for the answer of the peer.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Time between two of its questions: a datagram may be lost.
const QUESTION_PAUSE: Duration = Duration::from_millis(700);
/// Takeovers at a time; further CONNECTs are answered "congestion".
const TAKEOVERS_MAXIMUM: usize = 1024;

impl Thread {
    /// The sleeping peer with this client id, if it may come back from `origin`.
    pub(super) fn sleeper_that_may_move(&mut self, client_id: &str, origin: Origin<'_>) -> Option<Key> {
        let key = self.peers.find_client(client_id.as_bytes())?;
        let rebind = self.shared.config.listener.rebind;
        let identity = self.socket.identity(origin.socket);
        let peer = self.peers.get_mut(key)?;
        let may_move = match (identity, &peer.identity) {
            // The session of a client belongs to its credentials.
            (None, None) if self.shared.config.listener.credentials => false, // [SN-AUTH-2]
            (None, None) => rebind.allows(peer.address.ip(), origin.ip()),
            (new, old) => new == old.as_deref(), // [SN-DTLS-3]
        };
        (peer.machine.is_asleep() && may_move).then_some(key)
    }

    /// Moves a peer to the address of its message.
    pub(super) fn move_peer(
        &mut self,
        key: Key,
        origin: Origin<'_>,
        message: &Message<'_>,
        size: usize,
        is_proven: bool,
    ) {
        count(&self.counters.rebound, 1);
        if let Some(last) = self.peers.rebind(key, origin) {
            self.elsewhere.vacate(&last);
        }
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.machine.rebind();
        if is_proven || self.socket.is_secured() {
            peer.machine.trust_address();
        }
        self.handle_of_peer(key, origin, message, size);
    }

    /// Asks the peer that has the client id whether it is there; its answer decides. If credentials are required, they must
    /// equal the peer's first.
    pub(super) fn take_over(&mut self, old: Key, origin: Origin<'_>, connect: &Connect<'_>, size: usize) {
        let identity = self.socket.identity(origin.socket);
        let Some(peer) = self.peers.get_mut(old) else { return };
        let is_known = identity.is_some() || peer.identity.is_some();
        if is_known && identity != peer.identity.as_deref() {
            return self.refuse(origin); // [SN-DTLS-3]
        }
        if is_known {
            self.end_for_successor(old);
            self.accept(origin, connect, size);
            return;
        }
        let mut datagram = Vec::new();
        Message::Connect(*connect).encode(&mut datagram);
        if let Some(takeover) = self.takeovers.iter_mut().find(|takeover| takeover.old == old) {
            let is_elsewhere = takeover.address.origin() != origin;
            if is_elsewhere && matches!(takeover.credentials, Credentials::Equal(_)) {
                return self.refuse(origin); // [SN-AUTH-2]
            }
            // Repeated, or from a new socket of the client, which no longer listens at the other.
            let last = std::mem::replace(&mut takeover.address, origin.to_address());
            (takeover.datagram, takeover.is_guest) = (datagram, self.elsewhere.is_guest(origin));
            self.elsewhere.vacate(&last);
            return;
        }
        if !peer.machine.is_connected() {
            if self.needs_proof() {
                return self.begin_candidate(origin, &Message::Connect(*connect), size);
            }
            // It has no session yet.
            self.remove(old);
            self.accept(origin, connect, size);
            return;
        }
        if self.takeovers.len() >= TAKEOVERS_MAXIMUM {
            return self.refuse(origin);
        }
        let listener = &self.shared.config.listener;
        let retry_time = listener.retry_seconds;
        let credentials = match listener.credentials {
            true => Credentials::Awaited,
            false => Credentials::NotAsked,
        };
        if matches!(credentials, Credentials::NotAsked) {
            self.ask(old);
        }
        // A lost AUTH comes again with the client's next CONNECT.
        let time = if matches!(credentials, Credentials::Awaited) { retry_time } else { ANSWER_TIME };
        let (deadline, repeat_at) = (self.now + time, self.now + QUESTION_PAUSE);
        let (address, is_guest) = (origin.to_address(), self.elsewhere.is_guest(origin));
        let is_answered = false;
        self.takeovers.push(Takeover {
            old,
            deadline,
            repeat_at,
            is_answered,
            address,
            is_guest,
            datagram,
            credentials,
        });
        self.ring_by(repeat_at);
    }

    /// AUTH of a client that wants the session of a peer: with the peer's credentials, a sleeping peer moves, and another
    /// one is asked whether it is there.
    pub(super) fn authorize_takeover(&mut self, origin: Origin<'_>, auth: &Auth<'_>) {
        // The newest, if the client asks for several.
        let index = self.takeovers.iter().rposition(|takeover| takeover.address.origin() == origin);
        let Some(takeover) = index.and_then(|index| self.takeovers.get_mut(index)) else { return };
        if !matches!(takeover.credentials, Credentials::Awaited) {
            return;
        }
        let old = takeover.old;
        let Some(peer) = self.peers.get_mut(old) else { return };
        let is_equal = auth.plain().zip(peer.machine.login()).is_some_and(|((user, password), login)| {
            user.as_bytes() == login.user.as_bytes() && login.password == Some(password.into())
        });
        if is_equal && !peer.machine.is_asleep() {
            let mut datagram = Vec::new();
            Message::Auth(*auth).encode(&mut datagram);
            takeover.credentials = Credentials::Equal(datagram);
            takeover.deadline = self.now + ANSWER_TIME;
            return self.ask(old);
        }
        let Takeover { address, datagram, .. } = self.takeovers.swap_remove(index.unwrap_or_default());
        self.elsewhere.vacate(&address);
        match Message::decode(&datagram) {
            Ok(message) if is_equal => self.move_peer(old, origin, &message, datagram.len(), false), // [SN-AUTH-2]
            _ => return self.refuse(origin),
        }
        // A client that begins a new session needs them again.
        if let Some(key) = self.peers.find(origin) {
            self.handle_of_peer(key, origin, &Message::Auth(*auth), 0);
        }
    }

    /// Ends a peer whose client is at another address.
    pub(super) fn end_for_successor(&mut self, old: Key) {
        let Some(peer) = self.peers.get_mut(old) else { return };
        count(&self.counters.taken_over, 1);
        let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
        let action = peer.machine.close(&mut io);
        self.after(old, action);
    }

    /// Asks a peer whether it is there.
    fn ask(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
        peer.machine.probe(&mut io);
        self.after(key, tenbin_sn::Action::Continue);
    }

    /// Notes a message of a peer: it is there.
    #[inline]
    pub(super) fn note_answer(&mut self, key: Key) {
        for takeover in self.takeovers.iter_mut().filter(|takeover| takeover.old == key) {
            takeover.is_answered = true;
        }
    }

    /// Whether a client at this address waits for a decision.
    pub(super) fn is_taking_over(&self, origin: Origin<'_>) -> bool {
        self.takeovers.iter().any(|takeover| takeover.address.origin() == origin)
    }

    /// Ends the takeovers that are decided.
    pub(super) fn decide_takeovers(&mut self) {
        let mut index = 0;
        while let Some(takeover) = self.takeovers.get_mut(index) {
            let (old, deadline) = (takeover.old, takeover.deadline);
            let is_there = self.peers.get_mut(old).is_some();
            if is_there && !takeover.is_answered && self.now < deadline {
                index += 1;
                let is_asked = !matches!(takeover.credentials, Credentials::Awaited);
                let is_time = self.now >= takeover.repeat_at;
                if is_time {
                    takeover.repeat_at = self.now + QUESTION_PAUSE;
                }
                let next = takeover.repeat_at.min(deadline);
                if is_time && is_asked {
                    self.ask(old);
                }
                self.ring_by(next);
                continue;
            }
            let Takeover { address, datagram, is_answered, is_guest, credentials, .. } =
                self.takeovers.swap_remove(index);
            let origin = address.origin();
            self.elsewhere.vacate(&address);
            // Another client may be at the address now.
            if self.socket.identity(origin.socket).is_some() {
                continue;
            }
            if is_there && matches!(credentials, Credentials::Awaited) {
                self.refuse(origin); // [SN-AUTH-2]
                continue;
            }
            let Ok(Message::Connect(connect)) = Message::decode(&datagram) else { continue };
            // The answer may have been CONNECT, which begins another peer.
            let client_id = connect.client_id.as_bytes();
            if is_answered && (is_there || self.peers.find_client(client_id).is_some()) {
                self.refuse(origin);
                continue;
            }
            let needs_proof = self.needs_proof();
            if !needs_proof {
                self.end_for_successor(old);
            }
            if self.peers.find(origin).is_none()
                // Else this thread has released the address, or another one serves it.
                && self.elsewhere.is_guest(origin) == is_guest
                && self.elsewhere.thread_of(origin).is_none()
            {
                if needs_proof {
                    self.begin_candidate(origin, &Message::Connect(connect), datagram.len()); // [SN-ADDRESS-8]
                    continue;
                }
                let key = self.accept(origin, &connect, datagram.len());
                if let (Some(key), Credentials::Equal(auth)) = (key, credentials)
                    && let Ok(message) = Message::decode(&auth)
                {
                    self.handle_of_peer(key, origin, &message, auth.len());
                }
            }
        }
    }
}
