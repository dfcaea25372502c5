use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tenbin_codec::ReasonCode;
use tokio::sync::oneshot;

use crate::client::Shared;
use crate::command::Reply;
use crate::{ClientError, ClientErrorKind};

/// What becomes of a published message: a future. Dropping it does not take the message back.
///
/// Gives the broker's Reason Code: of PUBACK at QoS 1, of PUBCOMP (or a PUBREC that refuses) at QoS 2; from 0x80
/// on ([`ReasonCode::is_error`]) the broker did not take the message. At QoS 0 success, once the message is
/// written to the socket. A reconnect in between does not matter to QoS 1 and 2: the message is sent again.
///
/// # Errors
/// * [`ClientErrorKind::NotTaken`], [`ClientErrorKind::Expired`]: it was not sent.
/// * [`ClientErrorKind::Lost`]: QoS 0, and the connection ended before it was written.
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

    /// The same as awaiting the ticket.
    ///
    /// # Errors
    /// Those of the type.
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
