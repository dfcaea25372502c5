use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use tenbin_codec::{Decoder, WriteBuffer};
use tenbin_sn::{Alarm, GatewayPeer};

use super::{Address, Evidence, Inbox, Key, PeerWaker};
use crate::dtls::Identity;
use crate::upstream::{ClientOrigin, Opening, Stream};

/// One client: its state machine, its address, and its stream to the broker.
pub(crate) struct Peer {
    pub(crate) machine: GatewayPeer,
    pub(crate) address: Address,
    /// Proven identity of the client.
    pub(crate) identity: Option<Box<Identity>>,
    pub(crate) link: Link,
    /// Bytes for the broker.
    pub(crate) out: WriteBuffer,
    pub(crate) alarm: Alarm,
    pub(crate) ready: Arc<PeerWaker>,
    /// Lists the peer as ready.
    pub(crate) waker: Waker,
    /// On the thread's list of peers to settle.
    pub(crate) is_touched: bool,
    /// The broker's packets wait until the client has taken some.
    pub(crate) is_held: bool,
    /// Version of the state that is stored.
    pub(crate) saved_version: u32,
    /// End of the time that the states which were stored so far have used up.
    pub(crate) saved_until: Instant,
    /// Evidence that is noted.
    pub(crate) evidence: Evidence,
}

/// The stream to the broker.
pub(crate) enum Link {
    Closed,
    Opening(Opening),
    Open(Connection),
}

/// An open stream to the broker.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) decoder: Decoder,
    /// Undecoded bytes: part of a packet, or packets for which the client has no room.
    pub(crate) undecoded: Vec<u8>,
}

impl Peer {
    pub(crate) fn new(
        machine: GatewayPeer,
        address: Address,
        identity: Option<Box<Identity>>,
        out: WriteBuffer,
        key: Key,
        inbox: &Arc<Inbox>,
        now: Instant,
    ) -> Self {
        let ready = PeerWaker::new(key, inbox);
        let evidence = evidence_of(&machine);
        Self {
            saved_version: machine.state_version(),
            saved_until: now,
            machine,
            address,
            identity,
            link: Link::Closed,
            out,
            alarm: Alarm::default(),
            waker: Arc::clone(&ready).into(),
            ready,
            is_touched: false,
            is_held: false,
            evidence,
        }
    }

    /// Evidence that the client has given by now.
    #[inline]
    pub(crate) fn current_evidence(&self) -> Evidence {
        evidence_of(&self.machine)
    }

    /// The client, for the stream that opens.
    pub(crate) fn client(&self) -> ClientOrigin {
        ClientOrigin { address: self.address.socket, identity: self.identity.clone() }
    }

    /// Whether the client's next connection needs a state that is not stored.
    pub(crate) fn has_unsaved_state(&self) -> bool {
        self.saved_version != self.machine.state_version() && !self.machine.is_clean() && self.machine.owns_state()
    }

    /// Takes the open stream out.
    pub(crate) fn take_stream(&mut self) -> Option<Stream> {
        match std::mem::replace(&mut self.link, Link::Closed) {
            Link::Open(connection) => Some(connection.stream),
            Link::Opening(_) | Link::Closed => None,
        }
    }
}

fn evidence_of(machine: &GatewayPeer) -> Evidence {
    match (machine.is_proven(), machine.is_confirmed()) {
        (true, _) => Evidence::Proof,
        (false, true) => Evidence::Messages,
        (false, false) => Evidence::None,
    }
}
