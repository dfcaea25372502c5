//! Re-authentication on a live connection (MQTT 5.0 §4.12.1). The client's other packets are not held up.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tenbin_codec::{Auth, Packet, PacketType, ReasonCode, Text};
use tenbin_session::Violation;

use super::authentication::{Judged, auth, continued, judge, login_refusal};
use super::core::Core;
use super::departure::Departure;
use super::end::End;
use super::gate::DurabilityGate;
use crate::auth::{Answer, AuthFuture, AuthRequest, Exchange, Origin};
use crate::durable::CommitPoint;

/// Re-authentication of a client.
pub(super) struct Reauthentication(
    /// For a client that authenticated by a method; boxed, as few connections need it.
    Option<Box<ReauthenticationState>>,
);

/// State of the exchange.
///
/// ```text
///   Idle ──AUTH 0x19──► Asked ──Continue, AUTH 0x18 to the client──► Waits ──AUTH 0x18──► Asked
///                         ├──Accept──► AUTH 0x00, Idle
///                         └──Refuse──► DISCONNECT
/// ```
struct ReauthenticationState {
    /// The method of CONNECT.
    method: Option<Text>,
    origin: Origin,
    stage: ReauthenticationStage,
}

enum ReauthenticationStage {
    Idle,
    /// Waiting for the authenticator.
    Asked(AuthFuture<'static>),
    /// Waiting for the client's AUTH.
    Waits(Box<dyn Exchange>),
}

impl Reauthentication {
    /// Re-authentication by the method of CONNECT; without one AUTH is illegal.
    pub(super) fn new(method: Option<Text>, origin: Origin) -> Self {
        Self(method.map(|method| {
            Box::new(ReauthenticationState { method: Some(method), origin, stage: ReauthenticationStage::Idle })
        }))
    }

    /// Returns the authenticator's answer once there is one.
    #[inline]
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        match self.0.as_mut().map(|state| &mut state.stage) {
            Some(ReauthenticationStage::Asked(answer)) => answer.as_mut().poll(context),
            Some(ReauthenticationStage::Idle | ReauthenticationStage::Waits(_)) | None => Poll::Pending,
        }
    }

    /// Handles an AUTH from the client.
    pub(super) fn received(&mut self, core: &Core, auth: Auth) -> Result<(), End> {
        let violation = || End::Violation(Violation::Unexpected(PacketType::Auth));
        let Some(state) = &mut self.0 else {
            return Err(violation()); // [MQTT-4.12.0-7]
        };
        let method = state.method.clone();
        state.stage = match std::mem::replace(&mut state.stage, ReauthenticationStage::Idle) {
            ReauthenticationStage::Idle => {
                let is_legal =
                    auth.reason == ReasonCode::ReAuthenticate && auth.properties.authentication_method == method; // [MQTT-4.12.1-1]
                if !is_legal {
                    return Err(violation());
                }
                let principal = core.lease.client.rights.principal();
                let request = AuthRequest {
                    client_id: principal.client_id.clone(),
                    user_name: None,
                    password: None,
                    origin: state.origin.clone(),
                    listener: Arc::clone(&principal.listener),
                    method,
                    data: auth.properties.authentication_data,
                    current: Some(principal.identity.clone()),
                };
                let authenticator = Arc::clone(core.open.shared.admission.access.authenticator());
                ReauthenticationStage::Asked(Box::pin(async move { authenticator.authenticate(request).await }))
            }
            ReauthenticationStage::Waits(exchange) => {
                let data = continued(auth, &method).ok_or_else(violation)?;
                ReauthenticationStage::Asked(exchange.step(data))
            }
            ReauthenticationStage::Asked(_) => return Err(violation()), // the client may not send AUTH now
        };
        Ok(())
    }

    /// Handles the authenticator's answer. AUTH with Reason Code 0x00 waits until changed rights are durable, so that a
    /// crash does not bring the earlier ones back.
    pub(super) fn answered(
        &mut self,
        core: &mut Core,
        gate: &mut DurabilityGate,
        departure: &Departure,
        answer: Answer,
        now: Instant,
    ) -> Result<(), End> {
        let Some(state) = &mut self.0 else { return Ok(()) }; // no authenticator was asked
        let method = state.method.clone();
        let judged = judge(answer, &method, PacketType::Disconnect).map_err(End::Refused)?; // [MQTT-4.12.1-2]
        let mut commit_point = CommitPoint::NOW;
        let (reply, stage) = match judged {
            Judged::Continue(auth, exchange) => (auth, ReauthenticationStage::Waits(exchange)),
            Judged::Accepted(authenticated) => {
                let rights = &core.lease.client.rights;
                // The session belongs to its user.
                if !rights.is_same_user(&authenticated.identity) {
                    let refusal = login_refusal(ReasonCode::NotAuthorized, "another user than before");
                    return Err(End::Refused(refusal));
                }
                if rights.renew_identity(authenticated.identity) {
                    // Routes and the session were made by the rights before: the caller applies the new ones.
                    core.open.shared.routing.router.invalidate();
                    core.lease.state.rights_epoch = NO_EPOCH;
                    commit_point = departure.store(core);
                }
                (auth(ReasonCode::Success, &method, authenticated.data), ReauthenticationStage::Idle)
            }
        };
        state.stage = stage;
        gate.answer(core, commit_point, Packet::Auth(Box::new(reply)), now)
    }
}

/// Epoch of a session whose rights are to be applied again; the broker's begin at 1.
const NO_EPOCH: u64 = 0;
