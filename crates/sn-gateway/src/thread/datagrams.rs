//! Datagrams of clients, and of senders without a peer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tenbin_codec::{Text, WriteBuffer};
use tenbin_sn::{Action, GatewayPeer, Io};
use tenbin_sn_codec::v1_2::{Connect, Disconnect, GwInfo, Message, PingReq, QoS, ReturnCode};
use tenbin_sn_codec::{DecodeError, Forwarded};

use super::candidates::Standing;
use super::{BATCHES_PER_LAP, Thread};
use crate::counters::count;
use crate::peers::{Key, Origin, Peer};
use crate::route::Route;
use crate::udp::Batch;

/// Bytes for the broker beyond which a client's messages are dropped: the broker does not read.
const OUT_BYTES_MAXIMUM: usize = 256 * 1024;
/// Bytes of a wireless node's id, which its peer keeps.
const NODE_ID_BYTES_MAXIMUM: usize = 64;
/// Clients that a CONNECT lets the gateway ask for their proof.
const ASKED_AT_ONCE: usize = 8;
/// Time for the answer to such a question, at most, when others need room: forged clients never answer.
const ANSWER_TIME: Duration = Duration::from_secs(3);

impl Thread {
    pub(super) fn receive_batches(&mut self, batch: &mut Batch) {
        let mut received = 0;
        for _ in 0..BATCHES_PER_LAP {
            match self.socket.receive(batch) {
                Ok(()) => {
                    for (datagram, route) in batch.iter() {
                        received += 1;
                        self.receive_datagram(datagram, route);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // An answer to an earlier datagram, such as of a client that is gone.
                Err(_) => {}
            }
        }
        count(&self.counters.datagrams_received, received);
    }

    pub(super) fn receive_datagram(&mut self, datagram: &[u8], route: Route) {
        if self.socket.is_secured() {
            self.receive_secured(datagram, route);
        } else {
            self.receive(datagram, Origin { socket: route.to, via: route.via, node: None });
        }
    }

    /// A datagram of DTLS, which may have any number of messages.
    fn receive_secured(&mut self, datagram: &[u8], route: Route) {
        let origin = Origin { socket: route.to, via: route.via, node: None };
        let mut messages = std::mem::take(&mut self.opened);
        let limits = &self.shared.limits;
        let is_another = self.socket.open_datagram(datagram, route, self.now, limits, &mut messages);
        if is_another && let Some(key) = self.peers.find(origin) {
            self.part(key); // [SN-DTLS-3]
        }
        for message in messages.drain(..) {
            self.receive(&message, origin);
        }
        self.opened = messages;
    }

    /// Parts a peer from an address that has a new session of DTLS, unless the session belongs to the peer's client.
    fn part(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let identity = self.socket.identity(peer.address.socket);
        // Without identities and credentials it is the address that counts, as it does without DTLS.
        let is_bound_by_address = identity.is_none() && !self.shared.config.listener.credentials;
        if identity == peer.identity.as_deref() && (identity.is_some() || is_bound_by_address) {
            return;
        }
        if peer.machine.is_asleep() {
            // It may wake elsewhere.
            self.peers.detach(key);
        } else {
            self.remove(key);
        }
    }

    fn receive(&mut self, datagram: &[u8], from: Origin<'_>) {
        let (message, origin) = if Forwarded::is_envelope(datagram) {
            // [SN-FORWARD-1]
            if !self.shared.config.listener.forwarders.contains(&from.ip()) {
                return count(&self.counters.unknown_forwarders, 1);
            }
            match Forwarded::decode(datagram) {
                Ok(envelope) if envelope.node_id.len() > NODE_ID_BYTES_MAXIMUM => {
                    return count(&self.counters.node_ids_too_long, 1);
                }
                Ok(envelope) => (envelope.message, Origin { node: Some(envelope.node_id), ..from }),
                Err(error) => return self.counters.malformed(error),
            }
        } else {
            (datagram, from)
        };
        match Message::decode(message) {
            Ok(decoded) => self.handle(origin, &decoded, message.len()),
            Err(error) => {
                self.counters.malformed(error);
                if matches!(error, DecodeError::ProtocolId(_)) {
                    self.answer(origin, &Message::ConnAck(ReturnCode::NotSupported)); // [SN-CONNECT-1]
                }
            }
        }
    }

    fn handle(&mut self, origin: Origin<'_>, message: &Message<'_>, size: usize) {
        if let Some(key) = self.peers.find_via(origin) {
            return self.handle_of_peer(key, origin, message, size);
        }
        match self.elsewhere.thread_of(origin) {
            Some(thread) => self.hand_off(thread, origin, message, false),
            None => self.handle_of_stranger(origin, message, size, false),
        }
    }

    pub(super) fn handle_of_peer(&mut self, key: Key, origin: Origin<'_>, message: &Message<'_>, size: usize) {
        self.note_answer(key);
        let Some(peer) = self.peers.get_mut(key) else { return };
        match message {
            Message::Publish(publish) => {
                if peer.out.len() > OUT_BYTES_MAXIMUM {
                    return count(&self.counters.upstream_full, 1);
                }
                let (limits, address) = (&self.shared.limits, origin.ip());
                let is_allowed = match publish.qos {
                    None => limits.allows_minus_one(address, self.now),
                    Some(QoS::AtMostOnce) => limits.allows_publish(address, self.now),
                    Some(_) => true,
                };
                if !is_allowed {
                    return count(&self.counters.rate_exceeded, 1);
                }
            }
            Message::SearchGw(_) => return self.answer_search(origin),
            _ => {}
        }
        if !peer.is_touched
            && peer.out.capacity() == 0
            && let Some(mut spare) = self.buffers.pop()
        {
            peer.out.swap_memory(&mut spare);
        }
        let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
        let action = peer.machine.handle_message(message, size, &mut io);
        let is_new = matches!(action, Action::End(tenbin_sn::End::NewConnection));
        // The session was the peer's, and not only asked for.
        let is_same = is_new
            && peer.machine.owns_state()
            && matches!(message, Message::Connect(connect)
            if connect.client_id.as_bytes() == peer.machine.client_id().as_bytes());
        self.after(key, action);
        self.touch(key);
        if is_new && let Message::Connect(connect) = message {
            // Its client id may be another one, which a peer elsewhere has.
            let standing = if is_same { Standing::Inherited } else { Standing::Unproven };
            self.connect(origin, connect, size, false, standing);
        }
    }

    /// Answers a message of an address without a peer. `is_admitted` says that a CONNECT is within its rates.
    pub(super) fn handle_of_stranger(
        &mut self,
        origin: Origin<'_>,
        message: &Message<'_>,
        size: usize,
        is_admitted: bool,
    ) {
        if self.handle_of_candidate(origin, message, size) {
            return;
        }
        match message {
            Message::Connect(connect) => self.connect(origin, connect, size, is_admitted, Standing::Unproven),
            Message::SearchGw(_) => self.answer_search(origin),
            // Of other gateways.
            Message::Advertise(_) | Message::GwInfo(_) => {}
            Message::Auth(auth) => self.authorize_takeover(origin, auth),
            Message::PingReq(PingReq { client_id: Some(client_id) }) => {
                // [SN-ADDRESS-4]
                if let Some(key) = self.sleeper_that_may_move(client_id, origin) {
                    if !self.needs_proof() {
                        return self.move_peer(key, origin, message, size, false);
                    }
                    if self.shared.limits.allows_answer(origin.ip(), self.now) {
                        self.begin_candidate(origin, message, size); // [SN-ADDRESS-8]
                    }
                    return;
                }
                match self.shared.owners.find(client_id) {
                    Some(owner) if owner != self.number => self.hand_off(owner, origin, message, true),
                    _ => self.reject_stranger(origin),
                }
            }
            // [SN-PUBLISH-5]
            Message::Publish(publish) if publish.qos.is_none() && self.shared.config.listener.qos_minus_one => {
                self.publish_for_stranger(origin, message, size);
            }
            _ => self.reject_stranger(origin),
        }
    }

    pub(super) fn reject_stranger(&mut self, origin: Origin<'_>) {
        count(&self.counters.unknown_senders, 1);
        self.answer(origin, &Message::Disconnect(Disconnect { duration: None })); // [SN-UNKNOWN-1]
    }

    /// A CONNECT of an address without a peer.
    fn connect(
        &mut self,
        origin: Origin<'_>,
        connect: &Connect<'_>,
        size: usize,
        is_admitted: bool,
        standing: Standing,
    ) {
        if !is_admitted && !self.shared.limits.allows_connect(origin.ip(), self.now) {
            return self.refuse(origin);
        }
        let needs_proof = self.needs_proof();
        if let Some(key) = self.sleeper_that_may_move(connect.client_id, origin) {
            return match needs_proof {
                true => self.begin_candidate(origin, &Message::Connect(*connect), size), // [SN-ADDRESS-8]
                false => self.move_peer(key, origin, &Message::Connect(*connect), size, false), // [SN-ADDRESS-4]
            };
        }
        match self.peers.find_client(connect.client_id.as_bytes()) {
            None => {
                let stored = match standing {
                    Standing::Unproven if needs_proof => self.stored_address(connect.client_id),
                    _ => None,
                };
                let standing = match stored {
                    None => standing,
                    // Its last address has the session, as it would have if it was still connected.
                    Some(Some(last)) if last == origin.socket && origin.node.is_none() => Standing::Inherited,
                    Some(_) => return self.begin_candidate(origin, &Message::Connect(*connect), size),
                };
                self.accept_as(origin, connect, size, standing);
            }
            Some(key) => self.take_over(key, origin, connect, size), // [SN-ADDRESS-3]
        }
    }

    /// A CONNECT whose address and client id no peer of this thread has. `None` if it is refused, or left to another
    /// thread.
    pub(super) fn accept(&mut self, origin: Origin<'_>, connect: &Connect<'_>, size: usize) -> Option<Key> {
        self.accept_as(origin, connect, size, Standing::Unproven)
    }

    pub(super) fn accept_as(
        &mut self,
        origin: Origin<'_>,
        connect: &Connect<'_>,
        size: usize,
        standing: Standing,
    ) -> Option<Key> {
        let message = Message::Connect(*connect);
        // The proof of a candidate is known here alone.
        if self.elsewhere.is_guest(origin) && !matches!(standing, Standing::Proven(_)) {
            self.hand_back(origin, &message);
            return None;
        }
        if let Err(owner) = self.shared.owners.claim(connect.client_id, self.number) {
            self.hand_off(owner, origin, &message, true); // [SN-ADDRESS-5]
            return None;
        }
        let shared = Arc::clone(&self.shared);
        let listener = &shared.config.listener;
        let of_address = self.peers.of_address(origin.ip());
        let clients = self.shared.clients.load(std::sync::atomic::Ordering::Relaxed);
        let is_crowded = self.peers.unproven() >= listener.unconfirmed_maximum || clients >= listener.clients_maximum;
        let per_address_maximum = shared.limits.clients_of(origin.ip());
        let is_address_full = per_address_maximum > 0 && of_address >= per_address_maximum;
        let of = is_address_full.then(|| origin.ip());
        // Clients are asked in time, so that their answers are there when others need room.
        let is_filling =
            self.peers.unproven() > listener.unconfirmed_maximum / 2 || clients > listener.clients_maximum / 2;
        let is_address_filling = per_address_maximum > 0 && of_address > per_address_maximum / 2;
        if is_filling || is_address_filling {
            self.ask_unproven((!is_filling).then(|| origin.ip()));
        }
        let silent = match is_crowded || is_address_full {
            true => self.peers.next_evicted(of, listener.retry_seconds.min(ANSWER_TIME), self.now), // [SN-BOUND-5]
            false => None,
        };
        if is_crowded {
            while self.closing.try_join_next().is_some() {}
        }
        // The broker has to answer, and to forget evicted clients, as fast as others come.
        let is_behind = self.closing.len() > listener.unconfirmed_maximum / 2;
        if (is_crowded || is_address_full) && (silent.is_none() || is_behind) {
            self.shared.owners.release(connect.client_id, self.number);
            self.refuse(origin); // [SN-BOUND-4]
            return None;
        }
        let identity = self.socket.identity(origin.socket).map(|identity| Box::new(identity.clone()));
        let Ok(login) = self.shared.login_of(identity.as_deref()) else {
            self.shared.owners.release(connect.client_id, self.number);
            self.answer(origin, &Message::ConnAck(ReturnCode::NotSupported)); // [SN-DTLS-2]
            return None;
        };
        if let Some(silent) = silent {
            count(&self.counters.unconfirmed_evicted, 1);
            self.evict(silent);
        }
        let is_inherited = matches!(standing, Standing::Inherited);
        let name = Text::try_from(connect.client_id).ok();
        let name = name.and_then(|client_id| shared.state_name(&client_id, identity.as_deref()));
        let state = name.as_ref().and_then(|name| shared.states.take(name.as_str(), connect.clean_session, self.now));
        let mut out = WriteBuffer::new();
        let (mut machine, action) = match standing {
            Standing::Proven(candidate) => self.peer_of_candidate(candidate, state, &mut out)?,
            Standing::Unproven | Standing::Inherited => {
                let mut io = Io { now: self.now, upstream: &mut out, output: &mut self.output };
                GatewayPeer::accept(&shared.gateway, connect, size, state, &mut io)
            }
        };
        if is_inherited {
            machine.inherit_session();
        }
        if let Action::End(_) = action {
            if let Some(name) = name {
                shared.states.keep(&name, machine.into_state(), None, self.now);
            }
            shared.owners.release(connect.client_id, self.number);
            self.send_output(origin);
            return None;
        }
        if self.socket.is_secured() {
            machine.trust_address(); // [SN-DTLS-1]
        }
        if let Some(login) = login {
            machine.set_login(login); // [SN-DTLS-2]
        }
        count(&self.counters.connects, 1);
        shared.clients.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (inbox, now) = (&self.inbox, self.now);
        let address = origin.to_address();
        let key = self.peers.add(|key| Peer::new(machine, address, identity, out, key, inbox, now));
        self.after(key, action);
        self.touch(key);
        Some(key)
    }

    /// Asks some unproven clients, of one IP address or of all, for their proof: without an answer they make room.
    fn ask_unproven(&mut self, of: Option<IpAddr>) {
        for _ in 0..ASKED_AT_ONCE {
            let Some(key) = self.peers.next_asked(of) else { return };
            let Some(peer) = self.peers.get_mut(key) else { continue };
            let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
            peer.machine.ask(&mut io);
            self.after(key, Action::Continue);
            self.touch(key);
        }
    }

    /// Ends an unproven peer, with its session at the broker if it was not there before.
    fn evict(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
        let action = peer.machine.evict(&mut io);
        self.after(key, action);
    }

    pub(super) fn refuse(&mut self, origin: Origin<'_>) {
        count(&self.counters.connects_refused, 1);
        self.answer(origin, &Message::ConnAck(ReturnCode::Congestion));
    }

    fn answer_search(&mut self, origin: Origin<'_>) {
        let listener = &self.shared.config.listener;
        if listener.multicast.is_some() {
            let info = GwInfo { gateway_id: listener.gateway_id, address: &[] };
            self.answer(origin, &Message::GwInfo(info)); // [SN-DISCOVERY-1]
        }
    }

    /// Sends a message to an address without a peer, within the rate of such answers.
    pub(super) fn answer(&mut self, origin: Origin<'_>, message: &Message<'_>) {
        if self.shared.limits.allows_answer(origin.ip(), self.now) {
            self.output.datagrams.push(message);
            self.send_output(origin);
        }
    }

    /// Sends the datagrams of the last call.
    pub(super) fn send_output(&mut self, to: Origin<'_>) {
        if to.socket.port() == 0 {
            return self.output.datagrams.clear();
        }
        for datagram in self.output.datagrams.iter() {
            match to.node {
                None => self.socket.send(datagram, to.route()),
                Some(node_id) => {
                    let mut envelope = Vec::with_capacity(datagram.len() + node_id.len() + 5);
                    Forwarded { radius: 0, node_id, message: datagram }.encode(&mut envelope); // [SN-FORWARD-1]
                    self.socket.send(&envelope, to.route());
                }
            }
        }
        self.output.datagrams.clear();
    }
}
