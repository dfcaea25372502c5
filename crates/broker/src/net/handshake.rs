//! The handshake: from an accepted socket to an accepted CONNECT.

use std::io;
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stream::Stream;
use tenbin_codec::{
    ConnAck, Connect, DecodeError, Decoded, Decoder, Packet, ProtocolVersion, ReasonCode, ReportCarrier,
    ReportCarriers, Text, WriteBuffer,
};
use tenbin_session::handshake::negotiate;
use tenbin_session::{Connection, Restored, Role, Session, SessionExpiry};

use super::arrival::{FREE_BYTES, RETRY};
use super::authentication::{self, Refusal};
use super::reauthentication::Reauthentication;
use super::storing;
use super::transport::Transport;
use super::weight::{DEFAULT_WEIGHT, weight_in};
use crate::auth::{Action, AuthRequest, Identity, Principal, Standing};
use crate::durable::{CommitPoint, Stored, UnderWay, place};
use crate::lifecycle::{self, Beginning, Begun, BrokerState, NotBegun, enforcement};
use crate::memory::{Charge, Kind, OverLimit};
use crate::registry::{ChargedWill, Claimed, Lease, NoClaim, OverQuota, session_bytes};

/// A connection whose CONNECT was accepted. Its CONNACK is in the output buffer.
pub(super) struct Accepted {
    pub(super) lease: Lease,
    pub(super) connection: Connection,
    pub(super) decoder: Decoder,
    pub(super) will: Option<Box<ChargedWill>>,
    pub(super) session_expiry: SessionExpiry,
    pub(super) reauthentication: Option<Box<Reauthentication>>,
    pub(super) report_carriers: ReportCarriers,
    /// Weight of subscriptions that state no other.
    pub(super) weight: NonZeroU16,
    /// Messages sent before this time were sent on an earlier connection.
    pub(super) established_at: Instant,
}

/// Reads CONNECT and answers it. `None`: the connection is to be closed after `transport.out` is written.
pub(super) async fn accept<S: Stream>(
    shared: &BrokerState,
    transport: &mut Transport<S>,
    peer: SocketAddr,
    listener: Arc<str>,
) -> Option<Accepted> {
    let mut decoder = Decoder::server(shared.config.connect_packet_bytes_maximum());
    decoder.set_user_properties_maximum(shared.config.user_properties_maximum());
    decoder.set_filters_maximum(shared.config.filters_per_packet_maximum() as u32 * FILTERS_DECODED);
    let timeout = shared.config.connect_timeout();
    let deadline = tokio::time::Instant::now() + timeout;
    let connect = tokio::select! {
        connect = tokio::time::timeout_at(deadline, read_connect(shared, transport, &mut decoder, peer)) => connect,
        () = shared.stopped() => return None,
    };
    let (connect, charge) = match connect {
        Ok(Ok(read)) => read,
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
    let version = connect.version;
    let packet_size_maximum = connect.properties.maximum_packet_size.map_or(u32::MAX, NonZeroU32::get);
    let client = PendingClient { connect: *connect, charge, decoder, peer, listener, deadline };
    match establish(shared, client, transport).await {
        Ok(accepted) => Some(accepted),
        Err(Refusal { reason: Some(reason), server_reference }) => {
            tracing::info!(%peer, %reason, "CONNECT refused");
            let mut connack = ConnAck::new(false, reason);
            connack.properties.server_reference = server_reference;
            put_connack(connack, packet_size_maximum, version, &mut transport.out);
            None
        }
        Err(Refusal { reason: None, .. }) => {
            tracing::info!(%peer, "authentication broken off");
            None
        }
    }
}

enum NoConnect {
    Decode(DecodeError),
    Closed(io::Error),
}

/// Reads CONNECT. A large one is read only after the account of its address has room for it.
async fn read_connect<S: Stream>(
    shared: &BrokerState,
    transport: &mut Transport<S>,
    decoder: &mut Decoder,
    peer: SocketAddr,
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
                    charge = Some(charge_connect(shared, peer, size).await);
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
async fn charge_connect(shared: &BrokerState, peer: SocketAddr, bytes: usize) -> Charge {
    let account = shared.memory.account_of(&Identity::anonymous(), Some(peer.ip()));
    loop {
        if let Ok(charge) = account.charge(Kind::Input, bytes) {
            return charge;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// A pending client.
struct PendingClient {
    connect: Connect,
    /// Charge of a large CONNECT to its address, held until it is answered.
    charge: Option<Charge>,
    decoder: Decoder,
    peer: SocketAddr,
    listener: Arc<str>,
    /// Deadline of the authentication.
    deadline: tokio::time::Instant,
}

async fn establish<S: Stream>(
    shared: &BrokerState,
    client: PendingClient,
    transport: &mut Transport<S>,
) -> Result<Accepted, Refusal> {
    let PendingClient { mut connect, charge: _charge, mut decoder, peer, listener, deadline } = client;
    let arrived_at = Instant::now();
    if !shared.admission.may_connect(peer.ip(), Instant::now()) {
        shared.metrics.connects_rate_limited.add(1);
        return Err(ReasonCode::ConnectionRateExceeded.into());
    }
    check(shared, &connect)?;
    check_sizes(shared, &connect)?;
    let (client_id, assigned) = client_id(shared, &connect)?;
    // Two simultaneous CONNECTs may both take the last place.
    if shared.registry.len() >= shared.config.sessions.maximum && !shared.registry.contains(&client_id) {
        return Err(ReasonCode::QuotaExceeded.into());
    }
    let method = connect.properties.authentication_method.as_ref().map(Text::detach);
    let request = AuthRequest {
        client_id: client_id.clone(),
        user_name: connect.user_name.take(),
        password: connect.password.take(),
        peer,
        listener: Arc::clone(&listener),
        method: method.clone(),
        data: connect.properties.authentication_data.take(),
        current: None,
    };
    // The connection's task applies permissions that change from here on.
    let rights_epoch = shared.access.epoch();
    let authenticated = tokio::select! {
        authenticated = authentication::authenticate(shared, transport, &mut decoder, &connect, request, deadline) => {
            authenticated?
        }
        () = shared.stopped() => return Err(ReasonCode::ServerUnavailable.into()),
    };
    decoder.set_maximum_packet_size(shared.config.packet_bytes_maximum());
    let report_carriers = shared.report_carriers.of(&listener);
    decoder.set_extended_pingreq(report_carriers.contains(ReportCarrier::PingReq));
    let principal = Principal { client_id, identity: authenticated.identity, listener };
    let will_topic = connect.will.as_ref().map(|will| &will.topic);
    if will_topic.is_some_and(|topic| !shared.access.allows(&principal, Action::Will(topic))) {
        return Err(ReasonCode::NotAuthorized.into());
    }
    let mut negotiated = negotiate(&connect, &shared.capabilities, false, assigned)?;
    negotiated.connack.properties.response_information = response_information(shared, &connect, &principal.client_id);
    negotiated.connack.properties.authentication_method = method.clone(); // [MQTT-4.12.0-5]
    negotiated.connack.properties.authentication_data = authenticated.data;
    // Only on request: some clients cannot read a CONNACK with User Properties.
    let is_asked = ReportCarriers::are_asked_for(&connect.properties.user_properties);
    let told = report_carriers.to_property().filter(|_| is_asked);
    negotiated.connack.properties.user_properties.extend(told);
    // Check this before any change: a client that accepts no CONNACK gets no connection.
    let packet_size_maximum = negotiated.limits.peer_maximum_packet_size;
    if !put_connack(negotiated.connack.clone(), packet_size_maximum, connect.version, &mut WriteBuffer::new()) {
        return Err(ReasonCode::PacketTooLarge.into());
    }
    let in_flight = shared.config.in_flight_maximum();
    negotiated.limits.peer_receive_maximum = negotiated.limits.peer_receive_maximum.min(in_flight);

    let account = shared.memory.account_of(&principal.identity, Some(peer.ip()));
    let will = connect.will.take().filter(|will| shared.check_topic(&will.topic).is_ok());
    let will = will.map(|will| ChargedWill::new(&will, &account).map(Box::new)).transpose();
    let will = will.map_err(|OverLimit| ReasonCode::QuotaExceeded)?;
    let bytes = session_bytes(principal.client_id.len(), shared.durable.is_some());
    let charge = match shared.registry.contains(&principal.client_id) {
        true => account.charge_always(Kind::Sessions, bytes),
        false => account.charge(Kind::Sessions, bytes).map_err(|OverLimit| ReasonCode::QuotaExceeded)?,
    };
    let new_client = |number| shared.new_client(&principal, number, Instant::now());
    let (clean_start, expiry) = (connect.clean_start, negotiated.session_expiry);
    let beginning = Beginning { clean_start, expiry, will: will.as_deref().map(|will| &will.will), arrived_at };
    let mut place = None;
    let mut lease = loop {
        match shared.registry.claim(&principal, new_client).await {
            Ok(Claimed::Ours(lease)) => break lease,
            Ok(Claimed::ToEnd(lease)) => {
                let now = Instant::now();
                // Displace no session for a user removed meanwhile.
                if shared.access.standing(&principal) != Standing::Current {
                    lifecycle::give_back(shared, lease, now).await;
                    return Err(ReasonCode::NotAuthorized.into());
                }
                // Nor for a user who is refused.
                match lifecycle::may_displace(shared, &lease, &beginning, peer.ip()) {
                    Ok(counted) => place = counted,
                    Err(refusal) => return Err(not_begun(shared, lease, peer, refusal, now).await.into()),
                }
                lifecycle::displace(shared, lease, now).await;
            }
            Err(NoClaim::Superseded) => return Err(ReasonCode::ServerBusy.into()),
            Ok(Claimed::Others(lease)) => {
                lifecycle::give_back(shared, lease, Instant::now()).await;
                return Err(not_ours(peer, &principal.client_id).into());
            }
            Err(NoClaim::NotOurs) => return Err(not_ours(peer, &principal.client_id).into()),
        }
    };
    let now = Instant::now();
    let is_renewed = lease.client.rights.renew(principal);
    lease.state.rights_epoch = rights_epoch;
    lease.charge_to(&account, charge);
    let may_begin = match lifecycle::may_begin(shared, &lease, &beginning) {
        true => lifecycle::count(shared, &mut lease, &beginning, peer.ip(), place).map_err(NotBegun::OverQuota),
        false => Err(NotBegun::CannotBeKept),
    };
    if let Err(refusal) = may_begin {
        return Err(not_begun(shared, lease, peer, refusal, now).await.into());
    }
    let begun = lifecycle::begin(shared, &mut lease, &beginning, now).await;
    negotiated.connack.session_present = begun.interrupted.is_some();
    if lease.state.has_unread && !read_under_way(shared, &mut lease).await {
        tracing::error!(%peer, client = ?lease.client.id, "messages under way cannot be read, so that their session is not gone on with");
        lifecycle::refuse(shared, lease, begun.interrupted, now).await;
        return Err(ReasonCode::ServerUnavailable.into());
    }
    let mut lease = wait_until_safe(shared, lease, begun, peer).await?;
    let now = Instant::now();
    lease
        .client
        .outbox
        .attach(negotiated.limits.peer_maximum_packet_size, negotiated.limits.plain_version(connect.version));
    if negotiated.connack.session_present {
        if is_renewed {
            shared.router.invalidate(); // cached routes contain the receiver's old permissions
        }
        enforcement::review(shared, &mut lease, now);
    }
    storing::read_first_page(shared, &lease.client).await;
    lifecycle::takes_messages(shared, &lease, now);
    let session = lease.state.session.take().map_or_else(|| new_session(&lease), |session| *session);
    let mut connection = Connection::new(Role::Server, connect.version, negotiated.limits, session, now);
    tracing::debug!(
        %peer, client = ?lease.client.id, version = %connect.version, clean_start = connect.clean_start,
        session_present = negotiated.connack.session_present, "connected"
    );
    put_connack(negotiated.connack, packet_size_maximum, connect.version, &mut transport.out);
    shared.metrics.packets_received.add(1); // CONNECT
    shared.metrics.packets_sent.add(1);
    connection.resume(now, &mut transport.out);
    Ok(Accepted {
        will,
        session_expiry: negotiated.session_expiry,
        reauthentication: method.map(|method| Box::new(Reauthentication::new(method))),
        weight: weight_in(&connect.properties.user_properties, peer).unwrap_or(DEFAULT_WEIGHT),
        established_at: now,
        lease,
        connection,
        decoder,
        report_carriers,
    })
}

fn not_ours(peer: SocketAddr, client_id: &Text) -> ReasonCode {
    tracing::info!(%peer, client = ?client_id, "the Client Identifier is another user's");
    ReasonCode::NotAuthorized
}

/// Returns the lease of a session that does not begin; logs the reason and returns it for CONNACK.
async fn not_begun(
    shared: &BrokerState,
    lease: Lease,
    peer: SocketAddr,
    refusal: NotBegun,
    now: Instant,
) -> ReasonCode {
    let reason = match refusal {
        NotBegun::CannotBeKept => {
            tracing::info!(%peer, client = ?lease.client.id, "session cannot be kept, so that it is not begun");
            ReasonCode::ServerUnavailable
        }
        NotBegun::OverQuota(OverQuota { key }) => {
            tracing::info!(%peer, client = ?lease.client.id, "session refused: the address has sessions.{key} sessions");
            ReasonCode::QuotaExceeded
        }
    };
    lifecycle::give_back(shared, lease, now).await;
    reason
}

/// A fresh session; a durable one if the broker stores it.
fn new_session(lease: &Lease) -> Session {
    if lease.state.durable.is_some() { Session::stored() } else { Session::new() }
}

/// Restores in-flight messages of the broker's last run; returns whether it could.
async fn read_under_way(shared: &BrokerState, lease: &mut Lease) -> bool {
    let Some((durable, queue)) = shared.durable.as_ref().zip(lease.client.outbox.stored()) else { return true };
    let Ok(Some(under_way)) = durable.read_under_way(&queue).await else { return false };
    lease.state.has_unread = false;
    let now = Instant::now();
    let session = lease.state.session.get_or_insert_with(|| Box::new(Session::stored()));
    let mut done = Vec::new();
    for UnderWay { id, stored, delivery } in under_way {
        let restored = delivery.map_or(Restored::Released(stored), Restored::Published);
        if !session.restore_sent(id, restored, now) {
            tracing::error!(client = ?lease.client.id, packet_id = %id.packet_id, "two messages under way have one identifier");
            done.push(place(queue.id(), Stored::of(stored).sequence()));
        }
    }
    durable.done(done);
    true
}

/// Waits for the commit point of all facts in CONNACK. On failure the connection ends without a session.
async fn wait_until_safe(
    shared: &BrokerState,
    lease: Lease,
    begun: Begun,
    peer: SocketAddr,
) -> Result<Lease, ReasonCode> {
    if begun.commit_point == CommitPoint::NOW {
        return Ok(lease);
    }
    let reason = tokio::select! {
        biased;
        () = shared.safe(begun.commit_point) => return Ok(lease),
        () = safe_but_for_the_session(shared, &begun) => return Ok(lease),
        () = lease.superseded() => ReasonCode::ServerBusy,
        () = shared.stopped() => ReasonCode::ServerUnavailable,
        () = tokio::time::sleep(shared.config.connect_timeout()) => ReasonCode::ServerUnavailable,
    };
    tracing::info!(%peer, client = ?lease.client.id, "session cannot be kept, so that it is not begun");
    lifecycle::refuse(shared, lease, begun.interrupted, Instant::now()).await;
    Err(reason)
}

/// Waits until all is durable except changes of a stored session, provided that the disk cannot write these.
async fn safe_but_for_the_session(shared: &BrokerState, begun: &Begun) {
    let Some(durable) = shared.durable.as_ref().filter(|_| begun.may_be_unwritten) else {
        return std::future::pending().await;
    };
    shared.safe(begun.settled_at).await;
    while !durable.is_failing() {
        tokio::time::sleep(LOOKED_AGAIN).await;
    }
}

/// Rejects a well-formed CONNECT that the broker does not serve.
fn check(shared: &BrokerState, connect: &Connect) -> Result<(), ReasonCode> {
    if shared.is_stopping() {
        return Err(ReasonCode::ServerUnavailable); // 0x8B is for DISCONNECT only [MQTT-3.2.2-8]
    }
    if let Some(will) = &connect.will {
        shared.check_will(will)?;
    }
    Ok(())
}

/// Rejects a well-formed CONNECT with a field above its size limit.
fn check_sizes(shared: &BrokerState, connect: &Connect) -> Result<(), ReasonCode> {
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

/// Returns the Client Identifier, and the assigned one if the client sent none.
fn client_id(shared: &BrokerState, connect: &Connect) -> Result<(Text, Option<Text>), ReasonCode> {
    if !connect.client_id.is_empty() {
        return Ok((connect.client_id.detach(), None));
    }
    // 3.1.1: [MQTT-3.1.3-8]. MQTT 3.1 has no empty identifiers.
    let may_be_empty = match connect.version {
        ProtocolVersion::V31 => false,
        ProtocolVersion::V311 => connect.clean_start,
        ProtocolVersion::V5 => true,
    };
    if !may_be_empty {
        return Err(ReasonCode::ClientIdentifierNotValid);
    }
    loop {
        let id = shared.next_assigned_id(); // [MQTT-3.1.3-6]
        if !shared.registry.contains(&id) {
            return Ok((id.clone(), Some(id)));
        }
    }
}

/// Answers an illegal CONNECT in the format that its sender knows, if an answer is permitted.
fn answer_illegal_connect<S>(error: DecodeError, version: Option<ProtocolVersion>, transport: &mut Transport<S>) {
    let version = match error {
        // In the format of the requested version, if there is one.
        DecodeError::ProtocolVersion(3 | 4) => Some(ProtocolVersion::V311),
        DecodeError::ProtocolVersion(_) => Some(ProtocolVersion::V5), // [MQTT-3.1.2-2]
        // A guesser of credentials learns nothing. Without the end of the packet no answer is possible.
        DecodeError::Credentials | DecodeError::RemainingLength => None,
        _ => version,
    };
    // A peer that does not speak MQTT gets no answer; 3.1.1 has no code for a malformed packet.
    if let Some(version) = version {
        refuse(error.reason(), Some(error.to_string()), u32::MAX, version, &mut transport.out);
    }
}

/// Appends a CONNACK that refuses the client `[MQTT-3.2.2-6]`.
///
/// Omits the reason string `words` if the packet is too large for the client `[MQTT-3.2.2-19]`. Appends nothing if it
/// still is `[MQTT-3.1.2-24]`.
fn refuse(
    reason: ReasonCode,
    words: Option<String>,
    packet_size_maximum: u32,
    version: ProtocolVersion,
    out: &mut WriteBuffer,
) {
    let mut connack = ConnAck::new(false, reason);
    connack.properties.reason_string = words.and_then(|words| Text::try_from(words).ok());
    put_connack(connack, packet_size_maximum, version, out);
}

/// Appends CONNACK; returns `false` and writes nothing if it is too large for the client `[MQTT-3.1.2-24]`.
///
/// First leaves out Reason String, User Properties `[MQTT-3.2.2-19]`, `[MQTT-3.2.2-20]` and Response Information. The
/// other properties bind the client.
fn put_connack(
    mut connack: ConnAck,
    packet_size_maximum: u32,
    version: ProtocolVersion,
    out: &mut WriteBuffer,
) -> bool {
    for _ in 0..2 {
        let mut aside = WriteBuffer::new();
        Packet::ConnAck(Box::new(connack.clone())).encode(version, &mut aside);
        if aside.len() <= packet_size_maximum as usize {
            out.put_payload(&aside.to_bytes());
            return true;
        }
        connack.properties.reason_string = None;
        connack.properties.user_properties.clear();
        connack.properties.response_information = None;
    }
    false
}

/// Response Information (MQTT 5.0 §4.10.1): a topic prefix that no other client gets.
fn response_information(shared: &BrokerState, connect: &Connect, client_id: &Text) -> Option<Text> {
    let levels = &shared.config.capabilities.response_information;
    let is_asked_for = connect.properties.request_response_information == Some(true); // [MQTT-3.1.2-28]
    let is_one_level = !client_id.as_bytes().iter().any(|byte| matches!(byte, b'/' | b'+' | b'#'));
    if levels.is_empty() || !is_asked_for || !is_one_level {
        return None;
    }
    Text::try_from(format!("{levels}/{client_id}")).ok()
}

/// A packet may hold this many times the configured number of filters; the broker refuses the excess one by one.
const FILTERS_DECODED: u32 = 10;

/// Interval at which a pending client checks whether the disk fails.
const LOOKED_AGAIN: Duration = Duration::from_millis(50);
