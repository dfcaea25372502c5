use std::io;
use std::sync::Arc;

use tenbin_codec::ReasonCode;
use tenbin_session::Violation;

use crate::OutgoingMessage;

/// Why a request failed, with the client and the broker concerned.
#[derive(Debug, Clone, thiserror::Error)]
#[error("client `{client_id}` of {broker}: {kind}")]
pub struct ClientError {
    pub(crate) broker: Arc<str>,
    pub(crate) client_id: Arc<str>,
    pub(crate) kind: ClientErrorKind,
}

/// Kind of a [`ClientError`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClientErrorKind {
    /// An option or an argument that MQTT does not allow.
    #[error("{0}")]
    Invalid(String),
    /// No TCP connection, or its transport failed ([`ClientOptions::transport`](crate::ClientOptions::transport)).
    #[error("cannot connect: {0}")]
    Unreachable(Arc<io::Error>),
    /// The broker refused the connection in CONNACK.
    #[error("the broker refused the connection: {reason}{}", in_brackets(.detail))]
    Refused {
        /// The broker's Reason Code.
        reason: ReasonCode,
        /// The broker's Reason String.
        detail: Option<String>,
    },
    /// The broker did not answer in time.
    #[error("the broker did not answer in time")]
    NoAnswer,
    /// The connection ended before the request was complete.
    #[error("connection lost: {0}")]
    Lost(DisconnectReason),
    /// The broker excluded such messages in CONNACK (size, QoS, RETAIN); the message was not sent.
    #[error("the broker takes no such message: {0}")]
    NotTaken(ReasonCode),
    /// The message's expiry interval passed before it could be sent.
    #[error("the message expired before it could be sent")]
    Expired,
    /// The client has ended: by [`Client::disconnect`](crate::Client::disconnect) if `None`, otherwise by the loss of
    /// its last connection.
    #[error("{}", ended(.0))]
    Ended(Option<DisconnectReason>),
}

/// Why a connection ended that the client did not end itself.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The broker sent DISCONNECT.
    #[error("the broker disconnected: {reason}{}", in_brackets(.detail))]
    ByBroker {
        /// The broker's Reason Code.
        reason: ReasonCode,
        /// The broker's Reason String.
        detail: Option<String>,
    },
    /// The broker closed the connection without DISCONNECT.
    #[error("the broker closed the connection")]
    Closed,
    /// The broker violated the protocol or left a ping unanswered.
    #[error("the broker broke a rule: {0}")]
    Violation(#[from] Violation),
    /// The broker resumed a session where a new one was required `[MQTT-3.2.2-4]`.
    #[error("the broker went on with a session that was to be new [MQTT-3.2.2-4]")]
    UnknownSession,
    /// Reading or writing failed.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// The application closed it with [`Client::cut`](crate::Client::cut).
    #[error("the connection was cut on purpose")]
    Cut,
}

/// Why [`Client::try_publish`](crate::Client::try_publish) did not accept a message.
#[derive(Debug, thiserror::Error)]
pub enum TryPublishError {
    /// The queue is full; returns the message.
    #[error("the queue is full")]
    Full(OutgoingMessage),
    /// The message is invalid, or the client has ended.
    #[error("{0}")]
    Failed(ClientError),
}

impl ClientError {
    /// Kind of the error.
    pub fn kind(&self) -> &ClientErrorKind {
        &self.kind
    }

    /// Address of the broker, as configured.
    pub fn broker(&self) -> &str {
        &self.broker
    }

    /// Client Identifier, as configured.
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// The broker's Reason Code, if it sent one.
    pub fn reason(&self) -> Option<ReasonCode> {
        match &self.kind {
            ClientErrorKind::Refused { reason, .. } | ClientErrorKind::NotTaken(reason) => Some(*reason),
            ClientErrorKind::Lost(reason) | ClientErrorKind::Ended(Some(reason)) => reason.reason(),
            _ => None,
        }
    }
}

impl DisconnectReason {
    /// The broker's Reason Code, if it sent one.
    pub fn reason(&self) -> Option<ReasonCode> {
        match self {
            Self::ByBroker { reason, .. } => Some(*reason),
            _ => None,
        }
    }
}

impl From<io::Error> for DisconnectReason {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

fn in_brackets(detail: &Option<String>) -> String {
    detail.as_ref().map_or(String::new(), |detail| format!(" ({detail})"))
}

fn ended(reason: &Option<DisconnectReason>) -> String {
    let of = |reason| format!("the client has ended: {reason}");
    reason.as_ref().map_or("the client has disconnected".to_owned(), of)
}
