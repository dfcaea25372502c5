//! Authentication and authorization of clients.
//!
//! ```text
//!   CONNECT, AUTH ──► Authenticator ──► Identity ─┐
//!                                                 ├─► Principal ──► Authorizer: publish, subscribe, receive, Will
//!                     Client Identifier, listener ┘
//!
//!   configured   both traits according to the configuration: password files, ACL rules, per listener
//!   realms       separation of users of one name
//!   access       the authenticator and authorizer of a broker, with the epoch of rule changes
//!   rights       rights of one session, checked when messages are routed to it
//! ```

mod access;
mod acl;
mod authenticator;
mod authorizer;
mod configured;
mod hashing;
mod password_file;
mod password_hash;
mod realms;
mod recent;
mod rights;
mod scram;
mod settings;

pub use crate::values::{
    AclAction, AclRule, Certificate, Effect, Identity, Origin, Peer, Principal, TopicPattern, TransportProtocol,
};
pub(crate) use access::Access;
pub use authenticator::{Answer, AuthFuture, AuthRequest, Authenticator, Exchange, Standing};
pub use authorizer::{Action, Authorizer, Decision};
pub(crate) use configured::Configured;
pub use password_file::{PasswordFile, PasswordFileError, Secrets};
pub(crate) use realms::KnownRealm;
pub(crate) use rights::Rights;
pub use settings::AccessError;
pub(crate) use settings::Settings;
