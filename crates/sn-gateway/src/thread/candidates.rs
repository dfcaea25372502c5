//! Clients that have to prove their address before they get a session that exists `[SN-ADDRESS-8]`.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use rustc_hash::FxBuildHasher;
use tenbin_codec::{Text, WriteBuffer};
use tenbin_sn::{Candidate, GatewayPeer, Io, Verdict};
use tenbin_sn_codec::v1_2::{Message, PingReq};

use super::Thread;
use crate::counters::count;
use crate::peers::{Address, Key, Origin};

/// Candidates of one thread.
#[derive(Default)]
pub(super) struct Candidates {
    by_address: HashMap<Address, Candidate, FxBuildHasher>,
    /// Addresses of candidates, the oldest first. Some are gone.
    ages: VecDeque<(Instant, Address)>,
    /// When the first question has to be repeated, or earlier.
    next_at: Option<Instant>,
}

/// Candidates of one thread; a further one takes the place of the oldest.
const CANDIDATES_MAXIMUM: usize = 4096;

impl Candidates {
    pub(super) fn contains(&self, origin: Origin<'_>) -> bool {
        !self.by_address.is_empty() && self.by_address.contains_key(&origin.to_address())
    }

    fn ring_by(&mut self, at: Instant) {
        self.next_at = Some(self.next_at.map_or(at, |next| next.min(at)));
    }

    /// Makes room for another candidate. Returns the addresses that have none any more.
    fn make_room(&mut self) -> Vec<Address> {
        let mut removed = Vec::new();
        while self.by_address.len() >= CANDIDATES_MAXIMUM || self.ages.len() > 2 * CANDIDATES_MAXIMUM {
            let Some((since, address)) = self.ages.pop_front() else { break };
            if self.by_address.get(&address).is_some_and(|candidate| candidate.since() == since) {
                self.by_address.remove(&address);
                removed.push(address);
            }
        }
        removed
    }
}

impl Thread {
    /// Whether addresses may be forged, and clients are known by nothing else.
    pub(super) fn needs_proof(&self) -> bool {
        let listener = &self.shared.config.listener;
        !listener.trust_addresses && !listener.credentials && !self.socket.is_secured()
    }

    /// Last address of a client that is not connected and has a session, as far as it is known.
    pub(super) fn stored_address(&self, client_id: &str) -> Option<Option<SocketAddr>> {
        let name = Text::try_from(client_id).ok().and_then(|name| self.shared.state_name(&name, None))?;
        self.shared.states.address(&name)
    }

    /// Asks the sender of a CONNECT, or of a sleeper's PINGREQ, for the proof of its address.
    pub(super) fn begin_candidate(&mut self, origin: Origin<'_>, request: &Message<'_>, size: usize) {
        let client_id = match request {
            Message::Connect(connect) => connect.client_id,
            Message::PingReq(PingReq { client_id: Some(client_id) }) => client_id,
            _ => return,
        };
        let old = self.peers.find_client(client_id.as_bytes());
        let stored = match old {
            Some(_) => None,
            None => Text::try_from(client_id).ok().and_then(|name| self.shared.state_name(&name, None)),
        };
        let (peers, shared) = (&self.peers, &self.shared);
        let is_topic = |id| match (old.and_then(|key| peers.get(key)), &stored) {
            (Some(peer), _) => peer.machine.may_know_topic(id),
            (None, Some(name)) => shared.states.may_know_topic(name, id),
            (None, None) => false,
        };
        let mut out = WriteBuffer::new();
        let mut io = Io { now: self.now, upstream: &mut out, output: &mut self.output };
        let candidate = Candidate::begin(&self.shared.gateway, request, size, is_topic, &mut io);
        self.keep_candidate(origin, candidate);
    }

    /// Asks a client for its proof, since the broker has a session with its client id.
    pub(super) fn ask_for_session(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let mut out = WriteBuffer::new();
        let mut io = Io { now: self.now, upstream: &mut out, output: &mut self.output };
        // The gateway has no topics of this session.
        let candidate = peer.machine.to_candidate(|_| false, &mut io);
        let address = peer.address.clone();
        self.forget(key);
        self.keep_candidate(address.origin(), candidate);
    }

    fn keep_candidate(&mut self, origin: Origin<'_>, candidate: Candidate) {
        self.send_output(origin);
        count(&self.counters.proofs_asked, 1);
        let removed = self.candidates.make_room();
        count(&self.counters.proofs_missing, removed.len());
        removed.iter().for_each(|address| self.elsewhere.vacate(address));
        let (at, address) = (candidate.poll_timeout(), origin.to_address());
        self.candidates.ages.push_back((candidate.since(), address.clone()));
        self.candidates.by_address.insert(address, candidate);
        self.candidates.ring_by(at);
        self.ring_by(at);
    }

    /// Handles a message of a candidate. False if the address has none.
    pub(super) fn handle_of_candidate(&mut self, origin: Origin<'_>, message: &Message<'_>, size: usize) -> bool {
        if self.candidates.by_address.is_empty() {
            return false;
        }
        let address = origin.to_address();
        let Some(candidate) = self.candidates.by_address.get_mut(&address) else { return false };
        let mut out = WriteBuffer::new();
        let mut io = Io { now: self.now, upstream: &mut out, output: &mut self.output };
        let verdict = candidate.handle_message(message, size, &mut io);
        self.send_output(origin);
        self.follow(&address, verdict);
        // The message begins anew.
        verdict != Verdict::Replaced
    }

    fn follow(&mut self, address: &Address, verdict: Verdict) {
        if verdict == Verdict::Waits {
            return;
        }
        let Some(candidate) = self.candidates.by_address.remove(address) else { return };
        match verdict {
            Verdict::Proven => {
                count(&self.counters.proofs_given, 1);
                self.admit_candidate(address, candidate);
            }
            Verdict::Unproven => {
                count(&self.counters.proofs_missing, 1);
                tracing::info!(
                    peer = %address.socket, client_id = candidate.client_id(),
                    "session refused: the client has not proven its address"
                );
            }
            Verdict::Replaced | Verdict::Waits => {}
        }
        self.elsewhere.vacate(address);
    }

    /// Repeats questions whose answer is overdue.
    pub(super) fn keep_candidates(&mut self) {
        let Some(at) = self.candidates.next_at else { return };
        if at > self.now {
            return self.ring_by(at);
        }
        self.candidates.next_at = None;
        let (now, is_due) = (self.now, |candidate: &Candidate, now| candidate.poll_timeout() <= now);
        let due: Vec<Address> =
            self.candidates.by_address.iter().filter(|(_, of)| is_due(of, now)).map(|(at, _)| at.clone()).collect();
        for address in due {
            let Some(candidate) = self.candidates.by_address.get_mut(&address) else { continue };
            let mut out = WriteBuffer::new();
            let mut io = Io { now, upstream: &mut out, output: &mut self.output };
            let verdict = candidate.handle_timeout(&mut io);
            self.send_output(address.origin());
            self.follow(&address, verdict);
        }
        if let Some(next) = self.candidates.by_address.values().map(Candidate::poll_timeout).min() {
            self.candidates.ring_by(next);
            self.ring_by(next);
        }
    }

    /// Gives a session to a client that has proven its address.
    fn admit_candidate(&mut self, address: &Address, candidate: Candidate) {
        let origin = address.origin();
        let request = candidate.request().to_vec();
        let Ok(message) = Message::decode(&request) else { return };
        let client_id = candidate.client_id().to_owned();
        if let Some(key) = self.sleeper_that_may_move(&client_id, origin) {
            self.move_peer(key, origin, &message, request.len(), true); // [SN-ADDRESS-4]
            for datagram in candidate.into_held() {
                if let (Some(key), Ok(message)) = (self.peers.find(origin), Message::decode(&datagram)) {
                    self.handle_of_peer(key, origin, &message, datagram.len());
                }
            }
            return;
        }
        let Message::Connect(connect) = message else { return self.reject_stranger(origin) };
        if let Some(old) = self.peers.find_client(client_id.as_bytes()) {
            // It has answered in the meantime.
            let is_there = self.peers.get(old).is_some_and(|peer| {
                peer.machine.is_connected()
                    && !peer.machine.is_asleep()
                    && peer.machine.last_received() >= candidate.since()
            });
            if is_there {
                return self.reject_stranger(origin);
            }
            self.end_for_successor(old);
        }
        self.accept_as(origin, &connect, request.len(), Standing::Proven(candidate));
    }

    /// A peer for a candidate.
    pub(super) fn peer_of_candidate(
        &mut self,
        candidate: Candidate,
        state: Option<tenbin_sn::ClientState>,
        out: &mut WriteBuffer,
    ) -> Option<(GatewayPeer, tenbin_sn::Action)> {
        let mut io = Io { now: self.now, upstream: out, output: &mut self.output };
        GatewayPeer::accept_proven(&self.shared.gateway, candidate, state, &mut io)
    }
}

/// Proof that the sender of a CONNECT has given.
pub(super) enum Standing {
    /// Its address may be forged.
    Unproven,
    /// The last client of its address had the client id.
    Inherited,
    /// It has proven its address.
    Proven(Candidate),
}
