//! Re-authentication on a live connection (MQTT 5.0 §4.12.1). The client's other packets go on meanwhile.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tenbin_codec::{Auth, Packet, PacketType, ReasonCode, Text};
use tenbin_session::Violation;

use super::authentication::{Judged, Refusal, auth, continued, judge};
use super::connection::ConnectionTask;
use super::ending::End;
use super::stream::Stream;
use crate::auth::{Answer, AuthFuture, AuthRequest, Exchange};

/// State of the exchange.
///
/// ```text
///   Idle ──AUTH 0x19──► Asked ──Continue, AUTH 0x18 to the client──► Waits ──AUTH 0x18──► Asked
///                         ├──Accept──► AUTH 0x00, Idle
///                         └──Refuse──► DISCONNECT
/// ```
pub(super) struct Reauthentication {
    /// The method of CONNECT; without one AUTH is illegal.
    method: Option<Text>,
    stage: Stage,
}

enum Stage {
    Idle,
    /// Waiting for the authenticator.
    Asked(AuthFuture<'static>),
    /// Waiting for the client's AUTH.
    Waits(Box<dyn Exchange>),
}

impl Reauthentication {
    pub(super) fn new(method: Text) -> Self {
        Self { method: Some(method), stage: Stage::Idle }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        match &mut self.stage {
            Stage::Asked(answer) => answer.as_mut().poll(context),
            Stage::Idle | Stage::Waits(_) => Poll::Pending,
        }
    }
}

impl<S: Stream> ConnectionTask<S> {
    /// Handles an AUTH from the client.
    pub(super) fn handle_auth(&mut self, auth: Auth) -> Result<(), End> {
        let violation = || End::Violation(Violation::Unexpected(PacketType::Auth));
        let Some(reauthentication) = &mut self.reauthentication else {
            return Err(violation()); // [MQTT-4.12.0-7]
        };
        let method = reauthentication.method.clone();
        reauthentication.stage = match std::mem::replace(&mut reauthentication.stage, Stage::Idle) {
            Stage::Idle => {
                let is_legal =
                    auth.reason == ReasonCode::ReAuthenticate && auth.properties.authentication_method == method; // [MQTT-4.12.1-1]
                if !is_legal {
                    return Err(violation());
                }
                let principal = self.lease.client.rights.principal();
                let request = AuthRequest {
                    client_id: principal.client_id.clone(),
                    user_name: None,
                    password: None,
                    peer: self.shared.peer,
                    listener: Arc::clone(&principal.listener),
                    method,
                    data: auth.properties.authentication_data,
                    current: Some(principal.identity.clone()),
                };
                let authenticator = Arc::clone(self.shared.access.authenticator());
                Stage::Asked(Box::pin(async move { authenticator.authenticate(request).await }))
            }
            Stage::Waits(exchange) => {
                let data = continued(auth, &method).ok_or_else(violation)?;
                Stage::Asked(exchange.step(data))
            }
            Stage::Asked(_) => return Err(violation()), // the client may not send AUTH now
        };
        Ok(())
    }

    /// Handles the authenticator's answer.
    pub(super) fn reauthenticated(&mut self, answer: Answer, now: Instant) -> Result<(), End> {
        let Some(reauthentication) = &mut self.reauthentication else { return Ok(()) }; // no authenticator was asked
        let method = reauthentication.method.clone();
        let judged = judge(answer, &method, PacketType::Disconnect).map_err(End::Refused)?; // [MQTT-4.12.1-2]
        let (reply, stage) = match judged {
            Judged::Continue(auth, exchange) => (auth, Stage::Waits(exchange)),
            Judged::Accepted(authenticated) => {
                let rights = &self.lease.client.rights;
                // The session belongs to its user.
                if !rights.is_same_user(&authenticated.identity) {
                    return Err(End::Refused(Refusal::from(ReasonCode::NotAuthorized)));
                }
                rights.renew_identity(authenticated.identity);
                (auth(ReasonCode::Success, &method, authenticated.data), Stage::Idle)
            }
        };
        reauthentication.stage = stage;
        self.answer(Packet::Auth(Box::new(reply)), now)
    }
}
