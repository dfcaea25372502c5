//! The gateway's own client, which publishes the QoS −1 messages of senders without a connection.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, Instant};

use tenbin_sn::DropCause;
use tenbin_sn_codec::v1_2::{Connect, Message, Publish, Topic};

use super::Thread;
use crate::peers::{Key, NOWHERE, Origin};
use crate::route::Via;

/// The gateway's own client.
pub(super) struct SharedClient {
    client_id: String,
    key: Option<Key>,
    /// When it may connect next.
    next_try: Instant,
}

/// Pause after a lost connection.
const PAUSE: Duration = Duration::from_secs(1);

impl SharedClient {
    pub(super) fn new(now: Instant) -> Self {
        // Several gateways may share a broker.
        let number = RandomState::new().build_hasher().finish();
        Self { client_id: format!("tenbin-sn-{number:016x}"), key: None, next_try: now }
    }
}

impl Thread {
    /// Connects the shared client if it has to be connected and is not.
    pub(super) fn keep_shared_client(&mut self) {
        if !self.shared.config.listener.qos_minus_one
            || self.shared_client.key.is_some_and(|key| self.peers.get_mut(key).is_some())
        {
            return;
        }
        if self.now >= self.shared_client.next_try {
            let client_id = self.shared_client.client_id.clone();
            let connect = Connect { will: false, clean_session: true, duration: 0, client_id: &client_id };
            self.shared_client.key =
                self.accept(Origin { socket: NOWHERE, via: Via::default(), node: None }, &connect, 0);
            self.shared_client.next_try = self.now + PAUSE;
            if let Some(peer) = self.shared_client.key.and_then(|key| self.peers.get_mut(key)) {
                peer.machine.make_local();
            }
        }
        let next_try = self.shared_client.next_try;
        self.ring_by(next_try);
    }

    /// Publishes a QoS −1 message of a sender without a connection.
    pub(super) fn publish_for_stranger(&mut self, origin: Origin<'_>, message: &Message<'_>, size: usize) {
        // Such a name has a client id, and the sender has none.
        let is_per_client = matches!(message, Message::Publish(Publish { topic: Topic::Predefined(id), .. })
            if self.shared.gateway.predefined().is_per_client(*id));
        if is_per_client {
            return self.output.drops.note(DropCause::UnknownTopic);
        }
        match self.shared_client.key {
            Some(key) if self.peers.get_mut(key).is_some() => self.handle_of_peer(key, origin, message, size),
            _ => self.output.drops.note(DropCause::NoUpstream),
        }
    }
}
