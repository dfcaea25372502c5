use std::fmt;
use std::io;
use std::sync::Arc;

use tenbin_sn_codec::v1_2::ReturnCode;

/// Why a request failed, with the client concerned.
#[derive(Debug, Clone, thiserror::Error)]
#[error("client `{client_id}`: {kind}")]
pub struct ClientError {
    pub(crate) client_id: Arc<str>,
    pub(crate) kind: ClientErrorKind,
}

/// Kind of a [`ClientError`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClientErrorKind {
    /// An option or an argument that MQTT-SN does not allow.
    #[error("{0}")]
    Invalid(String),
    /// No gateway accepted the connection: the failure of each, in the order of attempts.
    #[error("cannot connect: {}", in_a_row(.0))]
    NoGateway(Vec<Failure>),
    /// The gateway rejected the request.
    #[error("the gateway rejected the request: {0}")]
    Rejected(ReturnCode),
    /// The request needs an active client, and this one sleeps ([`Client::activate`](crate::Client::activate)).
    #[error("the client sleeps")]
    Asleep,
    /// The request needs a sleeping client.
    #[error("the client does not sleep")]
    NotAsleep,
    /// The connection ended before the request was complete.
    #[error("connection lost: {0}")]
    Lost(Failure),
    /// The client has ended: by [`Client::disconnect`](crate::Client::disconnect) if `None`, otherwise by the loss of
    /// its last connection.
    #[error("{}", ended(.0))]
    Ended(Option<Failure>),
}

/// A gateway, and why there is no connection to it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Address of the gateway, as configured.
    pub gateway: Arc<str>,
    /// Why.
    pub reason: DisconnectReason,
}

/// Why a connection ended, or did not begin.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The name has no address, or no process listens there.
    #[error("{0}")]
    Unreachable(Arc<io::Error>),
    /// The gateway refused the connection in CONNACK.
    #[error("the gateway refused the connection: {0}")]
    Refused(ReturnCode),
    /// The gateway did not answer a message and its repetitions.
    #[error("no answer")]
    NoAnswer,
    /// The gateway sent DISCONNECT.
    #[error("the gateway ended the connection")]
    ByGateway,
}

impl ClientError {
    /// Kind of the error.
    pub fn kind(&self) -> &ClientErrorKind {
        &self.kind
    }

    /// Client id, as configured.
    pub fn client_id(&self) -> &str {
        &self.client_id
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.gateway, self.reason)
    }
}

impl From<io::Error> for DisconnectReason {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(Arc::new(error))
    }
}

fn in_a_row(failures: &[Failure]) -> String {
    failures.iter().map(Failure::to_string).collect::<Vec<_>>().join("; ")
}

fn ended(failure: &Option<Failure>) -> String {
    failure.as_ref().map_or("the client has disconnected".to_owned(), |of| format!("the client has ended: {of}"))
}
