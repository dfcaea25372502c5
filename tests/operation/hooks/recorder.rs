use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

use tenbin_broker::MetricsSnapshot;
use tenbin_broker::auth::{
    Action, Answer, AuthFuture, AuthRequest, Authenticator, Authorizer, Decision, Exchange, Identity, Principal, Secret,
};
use tenbin_broker::hooks::{
    Client, Connecting, Denial, Dropped, Ending, Events, Granted, Handle, Hooks, InFlight, Outgoing, Packet,
    PacketType, Publication, QosDropReason, ReasonCode, Subscribing, Targets, Text, TopicFilter, TopicName,
    UserProperty, Verdict,
};

use crate::support::{PATIENCE, text};

/// Counts events by name and subject.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<(Mutex<BTreeMap<String, usize>>, Condvar)>);

impl Recorder {
    pub(crate) fn note(&self, event: &str, about: impl std::fmt::Display) {
        let (counts, changed) = &*self.0;
        *counts.lock().expect("no panic").entry(format!("{event} {about}")).or_default() += 1;
        changed.notify_all();
    }

    /// Waits for an event.
    pub(crate) fn wait_for(&self, event: &str) {
        let (counts, changed) = &*self.0;
        let counts = counts.lock().expect("no panic");
        let is_missing = |counts: &mut BTreeMap<String, usize>| !counts.contains_key(event);
        let (counts, wait) = changed.wait_timeout_while(counts, PATIENCE, is_missing).expect("no panic");
        assert!(!wait.timed_out(), "no event {event:?}; there are {counts:#?}");
    }

    pub(crate) fn count(&self, event: &str) -> usize {
        self.0.0.lock().expect("no panic").get(event).copied().unwrap_or(0)
    }
}

/// Records every event, and adds a User Property to CONNACK and PUBLISH.
pub(crate) struct Everything(pub(crate) Recorder);

fn mark() -> UserProperty {
    UserProperty::new(text("seen-by"), text("hooks"))
}

impl Hooks for Everything {
    fn wants(&self) -> Events {
        Events::all()
    }

    fn started(&self, broker: &Handle) {
        self.0.note("started", broker.metrics().expect("it runs").connections_opened);
    }

    fn stopped(&self) {
        self.0.note("stopped", "");
    }

    fn sys_tick(&self, metrics: &MetricsSnapshot) {
        self.0.note("sys_tick", metrics.connects_rate_limited);
    }

    fn connect(&self, client: &Connecting<'_>) -> Verdict {
        self.0.note("connect", client.client_id);
        Verdict::Go
    }

    fn session_establish(&self, client: &Client, granted: &mut Granted) {
        self.0.note("session_establish", client.id());
        granted.user_properties.push(mark());
    }

    fn session_established(&self, client: &Client, present: bool) {
        self.0.note("session_established", format!("{} {present}", client.id()));
    }

    fn disconnected(&self, client: &Client, ending: &Ending) {
        self.0.note("disconnected", format!("{} {:?}", client.id(), ending.reason));
    }

    fn packet_read(&self, client: &Client, packet: &Packet) -> Verdict {
        self.0.note("packet_read", format!("{} {}", client.id(), packet.packet_type()));
        Verdict::Go
    }

    fn packet_processed(&self, client: &Client, kind: PacketType, result: Result<(), ReasonCode>) {
        self.0.note("packet_processed", format!("{} {kind} {result:?}", client.id()));
    }

    fn packet_encode(&self, client: &Client, packet: &mut Outgoing) {
        self.0.note("packet_encode", format!("{} {}", client.id(), packet.packet().packet_type()));
        if packet.packet().packet_type() == PacketType::Publish {
            packet.add_user_property(mark());
        }
    }

    fn packet_sent(&self, client: &Client, kind: PacketType, bytes: usize) {
        self.0.note("packet_sent", format!("{} {kind} {bytes}", client.id()));
    }

    fn subscribe(&self, client: &Client, subscription: &mut Subscribing) -> Verdict {
        self.0.note("subscribe", format!("{} {}", client.id(), subscription.filter));
        Verdict::Go
    }

    fn subscribed(&self, client: &Client, subscription: &Subscribing, reason: ReasonCode) {
        self.0.note("subscribed", format!("{} {} {:#x}", client.id(), subscription.filter, reason.byte()));
    }

    fn unsubscribe(&self, client: &Client, filter: &TopicFilter) -> Verdict {
        self.0.note("unsubscribe", format!("{} {filter}", client.id()));
        Verdict::Go
    }

    fn unsubscribed(&self, client: &Client, filter: &TopicFilter, reason: ReasonCode) {
        self.0.note("unsubscribed", format!("{} {filter} {:#x}", client.id(), reason.byte()));
    }

    fn select(&self, topic: &TopicName, receivers: &mut Targets) {
        let clients: Vec<_> = receivers.clients().map(Text::as_str).collect();
        self.0.note("select", format!("{topic} {clients:?}"));
    }

    fn publish(&self, client: &Client, message: &mut Publication) -> Verdict {
        self.0.note("publish", format!("{} {}", client.id(), message.topic));
        Verdict::Go
    }

    fn published(&self, client: &Client, message: &Publication, receivers: usize) {
        self.0.note("published", format!("{} {} {receivers}", client.id(), message.topic));
    }

    fn dropped(&self, message: &Dropped<'_>) {
        self.0.note("dropped", format!("{} {} {:?}", message.client_id, message.topic, message.reason));
    }

    fn retained(&self, message: &Publication) {
        self.0.note("retained", &message.topic);
    }

    fn retained_sent(&self, client: &Client, topic: &str) {
        self.0.note("retained_sent", format!("{} {topic}", client.id()));
    }

    fn qos_sent(&self, client: &Client, message: &InFlight<'_>) {
        self.0.note("qos_sent", format!("{} {} {}", client.id(), message.topic, message.qos.bits()));
    }

    fn qos_complete(&self, client: &Client, message: &InFlight<'_>) {
        self.0.note("qos_complete", format!("{} {}", client.id(), message.topic));
    }

    fn qos_dropped(&self, client: &Client, _packet_id: u16, reason: QosDropReason) {
        self.0.note("qos_dropped", format!("{} {reason:?}", client.id()));
    }

    fn send_quota_exhausted(&self, client: &Client) {
        self.0.note("send_quota_exhausted", client.id());
    }

    fn will(&self, client_id: &Text, will: &mut Publication) -> Verdict {
        self.0.note("will", format!("{client_id} {}", will.topic));
        Verdict::Go
    }

    fn will_sent(&self, client_id: &Text, will: &Publication, receivers: usize) {
        self.0.note("will_sent", format!("{client_id} {} {receivers}", will.topic));
    }

    fn session_expired(&self, client_id: &Text) {
        self.0.note("session_expired", client_id);
    }

    fn retained_expired(&self, topic: &str) {
        self.0.note("retained_expired", topic);
    }

    fn slow_begun(&self, client_id: &Text) {
        self.0.note("slow_begun", client_id);
    }

    fn slow_ended(&self, client_id: &Text) {
        self.0.note("slow_ended", client_id);
    }

    fn group_backlog(&self, group: &str, _messages: usize, is_over: bool) {
        self.0.note("group_backlog", format!("{group} {is_over}"));
    }

    fn denied(&self, denial: &Denial<'_>) {
        self.0.note("denied", format!("{} {} {}", denial.client_id, denial.action, denial.topic));
    }
}

/// Records logins and steps of extended authentication, and accepts them.
pub(crate) struct Logins(pub(crate) Recorder);

struct Step(Recorder);

fn accept() -> Answer {
    Answer::Accept { identity: Identity::anonymous(), data: None }
}

impl Authenticator for Logins {
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_> {
        self.0.note("authenticate", &request.client_id);
        let exchange = Box::new(Step(self.0.clone()));
        let answer = request.method.map_or_else(accept, |_| Answer::Continue { data: None, exchange });
        Box::pin(async { answer })
    }
}

impl Exchange for Step {
    fn step(self: Box<Self>, _data: Option<Secret>) -> AuthFuture<'static> {
        self.0.note("auth_packet", "");
        Box::pin(async { accept() })
    }
}

/// Records checks of topics, and allows them.
pub(crate) struct Rights(pub(crate) Recorder);

impl Authorizer for Rights {
    fn authorize(&self, who: &Principal, action: Action<'_>) -> Decision {
        if let Action::Publish(topic) = action {
            self.0.note("authorize", format!("{} {topic}", who.client_id));
        }
        Decision::Allow
    }
}
