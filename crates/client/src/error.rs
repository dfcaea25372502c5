use std::sync::Arc;
use std::{error, fmt, io};

use tenbin_codec::ReasonCode;
use tenbin_session::Violation;

use crate::OutgoingMessage;

/// Why a request failed, with the client and the broker concerned.
#[derive(Debug, Clone)]
pub struct ClientError {
    pub(crate) broker: Arc<str>,
    pub(crate) client_id: Arc<str>,
    pub(crate) kind: ClientErrorKind,
}

/// Kind of a [`ClientError`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ClientErrorKind {
    /// An option or an argument that MQTT does not allow.
    Invalid(String),
    /// No TCP connection, or its wrapper failed ([`ClientOptions::over`](crate::ClientOptions::over)).
    Unreachable(Arc<io::Error>),
    /// The broker refused the connection in CONNACK.
    Refused {
        /// The broker's Reason Code.
        reason: ReasonCode,
        /// The broker's Reason String.
        detail: Option<String>,
    },
    /// The broker did not answer in time.
    NoAnswer,
    /// The connection ended before the request was complete.
    Lost(DisconnectReason),
    /// The broker excluded such messages in CONNACK (size, QoS, RETAIN); the message was not sent.
    NotTaken(ReasonCode),
    /// The message's expiry interval passed before it could be sent.
    Expired,
    /// The client has ended: by [`Client::disconnect`](crate::Client::disconnect) if `None`, otherwise by the loss of
    /// its last connection.
    Ended(Option<DisconnectReason>),
}

/// Why a connection ended that the client did not end itself.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The broker sent DISCONNECT.
    ByBroker {
        /// The broker's Reason Code.
        reason: ReasonCode,
        /// The broker's Reason String.
        detail: Option<String>,
    },
    /// The broker closed the connection without DISCONNECT.
    Closed,
    /// The broker violated the protocol or left a ping unanswered.
    Violation(Violation),
    /// The broker resumed a session where a new one was required `[MQTT-3.2.2-4]`.
    UnknownSession,
    /// Reading or writing failed.
    Io(Arc<io::Error>),
    /// The application closed it with [`Client::cut`](crate::Client::cut).
    Cut,
}

/// Why [`Client::try_publish`](crate::Client::try_publish) did not accept a message.
#[derive(Debug)]
pub enum TryPublishError {
    /// The queue is full; returns the message.
    Full(OutgoingMessage),
    /// The message is invalid, or the client has ended.
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

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client `{}` of {}: {}", self.client_id, self.broker, self.kind)
    }
}

impl fmt::Display for ClientErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) => f.write_str(what),
            Self::Unreachable(error) => write!(f, "cannot connect: {error}"),
            Self::Refused { reason, detail } => {
                write!(f, "the broker refused the connection: {reason}")?;
                write_detail(f, detail.as_deref())
            }
            Self::NoAnswer => f.write_str("the broker did not answer in time"),
            Self::Lost(reason) => write!(f, "connection lost: {reason}"),
            Self::NotTaken(reason) => write!(f, "the broker takes no such message: {reason}"),
            Self::Expired => f.write_str("the message expired before it could be sent"),
            Self::Ended(None) => f.write_str("the client has disconnected"),
            Self::Ended(Some(reason)) => write!(f, "the client has ended: {reason}"),
        }
    }
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByBroker { reason, detail } => {
                write!(f, "the broker disconnected: {reason}")?;
                write_detail(f, detail.as_deref())
            }
            Self::Closed => f.write_str("the broker closed the connection"),
            Self::Violation(violation) => write!(f, "the broker broke a rule: {violation}"),
            Self::UnknownSession => f.write_str("the broker went on with a session that was to be new [MQTT-3.2.2-4]"),
            Self::Io(error) => error.fmt(f),
            Self::Cut => f.write_str("the connection was cut on purpose"),
        }
    }
}

impl fmt::Display for TryPublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("the queue is full"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl error::Error for ClientError {}
impl error::Error for TryPublishError {}

impl From<io::Error> for DisconnectReason {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<Violation> for DisconnectReason {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

fn write_detail(f: &mut fmt::Formatter<'_>, detail: Option<&str>) -> fmt::Result {
    detail.map_or(Ok(()), |detail| write!(f, " ({detail})"))
}
