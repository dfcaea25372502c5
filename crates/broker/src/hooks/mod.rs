//! Hooks of the embedding program: its code at the events of a broker.
//!
//! [`Hooks`] has one method for each event, with an empty default. [`Events`] says which of them a program wants; the
//! broker asks for it once, at the start, and spends nothing on the others. Three events have separate traits:
//! logins and AUTH packets go to the [`Authenticator`](crate::Authenticator), topic rights to the
//! [`Authorizer`](crate::Authorizer).

mod client;
mod cluster;
mod events;
mod handle;
mod hooks_trait;
mod message;
mod outgoing;
mod set;
mod targets;

pub use client::{Client, Connecting, Ending, Granted};
pub use cluster::{CopiesChange, LeaderChange};
pub use events::Events;
pub(crate) use handle::{Answer, Embedded, Inbox};
pub use handle::{BrokerStopped, Handle, PublishError, Received, Subscription};
pub use hooks_trait::{Hooks, Verdict};
pub use message::{DeadLetter, Denial, DropReason, Dropped, InFlight, Message, Publication, QosDropReason};
pub use outgoing::Outgoing;
pub(crate) use set::HookSet;
pub use targets::Targets;

pub use tenbin_codec::{
    MessageProperties, Packet, PacketId, PacketType, ProtocolVersion, QoS, ReasonCode, Subscription as Subscribing,
    SubscriptionOptions, Text, TopicFilter, TopicName, UserProperty,
};

pub use crate::values::{Origin, Peer};
