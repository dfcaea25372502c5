use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tenbin_codec::{ReasonCode, Secret, Text};

use super::{Identity, Origin, Principal};

/// Decides which clients may connect, and as which user.
///
/// The broker calls it for every CONNECT and every re-authentication. The broker itself handles the order and method of
/// AUTH packets, the time-outs, and that a session stays with its user.
pub trait Authenticator: Send + Sync + 'static {
    /// Answers a CONNECT, or an AUTH 0x19 if [`AuthRequest::current`] is set.
    ///
    /// The broker may drop the future at any await point: on the connect time-out (the client gets Server busy) or when
    /// the client disconnects.
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_>;

    /// Returns whether an identity that was accepted earlier is still valid.
    ///
    /// Called after each reload, when a connection ends, and before a Will is published.
    fn standing(&self, principal: &Principal) -> Standing {
        let _ = principal;
        Standing::Current
    }
}

/// An extended authentication (MQTT 5.0 §4.12) in progress that waits for the client's next AUTH.
pub trait Exchange: Send + 'static {
    /// Handles the Authentication Data of that AUTH.
    fn step(self: Box<Self>, data: Option<Secret>) -> AuthFuture<'static>;
}

/// Future of an [`Answer`].
pub type AuthFuture<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// Authentication request of a client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AuthRequest {
    /// Client Identifier, or the one that the broker will assign.
    pub client_id: Text,
    /// User Name of CONNECT; `None` on re-authentication.
    pub user_name: Option<Text>,
    /// Password of CONNECT; `None` on re-authentication.
    pub password: Option<Secret>,
    /// Where the client connects from.
    pub origin: Origin,
    /// Name of the client's listener.
    pub listener: Arc<str>,
    /// Authentication Method; `Some` requests extended authentication.
    pub method: Option<Text>,
    /// Authentication Data.
    pub data: Option<Secret>,
    /// Current identity on re-authentication; `None` on CONNECT.
    pub current: Option<Identity>,
}

/// Answer to an [`AuthRequest`].
pub enum Answer {
    /// The client is authenticated.
    Accept {
        /// Its identity. The broker refuses re-authentication as another user.
        identity: Identity,
        /// Final Authentication Data, for CONNACK or AUTH; only with a method.
        data: Option<Secret>,
    },
    /// The exchange continues with AUTH 0x18 `[MQTT-4.12.0-2]`; only with a method.
    Continue {
        /// Authentication Data for the client.
        data: Option<Secret>,
        /// Handler of the client's next AUTH.
        exchange: Box<dyn Exchange>,
    },
    /// Refused with this Reason Code. If CONNACK (DISCONNECT on re-authentication) does not know it: Not authorized.
    Refuse(ReasonCode),
    /// Refused like [`Answer::Refuse`], with details for the log.
    RefuseLogin(Box<LoginRefusal>),
    /// The client is not known here: the next source is asked. A custom authenticator answers so to leave the client to
    /// the sources of the configuration. In an exchange that has begun, it refuses the client.
    NotMine,
    /// Refused with Use another server (0x9C).
    UseAnotherServer(Option<Text>),
    /// Refused with Server moved (0x9D).
    ServerMoved(Option<Text>),
}

/// A refused login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginRefusal {
    /// Reason Code for the client.
    pub reason: ReasonCode,
    /// Name of the source that has refused it; empty = none has.
    pub source: Arc<str>,
    /// Cause, for the log alone.
    pub cause: Cow<'static, str>,
    /// User, if it is not the User Name of CONNECT.
    pub user: Option<Text>,
}

/// Validity of an identity that was accepted earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The identity is valid.
    Current,
    /// The user is known with other credentials. Its connections end; its sessions stay.
    Stale,
    /// The user is unknown. Its connections end, its Wills are not published, and its sessions get no new messages.
    ///
    /// The sessions stay until they expire, in case the user returns.
    Revoked,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept { identity, .. } => f.debug_tuple("Accept").field(identity).finish(),
            Self::Continue { .. } => f.write_str("Continue"),
            Self::RefuseLogin(refusal) => refusal.fmt(f),
            Self::NotMine => f.write_str("NotMine"),
            Self::Refuse(reason) => f.debug_tuple("Refuse").field(reason).finish(),
            Self::UseAnotherServer(server) => f.debug_tuple("UseAnotherServer").field(server).finish(),
            Self::ServerMoved(server) => f.debug_tuple("ServerMoved").field(server).finish(),
        }
    }
}
