//! Who may connect, and who may do what.
//!
//! ```text
//!   CONNECT, AUTH ──► Authenticator ──► Identity ─┐
//!                                                 ├─► Principal ──► Authorizer: publish, subscribe, receive, Will
//!                     Client Identifier, listener ┘
//!
//!   configured   both traits as the configuration says: password files, ACL rules, per listener
//!   realms       which users of one name are one user
//!   access       the two that a broker uses, and the epoch that counts their changes
//!   rights       what one session may; asked by whoever routes to it
//!   enforcement  what a change takes away stops at once
//! ```

mod access;
mod acl;
mod authenticator;
mod authorizer;
mod configured;
pub(crate) mod enforcement;
mod hashing;
mod identity;
mod password_file;
mod pattern;
mod realms;
mod recent;
mod rights;
mod scram;
mod settings;

pub(crate) use access::Access;
pub(crate) use acl::rules;
pub use acl::{AclAction, AclRule, Effect};
pub use authenticator::{Answer, AuthFuture, AuthRequest, Authenticator, Exchange, Standing};
pub use authorizer::{Action, Authorizer, Decision};
pub(crate) use configured::Configured;
pub use identity::{Identity, Principal};
pub use password_file::{PasswordFile, PasswordFileError, Secrets};
pub use pattern::TopicPattern;
pub(crate) use realms::KnownRealm;
pub(crate) use rights::Rights;
pub use settings::AccessError;
pub(crate) use settings::Settings;
