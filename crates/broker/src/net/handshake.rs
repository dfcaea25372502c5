//! From an open socket to an accepted CONNECT.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tenbin_balancer::Rng;
use tenbin_codec::{ConnAck, Connect, DecodeError, Decoded, Decoder, Packet, ProtocolVersion, ReasonCode, Text, Will};
use tenbin_session::handshake::negotiate;
use tenbin_session::{Connection, Role, SessionExpiry};
use tokio::io::{AsyncRead, AsyncWrite};

use super::transport::Transport;
use crate::lifecycle;
use crate::registry::Lease;
use crate::shared::Shared;

/// A connection whose CONNECT was accepted; its CONNACK waits to be written.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) lease: Lease,
    pub(super) connection: Connection,
    pub(super) decoder: Decoder,
    pub(super) will: Option<Will>,
    pub(super) session_expiry: SessionExpiry,
}

/// Reads CONNECT and answers it. `None`: the connection is to be closed; what is to be said is in
/// `transport.out`.
pub(super) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    shared: &Shared,
    transport: &mut Transport<S>,
    peer: SocketAddr,
) -> Option<Accepted> {
    let mut decoder = Decoder::server(shared.config.connect_packet_bytes_maximum());
    decoder.set_user_properties_maximum(shared.config.user_properties_maximum());
    let timeout = shared.config.connect_timeout();
    let connect = tokio::select! {
        connect = tokio::time::timeout(timeout, read_connect(transport, &mut decoder)) => connect,
        () = shared.stopped() => return None,
    };
    let connect = match connect {
        Ok(Ok(connect)) => connect,
        Ok(Err(NoConnect::Decode(error))) => {
            shared.metrics.violations.add(1);
            tracing::info!(%peer, %error, "no legal CONNECT");
            answer_illegal_connect(error, decoder.version(), transport);
            return None;
        }
        Ok(Err(NoConnect::Closed(error))) => {
            tracing::debug!(%peer, %error, "closed before CONNECT");
            return None;
        }
        Err(_) => {
            tracing::info!(%peer, ?timeout, "no CONNECT in time");
            return None;
        }
    };
    decoder.set_maximum_packet_size(shared.config.packet_bytes_maximum());
    let version = connect.version;
    match establish(shared, *connect, decoder, transport, peer).await {
        Ok(accepted) => Some(accepted),
        Err(reason) => {
            tracing::info!(%peer, %reason, "CONNECT refused");
            Packet::ConnAck(Box::new(ConnAck::new(false, reason))).encode(version, &mut transport.out);
            None
        }
    }
}

enum NoConnect {
    Decode(DecodeError),
    Closed(io::Error),
}

async fn read_connect<S: AsyncRead + AsyncWrite + Unpin>(
    transport: &mut Transport<S>,
    decoder: &mut Decoder,
) -> Result<Box<Connect>, NoConnect> {
    loop {
        match decoder.decode(&mut transport.input) {
            Ok(Decoded::Packet(Packet::Connect(connect))) => return Ok(connect),
            // The decoder lets nothing but CONNECT through at first.
            Ok(Decoded::Packet(packet)) => {
                return Err(NoConnect::Decode(DecodeError::ConnectExpected(packet.packet_type())));
            }
            Ok(Decoded::NeedMore(_)) => {}
            Err(error) => return Err(NoConnect::Decode(error)),
        }
        match transport.read().await {
            Ok(0) => return Err(NoConnect::Closed(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return Err(NoConnect::Closed(error)),
        }
    }
}

async fn establish<S>(
    shared: &Shared,
    connect: Connect,
    decoder: Decoder,
    transport: &mut Transport<S>,
    peer: SocketAddr,
) -> Result<Accepted, ReasonCode> {
    if !shared.admission.may_connect(peer.ip(), Instant::now()) {
        shared.metrics.connects_rate_limited.add(1);
        return Err(ReasonCode::ConnectionRateExceeded);
    }
    check(shared, &connect)?;
    check_sizes(shared, &connect)?;
    let (client_id, assigned) = client_id(shared, &connect)?;
    // Two that come at once may both take the last place.
    if shared.registry.len() >= shared.config.sessions.maximum && !shared.registry.contains(&client_id) {
        return Err(ReasonCode::QuotaExceeded);
    }
    let mut negotiated = negotiate(&connect, &shared.capabilities, false, assigned)?;
    let in_flight = shared.config.in_flight_maximum();
    negotiated.limits.peer_receive_maximum = negotiated.limits.peer_receive_maximum.min(in_flight);

    let new_client = |number| shared.new_client(&client_id, number, Instant::now());
    let claimed = shared.registry.claim(&client_id, new_client).await;
    let mut lease = claimed.map_err(|_superseded| ReasonCode::ServerBusy)?;
    let now = Instant::now();
    negotiated.connack.session_present = lifecycle::begin(shared, &mut lease, connect.clean_start, now);
    lease.client.outbox.attach(negotiated.limits.peer_maximum_packet_size);
    let subscriptions = lease.state.subscriptions.keys();
    shared.router.connected(subscriptions, now, &mut Rng::new(lease.client.number));
    let session = std::mem::take(&mut lease.state.session);
    let mut connection = Connection::new(Role::Server, connect.version, negotiated.limits, session, now);
    tracing::debug!(
        %peer, client = ?client_id, version = %connect.version, clean_start = connect.clean_start,
        session_present = negotiated.connack.session_present, "connected"
    );
    Packet::ConnAck(Box::new(negotiated.connack)).encode(connect.version, &mut transport.out);
    shared.metrics.packets_received.add(1); // CONNECT
    shared.metrics.packets_sent.add(1);
    connection.resume(now, &mut transport.out);
    Ok(Accepted {
        lease,
        connection,
        decoder,
        will: connect.will.as_ref().map(Will::detach),
        session_expiry: negotiated.session_expiry,
    })
}

/// What of a well-formed CONNECT is not served.
fn check(shared: &Shared, connect: &Connect) -> Result<(), ReasonCode> {
    if shared.is_stopping() {
        return Err(ReasonCode::ServerUnavailable);
    }
    if connect.properties.authentication_method.is_some() {
        return Err(ReasonCode::BadAuthenticationMethod); // [MQTT-4.12.0-1]
    }
    if let Some(will) = &connect.will
        && !shared.may_publish(&will.topic)
    {
        return Err(ReasonCode::TopicNameInvalid);
    }
    Ok(())
}

/// What of a well-formed CONNECT is too large.
fn check_sizes(shared: &Shared, connect: &Connect) -> Result<(), ReasonCode> {
    if connect.client_id.len() > shared.config.client_id_bytes_maximum() {
        return Err(ReasonCode::ClientIdentifierNotValid);
    }
    match &connect.will {
        Some(will) if will.topic.as_bytes().len() + will.payload.len() > shared.config.will_bytes_maximum() => {
            Err(ReasonCode::QuotaExceeded)
        }
        _ => Ok(()),
    }
}

/// The Client Identifier, and the one that was assigned if the client sent none.
fn client_id(shared: &Shared, connect: &Connect) -> Result<(Text, Option<Text>), ReasonCode> {
    if !connect.client_id.is_empty() {
        return Ok((connect.client_id.detach(), None));
    }
    if connect.version == ProtocolVersion::V311 && !connect.clean_start {
        return Err(ReasonCode::ClientIdentifierNotValid); // 3.1.1 [MQTT-3.1.3-8]
    }
    loop {
        let id = shared.next_assigned_id(); // [MQTT-3.1.3-6]
        if !shared.registry.contains(&id) {
            return Ok((id.clone(), Some(id)));
        }
    }
}

/// Tells a peer whose CONNECT is illegal what may be told, in the form that its speaker knows.
fn answer_illegal_connect<S>(error: DecodeError, version: Option<ProtocolVersion>, transport: &mut Transport<S>) {
    let version = match error {
        DecodeError::ProtocolVersion(level) if level < 5 => Some(ProtocolVersion::V311),
        DecodeError::ProtocolVersion(_) => Some(ProtocolVersion::V5), // [MQTT-3.1.2-2]
        _ => version,
    };
    // A stranger that does not even speak MQTT gets no answer; 3.1.1 has no code for a malformed packet.
    if let Some(version) = version {
        Packet::ConnAck(Box::new(ConnAck::new(false, error.reason()))).encode(version, &mut transport.out);
    }
}
