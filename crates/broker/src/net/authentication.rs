//! Authentication of a CONNECT: one call of the [`crate::Authenticator`], or an exchange of AUTH packets (extended
//! authentication, MQTT 5.0 §4.12).

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::stream::Stream;
use tenbin_codec::{
    Auth, AuthProperties, Connect, DecodeError, Decoded, Decoder, Packet, PacketType, ReasonCode, Secret, Text,
    WriteBuffer,
};
use tokio::time::{Instant, timeout_at};

use super::transport::Transport;
use crate::auth::{Answer, AuthFuture, AuthRequest, Exchange, Identity, LoginRefusal, Peer};
use crate::lifecycle::{Admission, BrokerState};
use crate::memory::OverLimit;
use crate::values::Bound;

/// A refusal of a client, with its Reason Code.
#[derive(Debug)]
pub(super) struct Refusal {
    /// `None`: close without a packet.
    pub(super) reason: Option<ReasonCode>,
    pub(super) server_reference: Option<Text>,
    /// Set if an authenticator has refused the client.
    pub(super) login: Option<Box<LoginRefusal>>,
    /// Set if a bound refuses the client.
    pub(super) bound: Option<Bound>,
}

/// A login, for the line of the log that tells its refusal.
#[derive(Debug)]
pub(super) struct Login {
    pub(super) peer: Peer,
    pub(super) client_id: Text,
    pub(super) user: Option<Text>,
    pub(super) listener: Arc<str>,
}

impl Login {
    /// Logs the refusal and counts it, also for the address. Other programs read the line: its fields and their order stay.
    pub(super) fn refused(&self, shared: &BrokerState, refusal: &LoginRefusal) {
        shared.operations.metrics.logins_refused.add(1);
        let Self { peer, client_id, user, listener } = self;
        let LoginRefusal { reason, source, cause, user: other } = refusal;
        let user = other.as_ref().or(user.as_ref()).map_or("", Text::as_str);
        tracing::info!(
            %peer, client = ?client_id, ?user, listener = ?&**listener, source = ?&**source, reason = ?&**cause,
            code = %reason, "login refused"
        );
        // Other reasons say nothing of the credentials.
        if [ReasonCode::BadUserNameOrPassword, ReasonCode::NotAuthorized].contains(reason) {
            shared.admission.addresses.failed(peer.address(), std::time::Instant::now());
        }
    }
}

/// Result of a successful authentication.
#[derive(Debug)]
pub(super) struct Authenticated {
    pub(super) identity: Identity,
    /// Last Authentication Data, for CONNACK.
    pub(super) data: Option<Secret>,
}

/// Authenticates a client before `deadline`, and measures how long that takes. Keep Alive applies too.
pub(super) async fn authenticate<S: Stream>(
    shared: &BrokerState,
    transport: &mut Transport<S>,
    decoder: &mut Decoder,
    connect: &Connect,
    request: AuthRequest,
    deadline: Instant,
) -> Result<Authenticated, Refusal> {
    let (listener, mut time) = (Arc::clone(&request.listener), Duration::ZERO);
    let authenticated = exchange(&shared.admission, transport, decoder, connect, request, deadline, &mut time).await;
    let Some(timings) = shared.operations.metrics.timings() else { return authenticated };
    match &authenticated {
        Ok(Authenticated { identity, .. }) => {
            timings.login(&shared.admission.access.source_of(&listener, identity), "accepted", time);
        }
        Err(Refusal { login: Some(login), .. }) => {
            let source = if login.source.is_empty() { &"none".into() } else { &login.source };
            timings.login(source, "refused", time);
        }
        Err(_) => timings.login(&"none".into(), "failed", time),
    }
    authenticated
}

/// Asks the authenticator, and the client if need be. Adds the time of the answers to `time`.
async fn exchange<S: Stream>(
    admission: &Admission,
    transport: &mut Transport<S>,
    decoder: &mut Decoder,
    connect: &Connect,
    request: AuthRequest,
    deadline: Instant,
    time: &mut Duration,
) -> Result<Authenticated, Refusal> {
    let (method, address) = (request.method.clone(), request.origin.peer.address());
    let keep_alive = (connect.keep_alive > 0).then(|| Duration::from_secs(u64::from(connect.keep_alive)) * 3 / 2);
    let answer = admission.access.authenticator().authenticate(request);
    let asked_at = Instant::now();
    let answer = answered(admission, answer, transport, address, deadline).await;
    *time += asked_at.elapsed();
    let mut answer = answer?;
    loop {
        match judge(answer, &method, PacketType::ConnAck)? {
            Judged::Accepted(authenticated) => return Ok(authenticated),
            Judged::Continue(auth, exchange) => {
                let received = keep_alive.map_or(deadline, |keep_alive| deadline.min(Instant::now() + keep_alive));
                put_auth(auth, connect, &mut transport.out)?; // [MQTT-4.12.0-2]
                let data = timeout_at(received, next_auth(transport, decoder, &method)).await;
                let data = data.map_err(|_| Refusal::SILENT)??;
                let asked_at = Instant::now();
                let next = answered(admission, exchange.step(data), transport, address, deadline).await;
                *time += asked_at.elapsed();
                answer = next?;
            }
        }
    }
}

/// Appends AUTH, or refuses a client for which it is too large: no part of it is optional `[MQTT-3.1.2-24]`.
fn put_auth(auth: Auth, connect: &Connect, out: &mut WriteBuffer) -> Result<(), Refusal> {
    let maximum = connect.properties.maximum_packet_size.map_or(u32::MAX, NonZeroU32::get);
    let mut aside = WriteBuffer::new();
    Packet::Auth(Box::new(auth)).encode(connect.version, &mut aside);
    if aside.len() > maximum as usize {
        return Err(ReasonCode::PacketTooLarge.into());
    }
    out.put_payload(&aside.to_bytes());
    Ok(())
}

/// Waits for the authenticator while the client is connected.
///
/// Ends if the connection breaks. Also ends if the client has closed its side, once too many clients of its address
/// have: see `half_closed` of the admission.
async fn answered<S: Stream>(
    admission: &Admission,
    answer: AuthFuture<'_>,
    transport: &mut Transport<S>,
    address: IpAddr,
    deadline: Instant,
) -> Result<Answer, Refusal> {
    let gone = async {
        if transport.closed_early().await.is_err() {
            return Refusal::SILENT;
        }
        let Ok(_place) = admission.half_closed.count(address, None) else {
            return ReasonCode::ServerBusy.into();
        };
        std::future::pending().await
    };
    tokio::select! {
        biased;
        answer = timeout_at(deadline, answer) => answer.map_err(|_| ReasonCode::ServerBusy.into()),
        refusal = gone => Err(refusal),
    }
}

/// An authenticator's answer that conforms to the protocol.
pub(super) enum Judged {
    Accepted(Authenticated),
    /// The AUTH to send, and the exchange for the client's reply.
    Continue(Auth, Box<dyn Exchange>),
}

/// Checks an authenticator's answer against the protocol; `packet` will carry a refusal.
pub(super) fn judge(answer: Answer, method: &Option<Text>, packet: PacketType) -> Result<Judged, Refusal> {
    match answer {
        Answer::Accept { identity, data } => {
            let data = data.filter(|_| method.is_some()); // [MQTT-4.12.0-6]
            Ok(Judged::Accepted(Authenticated { identity, data }))
        }
        Answer::Continue { data, exchange } if method.is_some() => {
            let auth = auth(ReasonCode::ContinueAuthentication, method, data);
            Ok(Judged::Continue(auth, exchange))
        }
        // An authenticator's mistake: without a method the client may not be asked [MQTT-4.12.0-6].
        Answer::Continue { .. } => Err(ReasonCode::ImplementationSpecificError.into()),
        Answer::RefuseLogin(refusal) => Err(fit(Refusal::from(*refusal), packet)),
        Answer::Refuse(reason) => Err(fit(login_refusal(reason, "refused by the authenticator"), packet)),
        Answer::NotMine => {
            Err(fit(login_refusal(ReasonCode::BadAuthenticationMethod, "not known to the authenticator"), packet))
        }
        Answer::UseAnotherServer(server) => {
            Err(Refusal { server_reference: server, ..ReasonCode::UseAnotherServer.into() })
        }
        Answer::ServerMoved(server) => Err(Refusal { server_reference: server, ..ReasonCode::ServerMoved.into() }),
    }
}

/// A refusal by no source.
pub(super) fn login_refusal(reason: ReasonCode, cause: &'static str) -> Refusal {
    LoginRefusal { reason, source: Arc::default(), cause: cause.into(), user: None }.into()
}

/// Replaces a Reason Code that `packet` cannot carry.
fn fit(mut refusal: Refusal, packet: PacketType) -> Refusal {
    let is_legal = |reason: ReasonCode| reason.is_error() && reason.is_valid_in(packet);
    refusal.reason = refusal.reason.map(|reason| if is_legal(reason) { reason } else { ReasonCode::NotAuthorized });
    refusal
}

/// Makes an AUTH packet, which repeats the method `[MQTT-4.12.0-5]`.
pub(super) fn auth(reason: ReasonCode, method: &Option<Text>, data: Option<Secret>) -> Auth {
    let properties = AuthProperties {
        authentication_method: method.clone(),
        authentication_data: data,
        ..AuthProperties::default()
    };
    Auth { reason, properties }
}

/// Returns the data of an AUTH that continues an exchange with the same method.
pub(super) fn continued(auth: Auth, method: &Option<Text>) -> Option<Option<Secret>> {
    let goes_on = auth.reason == ReasonCode::ContinueAuthentication // [MQTT-4.12.0-3]
        && auth.properties.authentication_method == *method; // [MQTT-4.12.0-5]
    goes_on.then_some(auth.properties.authentication_data)
}

/// Writes pending output and reads the client's next AUTH. It may send nothing else but DISCONNECT `[MQTT-3.1.2-30]`.
async fn next_auth<S: Stream>(
    transport: &mut Transport<S>,
    decoder: &mut Decoder,
    method: &Option<Text>,
) -> Result<Option<Secret>, Refusal> {
    // The caller's time-out bounds this.
    transport.flush(Duration::MAX).await.map_err(|_| Refusal::SILENT)?;
    loop {
        match decoder.decode(&mut transport.input) {
            Ok(Decoded::Packet(Packet::Auth(auth))) => {
                return continued(*auth, method).ok_or(ReasonCode::ProtocolError.into());
            }
            Ok(Decoded::Packet(Packet::Disconnect(_))) => return Err(Refusal::SILENT),
            Ok(Decoded::Packet(_)) => return Err(ReasonCode::ProtocolError.into()),
            Ok(Decoded::NeedMore(_)) => {}
            Err(DecodeError::RemainingLength) => return Err(Refusal::SILENT),
            Err(error) if error.reason().is_valid_in(PacketType::ConnAck) => return Err(error.reason().into()),
            Err(_) => return Err(ReasonCode::ProtocolError.into()),
        }
        match transport.read().await {
            Ok(0) | Err(_) => return Err(Refusal::SILENT),
            Ok(_) => {}
        }
    }
}

impl Refusal {
    pub(super) const SILENT: Self = Self { reason: None, server_reference: None, login: None, bound: None };

    /// A refusal by a bound.
    pub(super) fn over(bound: Bound, reason: ReasonCode) -> Self {
        Self { reason: Some(reason), bound: Some(bound), ..Self::SILENT }
    }
}

impl From<OverLimit> for Refusal {
    fn from(OverLimit(bound): OverLimit) -> Self {
        Self::over(bound, ReasonCode::QuotaExceeded)
    }
}

impl From<LoginRefusal> for Refusal {
    fn from(login: LoginRefusal) -> Self {
        Self { reason: Some(login.reason), login: Some(Box::new(login)), ..Self::SILENT }
    }
}

impl From<ReasonCode> for Refusal {
    fn from(reason: ReasonCode) -> Self {
        Self { reason: Some(reason), ..Self::SILENT }
    }
}
