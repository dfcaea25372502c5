//! The handshake: from an accepted socket to an accepted CONNECT.

mod connack;
mod establish;
mod session;

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::{ConnAck, Connect, DecodeError, Decoded, Decoder, Packet};
use tenbin_session::Connection;

use self::establish::PendingClient;
use super::arrival::{FREE_BYTES, RETRY};
use super::authentication::{Login, Refusal};
use super::core::{MustEnd, OpenConnection};
use super::departure::Departure;
use super::end::bound_of;
use super::hooked::Hooked;
use super::member::Member;
use super::reauthentication::Reauthentication;
use super::stream::Stream;
use super::transport::Transport;
use crate::auth::Identity;
use crate::lifecycle::{BrokerState, Storage};
use crate::memory::{Charge, ConnectedClient, Kind};
use crate::registry::Lease;
use crate::values::{Bound, Origin, Peer};

/// A connection whose CONNECT was accepted. Its CONNACK is in the output buffer.
pub(super) struct Accepted {
    pub(super) lease: Lease,
    pub(super) connection: Connection,
    pub(super) decoder: Decoder,
    pub(super) is_bridge: bool,
    /// The client counts for its account.
    pub(super) counted: ConnectedClient,
    pub(super) departure: Departure,
    pub(super) reauthentication: Reauthentication,
    pub(super) member: Member,
    pub(super) hooks: Option<Box<Hooked>>,
}

/// Reads CONNECT and answers it. `None`: the connection is to be closed after `transport.out` is written.
pub(super) async fn accept<S: Stream>(
    open: &OpenConnection,
    transport: &mut Transport<S>,
    origin: Origin,
    listener: Arc<str>,
    deadline: tokio::time::Instant,
) -> Option<Accepted> {
    let (peer, shared): (_, &BrokerState) = (origin.peer, &open.shared);
    let mut decoder = Decoder::server(shared.config.connect_packet_bytes_maximum());
    decoder.set_user_properties_maximum(shared.config.user_properties_maximum());
    decoder.set_filters_maximum(shared.config.filters_decoded_maximum());
    let deadline = wait_for_lease(open, deadline).await?;
    let connect = tokio::select! {
        connect = tokio::time::timeout_at(deadline, read_connect(&shared.storage, transport, &mut decoder, peer)) => connect,
        end = open.must_end() => {
            if end == MustEnd::Evicted {
                open.makes_room();
            }
            return None;
        }
    };
    let (connect, charge) = match connect {
        Ok(Ok(read)) => read,
        Ok(Err(NoConnect::Decode(error))) => {
            shared.operations.metrics.violations.add(1);
            let bound = bound_of(error, Bound::ConnectBytes);
            bound.into_iter().for_each(|bound| shared.operations.metrics.bounds.hit(bound, 1, Instant::now()));
            tracing::info!(%peer, %error, limit = bound.map(Bound::key), "no legal CONNECT");
            connack::answer_illegal_connect(error, decoder.version(), &mut transport.out);
            return None;
        }
        Ok(Err(NoConnect::Closed(error))) => {
            tracing::debug!(%peer, %error, "closed before CONNECT");
            return None;
        }
        Err(_) => {
            tracing::info!(%peer, timeout = ?shared.config.connect_timeout(), "no CONNECT in time");
            return None;
        }
    };
    let version = connect.version;
    let packet_size_maximum = connect.properties.maximum_packet_size.map_or(u32::MAX, NonZeroU32::get);
    let arrived_at = Instant::now();
    let login = Login {
        peer,
        client_id: connect.client_id.clone(),
        user: connect.user_name.clone(),
        listener: Arc::clone(&listener),
    };
    let client = PendingClient { connect: *connect, charge, decoder, origin, listener, deadline, arrived_at };
    match client.establish(open, transport).await {
        Ok(accepted) => Some(accepted),
        Err(Refusal { reason: Some(reason), server_reference, login: refusal, bound }) => {
            bound.into_iter().for_each(|bound| shared.operations.metrics.bounds.hit(bound, 1, Instant::now()));
            let client = &login.client_id;
            match refusal {
                Some(refusal) => login.refused(shared, &refusal),
                None => tracing::info!(%peer, ?client, limit = bound.map(Bound::key), %reason, "CONNECT refused"),
            }
            let mut connack = ConnAck::new(false, reason);
            connack.properties.server_reference = server_reference;
            connack::put(connack, packet_size_maximum, version, &mut transport.out);
            None
        }
        Err(Refusal { reason: None, .. }) => {
            tracing::info!(%peer, "authentication cancelled");
            None
        }
    }
}

/// Waits until the broker may act. Returns the deadline of CONNECT, to which a pause does not count; `None`: the connection
/// has to end.
async fn wait_for_lease(open: &OpenConnection, deadline: tokio::time::Instant) -> Option<tokio::time::Instant> {
    if open.shared.operations.leadership.holds() {
        return open.shared.may_act().await.then_some(deadline);
    }
    if open.shared.operations.leadership.fenced().is_some() {
        return None;
    }
    tokio::select! {
        may_act = open.shared.may_act() => {
            may_act.then(|| deadline.max(tokio::time::Instant::now() + open.shared.config.connect_timeout()))
        }
        end = open.must_end() => {
            if end == MustEnd::Evicted {
                open.makes_room();
            }
            None
        }
        // A takeover is over by then. The client had better try another server.
        () = tokio::time::sleep(LEASE_PATIENCE) => {
            tracing::debug!(peer = %open.peer, "closing a connection: this node may not act");
            None
        }
    }
}

/// How long a new connection waits until the broker may act.
const LEASE_PATIENCE: std::time::Duration = std::time::Duration::from_secs(3);

enum NoConnect {
    Decode(DecodeError),
    Closed(io::Error),
}

/// Reads CONNECT. A large one is read only after the account of its address has room for it.
async fn read_connect<S: Stream>(
    storage: &Storage,
    transport: &mut Transport<S>,
    decoder: &mut Decoder,
    peer: Peer,
) -> Result<(Box<Connect>, Option<Charge>), NoConnect> {
    let mut charge = None;
    loop {
        match decoder.decode(&mut transport.input) {
            Ok(Decoded::Packet(Packet::Connect(connect))) => return Ok((connect, charge)),
            // The decoder accepts no other packet first.
            Ok(Decoded::Packet(packet)) => {
                return Err(NoConnect::Decode(DecodeError::ConnectExpected(packet.packet_type())));
            }
            Ok(Decoded::NeedMore(missing)) => {
                let size = transport.input.len() + missing;
                if size > FREE_BYTES && charge.is_none() {
                    charge = Some(charge_connect(storage, peer, size).await);
                    transport.input.reserve(missing);
                }
            }
            Err(error) => return Err(NoConnect::Decode(error)),
        }
        match transport.read().await {
            Ok(0) => return Err(NoConnect::Closed(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return Err(NoConnect::Closed(error)),
        }
    }
}

/// Charges a CONNECT to its address as soon as there is room.
async fn charge_connect(storage: &Storage, peer: Peer, bytes: usize) -> Charge {
    let account = storage.memory.account_of(&Identity::anonymous(), Some(peer.address()));
    loop {
        if let Ok(charge) = account.charge(Kind::Input, bytes) {
            return charge;
        }
        tokio::time::sleep(RETRY).await;
    }
}
