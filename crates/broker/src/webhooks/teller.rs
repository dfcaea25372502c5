use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};

use crate::config::{Webhook, WebhookEvent};
use crate::event_queue::EventQueue;
use crate::hooks::{
    Client, CopiesChange, DeadLetter, Denial, DropReason, Dropped, Ending, Events, Hooks, InFlight, LeaderChange,
    Publication, ReasonCode, Subscribing, Text, TopicFilter, TopicName,
};

/// Puts the events of one webhook into its queue.
pub(super) struct Teller {
    queue: Arc<EventQueue>,
    events: Vec<WebhookEvent>,
    /// For events of messages; `None` = all topics.
    filter: Option<TopicFilter>,
    payload_bytes_maximum: usize,
}

impl Teller {
    pub(super) fn new(webhook: &Webhook, queue: Arc<EventQueue>) -> Self {
        let filter = webhook.filter.as_deref().and_then(|filter| TopicFilter::try_from(filter).ok());
        let payload_bytes_maximum = webhook.payload_bytes_maximum();
        Self { queue, events: webhook.events.clone(), filter, payload_bytes_maximum }
    }

    /// Queues an event if the webhook gets it.
    fn tell(&self, event: WebhookEvent, mut content: Value) {
        if self.events.contains(&event) {
            content["event"] = json!(event);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            content["time_ms"] = json!(now.as_millis() as u64);
            self.queue.push(content.to_string());
        }
    }

    /// Whether the webhook gets events of messages to this topic.
    fn is_about(&self, topic: &str) -> bool {
        let matches = |filter: &TopicFilter| TopicName::try_from(topic).is_ok_and(|topic| filter.matches(&topic));
        self.filter.as_ref().is_none_or(matches)
    }
}

/// Hook of an event.
fn hook_of(event: WebhookEvent) -> Events {
    match event {
        WebhookEvent::Connected | WebhookEvent::SessionCreated => Events::SESSION_ESTABLISHED,
        WebhookEvent::Disconnected => Events::DISCONNECTED,
        WebhookEvent::SessionExpired => Events::SESSION_EXPIRED,
        WebhookEvent::Subscribed => Events::SUBSCRIBED,
        WebhookEvent::Unsubscribed => Events::UNSUBSCRIBED,
        WebhookEvent::Published => Events::PUBLISHED,
        WebhookEvent::Acknowledged => Events::QOS_COMPLETE,
        WebhookEvent::Dropped => Events::DROPPED,
        WebhookEvent::SlowBegun => Events::SLOW_BEGUN,
        WebhookEvent::SlowEnded => Events::SLOW_ENDED,
        WebhookEvent::GroupBacklog => Events::GROUP_BACKLOG,
        WebhookEvent::DeadLetter => Events::DEAD_LETTER,
        WebhookEvent::Denied => Events::DENIED,
        WebhookEvent::LeaderChanged => Events::LEADER_CHANGED,
        WebhookEvent::CopiesChanged => Events::COPIES_CHANGED,
    }
}

impl Hooks for Teller {
    fn wants(&self) -> Events {
        self.events.iter().fold(Events::NONE, |all, event| all | hook_of(*event))
    }

    fn session_established(&self, client: &Client, present: bool) {
        if !present {
            self.tell(WebhookEvent::SessionCreated, json!({ "client_id": client.id().as_str() }));
        }
        let content = json!({
            "client_id": client.id().as_str(),
            "user": client.user().map(Text::as_str),
            "peer": client.peer().to_string(),
            "listener": client.listener(),
            "version": client.version().to_string(),
            "session_present": present,
        });
        self.tell(WebhookEvent::Connected, content);
    }

    fn disconnected(&self, client: &Client, ending: &Ending) {
        let content = json!({
            "client_id": client.id().as_str(),
            "user": client.user().map(Text::as_str),
            "reason": ending.reason.map(ReasonCode::byte),
            "by_client": ending.by_client,
        });
        self.tell(WebhookEvent::Disconnected, content);
    }

    fn session_expired(&self, client_id: &Text) {
        self.tell(WebhookEvent::SessionExpired, json!({ "client_id": client_id.as_str() }));
    }

    fn subscribed(&self, client: &Client, subscription: &Subscribing, reason: ReasonCode) {
        if !reason.is_error() {
            let filter = subscription.filter.to_string();
            let content = json!({ "client_id": client.id().as_str(), "filter": filter, "qos": reason.byte() });
            self.tell(WebhookEvent::Subscribed, content);
        }
    }

    fn unsubscribed(&self, client: &Client, filter: &TopicFilter, reason: ReasonCode) {
        if reason == ReasonCode::Success {
            let content = json!({ "client_id": client.id().as_str(), "filter": filter.to_string() });
            self.tell(WebhookEvent::Unsubscribed, content);
        }
    }

    fn published(&self, client: &Client, message: &Publication, receivers: usize) {
        let topic = message.topic.to_string();
        if !self.is_about(&topic) {
            return;
        }
        let mut content = json!({
            "client_id": client.id().as_str(),
            "topic": topic,
            "qos": message.qos.bits(),
            "retain": message.retain,
            "payload_bytes": message.payload.len(),
            "receivers": receivers,
        });
        if self.payload_bytes_maximum > 0 && message.payload.len() <= self.payload_bytes_maximum {
            let (key, payload) = match std::str::from_utf8(&message.payload) {
                Ok(text) => ("payload", text.to_owned()),
                Err(_) => ("payload_base64", Base64::encode_string(&message.payload)),
            };
            content[key] = payload.into();
        }
        self.tell(WebhookEvent::Published, content);
    }

    fn qos_complete(&self, client: &Client, message: &InFlight<'_>) {
        if self.is_about(message.topic) {
            let topic = Some(message.topic).filter(|topic| !topic.is_empty());
            let (client_id, packet_id) = (client.id().as_str(), message.packet_id);
            let content = json!({ "client_id": client_id, "topic": topic, "packet_id": packet_id });
            self.tell(WebhookEvent::Acknowledged, content);
        }
    }

    fn dropped(&self, message: &Dropped<'_>) {
        if self.is_about(message.topic) {
            let reason = match message.reason {
                DropReason::QueueFull => "queue_full",
                DropReason::Offline => "offline",
                DropReason::Expired => "expired",
                DropReason::TooLarge => "too_large",
            };
            let content = json!({ "client_id": message.client_id.as_str(), "topic": message.topic, "reason": reason });
            self.tell(WebhookEvent::Dropped, content);
        }
    }

    fn slow_begun(&self, client_id: &Text) {
        self.tell(WebhookEvent::SlowBegun, json!({ "client_id": client_id.as_str() }));
    }

    fn slow_ended(&self, client_id: &Text) {
        self.tell(WebhookEvent::SlowEnded, json!({ "client_id": client_id.as_str() }));
    }

    fn denied(&self, denial: &Denial<'_>) {
        let Denial { client_id, user, listener, action, topic } = denial;
        if self.is_about(topic) {
            let (client_id, user) = (client_id.as_str(), user.map(Text::as_str));
            let content = json!({
                "client_id": client_id, "user": user, "listener": listener, "action": action, "topic": topic,
            });
            self.tell(WebhookEvent::Denied, content);
        }
    }

    fn group_backlog(&self, group: &str, messages: usize, is_over: bool) {
        let content = json!({ "group": group, "messages": messages, "is_over": is_over });
        self.tell(WebhookEvent::GroupBacklog, content);
    }

    fn dead_letter(&self, letter: &DeadLetter<'_>) {
        let DeadLetter { group, topic, reason, deliveries, client_id } = letter;
        if self.is_about(topic) {
            let client_id = client_id.as_str();
            let content = json!({
                "group": group, "topic": topic, "reason": reason, "deliveries": deliveries, "client_id": client_id,
            });
            self.tell(WebhookEvent::DeadLetter, content);
        }
    }

    fn leader_changed(&self, change: &LeaderChange<'_>) {
        let LeaderChange { epoch, leader, previous, duration } = change;
        let duration = duration.as_millis() as u64;
        let content = json!({ "epoch": epoch, "leader": leader, "previous": previous, "duration_ms": duration });
        self.tell(WebhookEvent::LeaderChanged, content);
    }

    fn copies_changed(&self, change: &CopiesChange<'_>) {
        let CopiesChange { epoch, copies, node } = change;
        self.tell(WebhookEvent::CopiesChanged, json!({ "epoch": epoch, "copies": copies, "node": node }));
    }
}
