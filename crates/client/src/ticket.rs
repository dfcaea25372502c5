use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tenbin_codec::ReasonCode;
use tokio::sync::oneshot;

use crate::command::Reply;
use crate::shared::Shared;
use crate::{ClientError, ClientErrorKind};

/// Future result of a published message. Dropping it does not revoke the message.
///
/// Resolves to the broker's Reason Code: of PUBACK at QoS 1; of PUBCOMP, or of a refusing PUBREC, at QoS 2.
///
/// Codes from 0x80 on ([`ReasonCode::is_error`]) mean that the broker did not accept the message. At QoS 0 it resolves
/// to success once the message is written to the socket. At QoS 1 and 2 the message is sent again after a reconnect.
///
/// # Errors
/// * [`ClientErrorKind::NotTaken`], [`ClientErrorKind::Expired`]: the message was not sent.
/// * [`ClientErrorKind::Lost`]: a QoS 0 message was not written before the connection ended.
/// * [`ClientErrorKind::Ended`]: the client has ended; whether the broker has the message is unknown.
#[derive(Debug)]
pub struct PublishTicket {
    shared: Arc<Shared>,
    outcome: oneshot::Receiver<Result<ReasonCode, ClientErrorKind>>,
}

impl PublishTicket {
    pub(crate) fn new(shared: &Arc<Shared>) -> (Reply<ReasonCode>, Self) {
        let (reply, outcome) = oneshot::channel();
        (reply, Self { shared: Arc::clone(shared), outcome })
    }

    /// Awaits the ticket.
    ///
    /// # Errors
    /// As listed for the type.
    pub async fn wait(self) -> Result<ReasonCode, ClientError> {
        self.await
    }
}

impl Future for PublishTicket {
    type Output = Result<ReasonCode, ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome).poll(context).map(|outcome| self.shared.outcome(outcome))
    }
}
