use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tenbin_sn_codec::v1_2::QoS;
use tokio::sync::oneshot;

use crate::shared::Shared;
use crate::{ClientError, ClientErrorKind, OutgoingMessage, Topic, Will};

/// The task's answer to a command: `Some` is the granted QoS of a subscription.
pub(crate) type Answer = Result<Option<QoS>, ClientErrorKind>;
/// Channel for an answer. Dropped without one, it means that the client has ended.
pub(crate) type Reply = oneshot::Sender<Answer>;

/// A command of the application to the task. Commands are handled in order.
#[derive(Debug)]
pub(crate) enum Command {
    Request(Request, Reply),
    /// Sleep for a number of seconds, after all earlier requests are answered.
    Sleep(u16, Reply),
    Wake(Reply),
    Activate(Reply),
}

/// A request to the gateway.
#[derive(Debug)]
pub(crate) enum Request {
    Register(String),
    Publish(OutgoingMessage),
    Subscribe(Topic, QoS),
    Unsubscribe(Topic),
    UpdateWill(Option<Will>),
}

/// Future result of a published message. Dropping it does not revoke the message.
///
/// At QoS 0 it resolves once the message is sent, at QoS 1 and 2 once it is acknowledged. Without a connection it waits
/// for the next one.
///
/// # Errors
/// * [`ClientErrorKind::Rejected`]: the gateway or the broker did not accept the message.
/// * [`ClientErrorKind::Asleep`]: the client slept when the message's turn came.
/// * [`ClientErrorKind::Ended`]: the client has ended; whether the broker has the message is unknown.
#[derive(Debug)]
pub struct PublishTicket {
    pub(crate) shared: Arc<Shared>,
    pub(crate) answer: oneshot::Receiver<Answer>,
}

impl Future for PublishTicket {
    type Output = Result<(), ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(context).map(|answer| self.shared.outcome(answer).map(drop))
    }
}
