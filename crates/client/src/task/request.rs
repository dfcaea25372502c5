use std::time::Instant;

use bytes::BytesMut;
use tenbin_codec::{PublishTemplate, ReasonCode, Subscription, TopicFilter};
use tenbin_session::Delivery;

use crate::OutgoingMessage;
use crate::command::{Command, Reply};

/// A command in a form that can be sent, repeatedly if necessary.
#[derive(Debug)]
pub(super) enum Request {
    Publish {
        delivery: Delivery,
        reply: Reply<ReasonCode>,
    },
    Subscribe {
        subscriptions: Vec<Subscription>,
        /// `None` if the task itself makes the subscriptions again.
        reply: Option<Reply<Vec<ReasonCode>>>,
    },
    Unsubscribe {
        filters: Vec<TopicFilter>,
        reply: Reply<Vec<ReasonCode>>,
    },
}

impl Request {
    /// Converts a command. `block` is a reused buffer.
    pub(super) fn new(command: Command, block: &mut BytesMut) -> Self {
        match command {
            Command::Publish { message, expires_at, reply } => {
                Self::Publish { delivery: delivery(&message, expires_at, block), reply }
            }
            Command::Subscribe { subscriptions, reply } => Self::Subscribe { subscriptions, reply: Some(reply) },
            Command::Unsubscribe { filters, reply } => Self::Unsubscribe { filters, reply },
        }
    }
}

impl Request {
    /// Whether the request counts toward the broker's Receive Maximum.
    pub(super) fn needs_quota(&self) -> bool {
        matches!(self, Self::Publish { delivery, .. } if delivery.qos.is_acknowledged())
    }
}

fn delivery(message: &OutgoingMessage, expires_at: Option<Instant>, block: &mut BytesMut) -> Delivery {
    let template = PublishTemplate::new(&message.topic, message.properties.as_deref(), &message.payload, block);
    let mut delivery = Delivery::new(template, message.qos, message.retain);
    delivery.expires_at = expires_at;
    delivery
}
