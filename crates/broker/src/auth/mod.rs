//! Authentication and authorization of clients.
//!
//! ```text
//!   CONNECT, AUTH ──► Authenticator ──► Identity ─┐
//!                                                 ├─► Principal ──► Authorizer: publish, subscribe, receive, Will
//!                     Client Identifier, listener ┘
//!
//!   chain        a custom authenticator, and behind it `configured`
//!   configured   both traits according to the configuration: sources and ACL rules, per listener
//!   source       a way in: of the kinds in `certificates`, `passwords`, `jwt`, `http`
//!   bans         clients that may not connect
//!   realms       separation of users of one name
//!   access       the authenticator and authorizer of a broker, with the epoch of rule changes
//!   rights       rights of one session, checked when messages are routed to it
//! ```

mod access;
mod acl;
#[cfg(feature = "web")]
mod address_turns;
mod authenticator;
mod authorizer;
mod bans;
mod certificates;
mod chain;
mod configured;
#[cfg(feature = "web")]
mod granted_rules;
mod hashing;
#[cfg(feature = "web")]
mod http;
#[cfg(feature = "web")]
mod jwt;
mod password_file;
mod password_hash;
mod passwords;
mod realms;
mod recent;
mod rights;
mod scram;
mod settings;
mod source;
#[cfg(feature = "web")]
mod web;

pub use crate::values::{
    AclAction, AclRule, Certificate, Effect, Identity, Origin, Peer, Principal, Terms, TopicPattern, TransportProtocol,
};
pub(crate) use access::Access;
pub use authenticator::{Answer, AuthFuture, AuthRequest, Authenticator, Exchange, LoginRefusal, Standing};
pub use authorizer::{Action, Authorizer, Decision};
pub(crate) use bans::Suspect;
pub(crate) use configured::Configured;
pub use password_file::{PasswordFile, PasswordFileError, Secrets};
pub(crate) use realms::KnownRealm;
pub(crate) use rights::Rights;
pub use settings::AccessError;
pub(crate) use settings::Settings;
pub use tenbin_codec::Secret;
#[cfg(feature = "web")]
pub(crate) use web::WebClient;
