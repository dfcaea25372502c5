use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tenbin_codec::{ReasonCode, Text};

use super::{Identity, Principal};

/// Decides who connects as whom: asked at every CONNECT, and when a client authenticates again.
///
/// The broker sees to the protocol: order and method of AUTH packets, time-outs, and that a session stays with its
/// user.
pub trait Authenticator: Send + Sync + 'static {
    /// Answers a CONNECT, or an AUTH 0x19 where [`AuthRequest::current`] is set. The future may be dropped at any
    /// wait point: when the connect time-out is over (the client is told Server busy) or the client is gone.
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_>;

    /// What is left of an identity that was accepted earlier; asked after each reload, when a connection ends,
    /// and before a Will is published.
    fn standing(&self, principal: &Principal) -> Standing {
        let _ = principal;
        Standing::Current
    }
}

/// One run of an extended authentication (MQTT 5.0 §4.12) that waits for the client's next AUTH.
pub trait Exchange: Send + 'static {
    /// Takes the data of that AUTH.
    fn step(self: Box<Self>, data: Option<Bytes>) -> AuthFuture<'static>;
}

/// An answer to come.
pub type AuthFuture<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// What a client says of itself.
#[derive(Clone)]
pub struct AuthRequest {
    /// Its Client Identifier, or the one that it will be assigned.
    pub client_id: Text,
    /// User Name of CONNECT; `None` when it authenticates again.
    pub user_name: Option<Text>,
    /// Password of CONNECT; `None` when it authenticates again.
    pub password: Option<Bytes>,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// Name of the listener through which it came.
    pub listener: Arc<str>,
    /// Authentication Method: extended authentication is asked for.
    pub method: Option<Text>,
    /// Authentication Data.
    pub data: Option<Bytes>,
    /// The client authenticates again, and is served as this one now.
    pub current: Option<Identity>,
}

/// What is said to an [`AuthRequest`].
pub enum Answer {
    /// Come in.
    Accept {
        /// As whom. To authenticate again as another user is refused.
        identity: Identity,
        /// Last Authentication Data, in CONNACK or AUTH; only with a method.
        data: Option<Bytes>,
    },
    /// Go on with AUTH 0x18 `[MQTT-4.12.0-2]`; only with a method.
    Continue {
        /// Authentication Data for the client.
        data: Option<Bytes>,
        /// What takes the client's answer.
        exchange: Box<dyn Exchange>,
    },
    /// No, and why: a code that CONNACK knows (or DISCONNECT when authenticating again), else Not authorized.
    Refuse(ReasonCode),
    /// Not here: Use another server (0x9C).
    UseAnotherServer(Option<Text>),
    /// Not here any more: Server moved (0x9D).
    ServerMoved(Option<Text>),
}

/// What is left of an accepted identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It stands.
    Current,
    /// The user is known, with other credentials: its connections end, its sessions wait for it.
    Stale,
    /// The user is not known: its connections end, its Wills are not published, its sessions get no new messages. They stay
    /// until their time is over, for the user to come back to.
    Revoked,
}

impl fmt::Debug for AuthRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets do not belong into logs.
        f.debug_struct("AuthRequest")
            .field("client_id", &self.client_id)
            .field("user_name", &self.user_name)
            .field("password", &self.password.as_ref().map(|_| "..."))
            .field("peer", &self.peer)
            .field("listener", &self.listener)
            .field("method", &self.method)
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept { identity, .. } => f.debug_tuple("Accept").field(identity).finish(),
            Self::Continue { .. } => f.write_str("Continue"),
            Self::Refuse(reason) => f.debug_tuple("Refuse").field(reason).finish(),
            Self::UseAnotherServer(server) => f.debug_tuple("UseAnotherServer").field(server).finish(),
            Self::ServerMoved(server) => f.debug_tuple("ServerMoved").field(server).finish(),
        }
    }
}
