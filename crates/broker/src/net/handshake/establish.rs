//! From a CONNECT to an accepted connection.

use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::{ConnAck, Connect, Decoder, NewSession, ProtocolVersion, ReasonCode, ReportCarrier, Text};
use tenbin_session::handshake::Negotiated;
use tenbin_session::{Connection, Role, SessionExpiry};

use super::{Accepted, connack, session};
use crate::auth::{Action, AuthRequest, Principal, Suspect};
use crate::config::Bridge;
use crate::hooks::{Connecting, Events, Granted, Verdict};
use crate::lifecycle::{self, Admission, Beginning, BrokerState, Operations, Routing, Sessions, enforcement};
use crate::memory::{Account, Charge, Kind, OverLimit};
use crate::net::authentication::{self, Authenticated, Refusal, login_refusal};
use crate::net::core::{MustEnd, OpenConnection};
use crate::net::departure::Departure;
use crate::net::hooked::{Hooked, client_of};
use crate::net::member::Member;
use crate::net::reauthentication::Reauthentication;
use crate::net::refill;
use crate::net::stream::Stream;
use crate::net::transport::Transport;
use crate::net::weight::{DEFAULT_WEIGHT, concurrency_in, weight_in};
use crate::registry::{ChargedWill, ConnectionInfo, Lease, Place, session_bytes};
use crate::values::{Bound, Origin, TransportProtocol};

/// A pending client.
pub(super) struct PendingClient {
    pub(super) connect: Connect,
    /// Charge of a large CONNECT to its address, held until it is answered.
    pub(super) charge: Option<Charge>,
    pub(super) decoder: Decoder,
    pub(super) origin: Origin,
    pub(super) listener: Arc<str>,
    /// Deadline of the authentication.
    pub(super) deadline: tokio::time::Instant,
    /// When CONNECT came.
    pub(super) arrived_at: Instant,
}

impl PendingClient {
    /// Authenticates the client, takes or begins its session, and puts CONNACK into the output buffer.
    pub(super) async fn establish<S: Stream>(
        mut self,
        open: &OpenConnection,
        transport: &mut Transport<S>,
    ) -> Result<Accepted, Refusal> {
        let shared = &*open.shared;
        let (client_id, assigned) = self.admit(shared)?;
        self.check_bans(&shared.admission, &client_id, None)?;
        self.ask_hooks(&shared.operations, &client_id)?;
        // The connection's task applies permissions that change from here on.
        let rights_epoch = shared.admission.access.epoch();
        let authenticated = tokio::select! {
            authenticated = self.authenticate(shared, transport, &client_id) => authenticated?,
            end = open.must_end() => return Err(match end {
                MustEnd::Evicted => {
                    open.makes_room();
                    ReasonCode::ServerBusy.into()
                }
                MustEnd::Stopping => ReasonCode::ServerUnavailable.into(),
            }),
        };
        may_act(shared).await?;
        self.check_bans(&shared.admission, &client_id, authenticated.identity.user.as_ref())?;
        if shared.admission.access.is_reserved(client_id.as_str(), &self.listener) {
            let cause = "the client id is for a bridge of the broker";
            return Err(login_refusal(ReasonCode::ClientIdentifierNotValid, cause));
        }
        let report_carriers = shared.admission.connection_settings.report_carriers(&self.listener);
        self.decoder.set_maximum_packet_size(shared.config.packet_bytes_maximum());
        self.decoder.set_extended_pingreq(report_carriers.contains(ReportCarrier::PingReq));
        let Self { mut connect, decoder, origin, listener, arrived_at, charge: _charge, .. } = self;
        let peer = origin.peer;
        let Authenticated { identity, data } = authenticated;
        let principal = Principal { client_id, identity, listener };
        let access = &shared.admission.access;
        if connect.will.as_ref().is_some_and(|will| !access.allows(&principal, Action::Will(&will.topic))) {
            return Err(ReasonCode::NotAuthorized.into());
        }
        // The sender may not take a session over, such as a client of MQTT-SN whose address may be forged.
        let must_be_new = NewSession::is_required(&connect.properties.user_properties);
        if must_be_new && shared.sessions.registry.contains(&principal.client_id) {
            return Err(ReasonCode::ClientIdentifierNotValid.into());
        }
        let mut negotiated =
            connack::negotiate_limits(shared, &connect, &principal.client_id, assigned, data, report_carriers)?;

        let account = shared.storage.memory.account_of(&principal.identity, Some(peer.address()));
        let counted = account.connected();
        let will = charged_will(&shared.routing, &mut connect, &account)?;
        let charge = charge_session(shared, &principal.client_id, &account)?;
        let beginning = Beginning {
            clean_start: connect.clean_start,
            must_be_new,
            expiry: negotiated.session_expiry,
            will: will.as_deref().map(|will| &will.will),
            arrived_at,
        };
        let (mut lease, place) = session::claim(shared, &principal, &beginning, peer).await?;
        may_act(shared).await?;
        let is_renewed = lease.client.rights.renew(principal);
        // A session with suspended subscriptions may have them again.
        let is_reviewed = !is_renewed
            && lease.state.rights_epoch == rights_epoch
            && lease.state.suspended.is_empty()
            && access.changes_with_epoch();
        lease.state.rights_epoch = rights_epoch;
        lease.charge_to(&account, charge);
        (lease, negotiated.connack.session_present) = session::begin(shared, lease, &beginning, place, peer).await?;
        let now = Instant::now();
        // Before its groups give it their backlogs.
        lease.client.load.set_receive_maximum(negotiated.limits.peer_receive_maximum);
        if let Some(concurrency) = concurrency_in(&connect.properties.user_properties, peer) {
            lease.client.load.set_concurrency(concurrency.get());
        }
        let bears_move = connect.version.is_v5()
            && bears_absence(negotiated.session_expiry, will.as_deref().map(|will| will.will.delay_interval));
        lease.client.set_place(if bears_move { open.place() } else { Place::Stays });
        attach(shared, &mut lease, &negotiated, connect.version, is_renewed, is_reviewed, now).await;
        if let Some(roster) = shared.sessions.registry.roster() {
            let keep_alive = negotiated.limits.keep_alive.as_secs() as u16;
            let Origin { peer, transport, .. } = origin;
            let listener = Arc::clone(&lease.client.rights.principal().listener);
            roster.connected(
                lease.client.number,
                ConnectionInfo { listener, peer, transport, version: connect.version, keep_alive, since: now },
            );
        }
        let mut session = session::take(&mut lease);
        session::take_returned(&shared.routing, &lease, &mut session, now);
        let mut connection = Connection::new(Role::Server, connect.version, negotiated.limits, session, now);
        tracing::debug!(
            %peer, client = ?lease.client.id, version = %connect.version, clean_start = connect.clean_start,
            session_present = negotiated.connack.session_present, "connected"
        );
        let packet_size_maximum = negotiated.limits.peer_maximum_packet_size;
        let is_present = negotiated.connack.session_present;
        let mut hooks = Hooked::of(&shared.operations.hooks, is_present, || client_of(&lease, peer, connect.version));
        if let Some(hooks) = &mut hooks {
            show_connack(hooks, &mut negotiated.connack);
        }
        connack::put(negotiated.connack, packet_size_maximum, connect.version, &mut transport.out);
        shared.operations.metrics.packets_received.add(1); // CONNECT
        shared.operations.metrics.packets_sent.add(1);
        let rights = &lease.client.rights;
        connection.resume_but(|delivery| enforcement::is_forbidden(rights, delivery), now, &mut transport.out);
        let weight = weight_in(&connect.properties.user_properties, peer).unwrap_or(DEFAULT_WEIGHT);
        Ok(Accepted {
            departure: Departure::new(will, negotiated.session_expiry),
            reauthentication: Reauthentication::new(method_of(&connect), origin),
            member: Member::new(report_carriers, weight, now),
            lease,
            connection,
            decoder,
            is_bridge: connect.is_bridge,
            counted,
            hooks,
        })
    }

    /// Rejects a client that the broker does not serve; else returns its Client Identifier, and the assigned one if the
    /// client sent none.
    fn admit(&self, shared: &BrokerState) -> Result<(Text, Option<Text>), Refusal> {
        // The address of a datagram may be forged, and its gateway has its rates. A bridge of the broker has no address.
        let is_bridge = Bridge::is_listener(&self.listener);
        let has_no_rate = is_bridge || self.origin.transport == TransportProtocol::MqttSn;
        let address = self.origin.peer.address();
        if !has_no_rate && let Err(bound) = shared.admission.addresses.may_connect(address, Instant::now()) {
            shared.operations.metrics.connects_rate_limited.add(1);
            return Err(Refusal::over(bound, ReasonCode::ConnectionRateExceeded));
        }
        if !is_bridge && !shared.admission.addresses.may_log_in(address, Instant::now()) {
            let refusal = login_refusal(ReasonCode::ConnectionRateExceeded, "too many failed logins of the address");
            return Err(Refusal { bound: Some(Bound::FailuresOfAddress), ..refusal });
        }
        check(shared, &self.connect)?;
        check_sizes(shared, &self.connect)?;
        let (client_id, assigned) = client_id(&shared.sessions, &self.connect)?;
        // Two simultaneous CONNECTs may both take the last place.
        let registry = &shared.sessions.registry;
        if registry.len() >= shared.config.sessions.maximum && !registry.contains(&client_id) {
            return Err(Refusal::over(Bound::Sessions, ReasonCode::QuotaExceeded));
        }
        Ok((client_id, assigned))
    }

    /// Asks hooks whether the client may try to connect.
    fn ask_hooks(&self, operations: &Operations, client_id: &Text) -> Result<(), Refusal> {
        if !operations.hooks.has(Events::CONNECT) {
            return Ok(());
        }
        let connecting = Connecting::new(client_id, &self.connect, &self.origin, &self.listener);
        match operations.hooks.ask(Events::CONNECT, |hooks| hooks.connect(&connecting)) {
            Verdict::Go => Ok(()),
            Verdict::Refuse(reason) if reason.is_error() => Err(reason.into()),
            Verdict::Refuse(_) => Err(ReasonCode::ImplementationSpecificError.into()),
            Verdict::Drop => Err(Refusal::SILENT),
        }
    }

    /// Refuses a client that is banned; `user`: once it is authenticated.
    fn check_bans(&self, admission: &Admission, client_id: &Text, user: Option<&Text>) -> Result<(), Refusal> {
        let user = user.map(Text::as_str);
        let certificate = self.origin.certificate.as_ref().map(|certificate| certificate.fingerprint);
        let address = (!Bridge::is_listener(&self.listener)).then(|| self.origin.peer.address());
        let suspect = Suspect { client_id: client_id.as_str(), user, address, certificate };
        if admission.access.is_banned(&suspect) {
            return Err(login_refusal(ReasonCode::Banned, "banned"));
        }
        Ok(())
    }

    /// Authenticates the client by the credentials in its CONNECT, which it consumes.
    async fn authenticate<S: Stream>(
        &mut self,
        shared: &BrokerState,
        transport: &mut Transport<S>,
        client_id: &Text,
    ) -> Result<Authenticated, Refusal> {
        let request = AuthRequest {
            client_id: client_id.clone(),
            user_name: self.connect.user_name.take(),
            password: self.connect.password.take(),
            origin: self.origin.clone(),
            listener: Arc::clone(&self.listener),
            method: method_of(&self.connect),
            data: self.connect.properties.authentication_data.take(),
            current: None,
        };
        let Self { connect, decoder, deadline, .. } = self;
        authentication::authenticate(shared, transport, decoder, connect, request, *deadline).await
    }
}

/// Waits until the broker may act.
///
/// # Errors
/// It stops.
pub(super) async fn may_act(shared: &BrokerState) -> Result<(), ReasonCode> {
    if shared.may_act().await { Ok(()) } else { Err(ReasonCode::ServerUnavailable) }
}

/// Lets hooks change the CONNACK.
#[cold]
fn show_connack(hooks: &mut Hooked, connack: &mut ConnAck) {
    let properties = &mut connack.properties;
    let mut granted = Granted {
        user_properties: std::mem::take(&mut properties.user_properties),
        reason_string: properties.reason_string.take(),
        response_information: properties.response_information.take(),
        session_present: connack.session_present,
    };
    hooks.session_establish(&mut granted);
    let Granted { user_properties, reason_string, response_information, .. } = granted;
    properties.user_properties = user_properties;
    (properties.reason_string, properties.response_information) = (reason_string, response_information);
}

/// Authentication Method of CONNECT.
fn method_of(connect: &Connect) -> Option<Text> {
    connect.properties.authentication_method.as_ref().map(Text::detach)
}

/// The Will with its charge; none if its topic is illegal.
fn charged_will(
    routing: &Routing,
    connect: &mut Connect,
    account: &Arc<Account>,
) -> Result<Option<Box<ChargedWill>>, OverLimit> {
    let will = connect.will.take().filter(|will| routing.checks.topic(&will.topic).is_ok());
    will.map(|will| ChargedWill::new(&will, account).map(Box::new)).transpose()
}

/// Charges a session; one that exists may exceed the limit.
fn charge_session(shared: &BrokerState, client_id: &Text, account: &Arc<Account>) -> Result<Charge, OverLimit> {
    let bytes = session_bytes(client_id.len(), shared.storage.durable.is_some());
    if shared.sessions.registry.contains(client_id) {
        return Ok(account.charge_always(Kind::Sessions, bytes));
    }
    account.charge(Kind::Sessions, bytes)
}

/// Connects the session's queue: from here on it fills for this connection.
///
/// `is_renewed`: the client's rights may have changed since its last connection. `is_reviewed`: the session has been
/// reviewed by its present rights.
async fn attach(
    shared: &BrokerState,
    lease: &mut Lease,
    negotiated: &Negotiated,
    version: ProtocolVersion,
    is_renewed: bool,
    is_reviewed: bool,
    now: Instant,
) {
    let limits = &negotiated.limits;
    let looks_at_each = shared.operations.hooks.has(Events::PACKET_ENCODE | Events::PACKET_SENT | Events::DROPPED);
    let plain = limits.plain_version(version).filter(|_| !looks_at_each);
    lease.client.outbox.attach(limits.peer_maximum_packet_size, plain);
    if negotiated.connack.session_present {
        if is_renewed {
            shared.routing.router.invalidate(); // cached routes contain the receiver's old permissions
        }
        enforcement::review(&shared.routing, lease, is_reviewed, now);
    }
    refill::read_first_page(&shared.storage, &lease.client).await;
    lifecycle::takes_messages(&shared.routing, lease, now);
}

/// Whether neither the session nor the Will ends while the client connects to another node. A DISCONNECT of the server
/// removes no Will. `will`: its Will Delay Interval, if there is a Will.
fn bears_absence(session: SessionExpiry, will: Option<Option<u32>>) -> bool {
    session.seconds() >= ABSENCE_SECONDS && will.is_none_or(|delay| delay.unwrap_or(0) >= ABSENCE_SECONDS)
}

/// Time in which a client that was sent to another node has connected there.
const ABSENCE_SECONDS: u32 = 10;

/// Rejects a well-formed CONNECT that the broker does not serve.
fn check(shared: &BrokerState, connect: &Connect) -> Result<(), Refusal> {
    if shared.operations.is_stopping() {
        return Err(ReasonCode::ServerUnavailable.into()); // 0x8B is for DISCONNECT only [MQTT-3.2.2-8]
    }
    let Some(will) = &connect.will else { return Ok(()) };
    let over = |reason: ReasonCode| Refusal { bound: shared.routing.checks.bound(&will.topic), ..reason.into() };
    shared.routing.checks.will(will).map_err(over)
}

/// Rejects a well-formed CONNECT with a field above its size limit.
fn check_sizes(shared: &BrokerState, connect: &Connect) -> Result<(), Refusal> {
    if connect.client_id.len() > shared.config.client_id_bytes_maximum() {
        return Err(Refusal::over(Bound::ClientIdBytes, ReasonCode::ClientIdentifierNotValid));
    }
    match &connect.will {
        Some(will) if will.topic.as_bytes().len() + will.payload.len() > shared.config.will_bytes_maximum() => {
            Err(Refusal::over(Bound::WillBytes, ReasonCode::QuotaExceeded))
        }
        _ => Ok(()),
    }
}

/// Returns the Client Identifier, and the assigned one if the client sent none.
fn client_id(sessions: &Sessions, connect: &Connect) -> Result<(Text, Option<Text>), ReasonCode> {
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
        let id = sessions.next_assigned_id(); // [MQTT-3.1.3-6]
        if !sessions.registry.contains(&id) {
            return Ok((id.clone(), Some(id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_moved_only_if_session_and_will_outlive_it() {
        let expiry = SessionExpiry::from_seconds;
        for (session, will, bears) in [
            (expiry(0), None, false),
            (expiry(1), None, false),
            (expiry(10), None, true),
            (expiry(u32::MAX), None, true),
            (expiry(u32::MAX), Some(None), false),
            (expiry(u32::MAX), Some(Some(0)), false),
            (expiry(u32::MAX), Some(Some(9)), false),
            (expiry(u32::MAX), Some(Some(10)), true),
            (expiry(1), Some(Some(10)), false),
        ] {
            assert_eq!(bears_absence(session, will), bears, "{session:?} {will:?}");
        }
    }
}
