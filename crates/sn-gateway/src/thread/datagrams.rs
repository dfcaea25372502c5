//! Datagrams of clients, and of senders without a peer.

use tenbin_codec::{Text, WriteBuffer};
use tenbin_sn::{Action, GatewayPeer, Io};
use tenbin_sn_codec::v1_2::{Connect, Disconnect, GwInfo, Message, PingReq, QoS, ReturnCode};
use tenbin_sn_codec::{DecodeError, Forwarded};

use super::{BATCHES_PER_LAP, Thread};
use crate::counters::count;
use crate::peers::{Key, Origin, Peer};
use crate::udp::{Batch, Route};

/// Bytes for the broker beyond which a client's messages are dropped: the broker does not read.
const OUT_BYTES_MAXIMUM: usize = 256 * 1024;
/// Bytes of a wireless node's id, which its peer keeps.
const NODE_ID_BYTES_MAXIMUM: usize = 64;

impl Thread {
    pub(super) fn receive_batches(&mut self, batch: &mut Batch) {
        let mut received = 0;
        for _ in 0..BATCHES_PER_LAP {
            match self.socket.receive(batch) {
                Ok(()) => {
                    for (datagram, route) in batch.iter() {
                        received += 1;
                        if self.socket.is_secured() {
                            self.receive_secured(datagram, route);
                        } else {
                            self.receive(datagram, Origin { socket: route.to, local: route.from, node: None });
                        }
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // An answer to an earlier datagram, such as of a client that is gone.
                Err(_) => {}
            }
        }
        count(&self.counters.datagrams_received, received);
    }

    /// A datagram of DTLS, which may have any number of messages.
    fn receive_secured(&mut self, datagram: &[u8], route: Route) {
        let origin = Origin { socket: route.to, local: route.from, node: None };
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

    /// Parts a peer from an address that has a new session of DTLS, unless it is that of its client.
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
        if let Some(key) = self.peers.find(origin) {
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
            && let Some(mut spare) = self.spares.pop()
        {
            peer.out.swap_memory(&mut spare);
        }
        let mut io = Io { now: self.now, upstream: &mut peer.out, output: &mut self.output };
        let action = peer.machine.handle_message(message, size, &mut io);
        let is_new = matches!(action, Action::End(tenbin_sn::End::NewConnection));
        self.after(key, action);
        self.touch(key);
        if is_new && let Message::Connect(connect) = message {
            // Its client id may be another one, which a peer elsewhere has.
            self.connect(origin, connect, size, false);
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
        match message {
            Message::Connect(connect) => self.connect(origin, connect, size, is_admitted),
            Message::SearchGw(_) => self.answer_search(origin),
            // Of other gateways.
            Message::Advertise(_) | Message::GwInfo(_) => {}
            Message::Auth(auth) => self.authorize_takeover(origin, auth),
            Message::PingReq(PingReq { client_id: Some(client_id) }) => {
                // [SN-ADDRESS-4]
                if let Some(key) = self.sleeper_that_may_move(client_id, origin) {
                    return self.move_peer(key, origin, message, size);
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

    fn reject_stranger(&mut self, origin: Origin<'_>) {
        count(&self.counters.unknown_senders, 1);
        self.answer(origin, &Message::Disconnect(Disconnect { duration: None })); // [SN-UNKNOWN-1]
    }

    /// A CONNECT of an address without a peer.
    fn connect(&mut self, origin: Origin<'_>, connect: &Connect<'_>, size: usize, is_admitted: bool) {
        if !is_admitted && !self.shared.limits.allows_connect(origin.ip(), self.now) {
            return self.refuse(origin);
        }
        if let Some(key) = self.sleeper_that_may_move(connect.client_id, origin) {
            return self.move_peer(key, origin, &Message::Connect(*connect), size); // [SN-ADDRESS-4]
        }
        match self.peers.find_client(connect.client_id.as_bytes()) {
            None => {
                self.accept(origin, connect, size);
            }
            Some(key) => self.take_over(key, origin, connect, size), // [SN-ADDRESS-3]
        }
    }

    /// A CONNECT whose address and client id no peer of this thread has. `None` if it is refused, or left to another
    /// thread.
    pub(super) fn accept(&mut self, origin: Origin<'_>, connect: &Connect<'_>, size: usize) -> Option<Key> {
        let message = Message::Connect(*connect);
        if self.elsewhere.is_guest(origin) {
            self.hand_back(origin, &message);
            return None;
        }
        if let Err(owner) = self.shared.owners.claim(connect.client_id, self.number) {
            self.hand_off(owner, origin, &message, true); // [SN-ADDRESS-5]
            return None;
        }
        let listener = &self.shared.config.listener;
        let of_address = self.peers.of_address(origin.ip());
        let per_address_maximum = self.shared.limits.clients_of(origin.ip());
        let is_crowded = self.peers.unconfirmed() >= listener.unconfirmed_maximum;
        let oldest = if is_crowded { self.peers.oldest_unconfirmed() } else { None };
        if is_crowded {
            while self.closing.try_join_next().is_some() {}
        }
        let is_full = self.shared.clients.load(std::sync::atomic::Ordering::Relaxed) >= listener.clients_maximum
            || (per_address_maximum > 0 && of_address >= per_address_maximum)
            // The broker has to answer, and to forget evicted clients, as fast as others come.
            || (is_crowded && (oldest.is_none() || self.closing.len() > listener.unconfirmed_maximum / 2));
        if is_full {
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
        if let Some(oldest) = oldest {
            count(&self.counters.unconfirmed_evicted, 1); // [SN-BOUND-5]
            self.evict(oldest);
        }
        let shared = &self.shared;
        let name = Text::try_from(connect.client_id).ok();
        let name = name.and_then(|client_id| shared.state_name(&client_id, identity.as_deref()));
        let state = name.as_ref().and_then(|name| shared.states.take(name.as_str(), connect.clean_session, self.now));
        let mut out = WriteBuffer::new();
        let mut io = Io { now: self.now, upstream: &mut out, output: &mut self.output };
        let (mut machine, action) = GatewayPeer::accept(&shared.gateway, connect, size, state, &mut io);
        if let Action::End(_) = action {
            if let Some(name) = name {
                shared.states.keep(&name, machine.into_state(), self.now);
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

    /// Ends an unconfirmed peer, with its session at the broker if nobody had it before.
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
