use super::{
    Client, Connecting, CopiesChange, DeadLetter, Denial, Dropped, Ending, Events, Granted, Handle, InFlight,
    LeaderChange, Outgoing, Packet, PacketType, Publication, QosDropReason, ReasonCode, Subscribing, Targets, Text,
    TopicFilter, TopicName,
};
use crate::metrics::MetricsSnapshot;

/// Code of the embedding program at the events of a broker.
///
/// Methods run on the task of the client's connection, or on a task of the broker, and must not wait. Several hooks are
/// called in the order in which they were added. A panic of a method ends the connection on whose task it ran, with
/// Reason Code 0x83, and nothing else.
///
/// Each event that concerns single messages takes the broker's fastest path away from them: publish, published, dropped
/// and all packet events.
#[allow(unused_variables, reason = "the defaults do nothing")]
pub trait Hooks: Send + Sync + 'static {
    /// Events whose methods are to be called. Asked once, before the broker starts.
    fn wants(&self) -> Events;

    /// The broker serves clients.
    fn started(&self, broker: &Handle) {}

    /// The broker has closed its connections, and stored its state.
    fn stopped(&self) {}

    /// The topics below `$SYS/` are about to be published.
    fn sys_tick(&self, metrics: &MetricsSnapshot) {}

    /// A client has sent CONNECT, which is not authenticated yet. [`Verdict::Drop`] closes without an answer.
    fn connect(&self, client: &Connecting<'_>) -> Verdict {
        Verdict::Go
    }

    /// A client is about to get its CONNACK, whose properties may be changed.
    fn session_establish(&self, client: &Client, granted: &mut Granted) {}

    /// A client is connected; its CONNACK is on the way. `present`: it continues an earlier session.
    fn session_established(&self, client: &Client, present: bool) {}

    /// A connection has ended.
    fn disconnected(&self, client: &Client, ending: &Ending) {}

    /// A packet has arrived. [`Verdict::Drop`] ignores it without an answer, [`Verdict::Refuse`] ends the connection.
    fn packet_read(&self, client: &Client, packet: &Packet) -> Verdict {
        Verdict::Go
    }

    /// A packet was applied, or has ended the connection for this reason.
    fn packet_processed(&self, client: &Client, kind: PacketType, result: Result<(), ReasonCode>) {}

    /// A packet is encoded and leaves next. From CONNACK on, without the last DISCONNECT.
    fn packet_encode(&self, client: &Client, packet: &mut Outgoing) {}

    /// The socket has taken a packet of this many bytes. As [`packet_encode`](Self::packet_encode).
    fn packet_sent(&self, client: &Client, kind: PacketType, bytes: usize) {}

    /// A client asks for a subscription; filter and options may be changed.
    ///
    /// UNSUBSCRIBE of the client's own filter ends the subscription to the changed one, in the same session and up to
    /// the next start of the broker. The same filter needs the same change each time.
    fn subscribe(&self, client: &Client, subscription: &mut Subscribing) -> Verdict {
        Verdict::Go
    }

    /// A client's subscription was granted or refused.
    fn subscribed(&self, client: &Client, subscription: &Subscribing, reason: ReasonCode) {}

    /// A client asks for the end of a subscription.
    fn unsubscribe(&self, client: &Client, filter: &TopicFilter) -> Verdict {
        Verdict::Go
    }

    /// A client's subscription has ended, or not, for this reason. A filter that
    /// [`subscribe`](Self::subscribe) has changed is told as changed.
    fn unsubscribed(&self, client: &Client, filter: &TopicFilter, reason: ReasonCode) {}

    /// The receivers of a topic were found; some may be left out.
    ///
    /// Connections remember the result: see [`Handle::invalidate_routes`].
    fn select(&self, topic: &TopicName, receivers: &mut Targets) {}

    /// A client publishes a message, which may be changed.
    ///
    /// A change that no client could publish refuses the message, with a log line: a reserved topic or `$load`, a topic
    /// or message that is too long, a response topic with wildcards, a payload that is not the text it claims to be.
    ///
    /// [`Verdict::Drop`] acknowledges it with success and does not forward it. [`Verdict::Refuse`] acknowledges it
    /// with the Reason Code; at QoS 0, and at MQTT 3.1.1, that does the same as dropping it.
    fn publish(&self, client: &Client, message: &mut Publication) -> Verdict {
        Verdict::Go
    }

    /// A client's message is in the queues of this number of receivers. A share group counts as one.
    fn published(&self, client: &Client, message: &Publication, receivers: usize) {}

    /// A message was dropped on the way to a receiver.
    fn dropped(&self, message: &Dropped<'_>) {}

    /// A message was retained; one without payload has removed its topic's message.
    fn retained(&self, message: &Publication) {}

    /// A retained message is sent for a new subscription.
    fn retained_sent(&self, client: &Client, topic: &str) {}

    /// A message of QoS 1 or 2 is sent.
    fn qos_sent(&self, client: &Client, message: &InFlight<'_>) {}

    /// A client has acknowledged a message of QoS 1 or 2 completely.
    ///
    /// The topic is empty and the QoS 1 if an earlier connection has sent the message.
    fn qos_complete(&self, client: &Client, message: &InFlight<'_>) {}

    /// A sent message of QoS 1 or 2 ends without a complete acknowledgement.
    fn qos_dropped(&self, client: &Client, packet_id: u16, reason: QosDropReason) {}

    /// A client has as many unacknowledged messages as it accepts. Packet Identifiers cannot run out before.
    fn send_quota_exhausted(&self, client: &Client) {}

    /// A Will is about to be published, and may be changed. Any verdict but [`Verdict::Go`] drops it, as do changes
    /// that [`publish`](Self::publish) may not make.
    fn will(&self, client_id: &Text, will: &mut Publication) -> Verdict {
        Verdict::Go
    }

    /// A Will is in the queues of this number of receivers.
    fn will_sent(&self, client_id: &Text, will: &Publication, receivers: usize) {}

    /// A session has expired.
    fn session_expired(&self, client_id: &Text) {}

    /// A retained message has expired and was removed.
    fn retained_expired(&self, topic: &str) {}

    /// A connected client takes messages more slowly than they arrive, as `$SYS/broker/clients/watch` counts it.
    fn slow_begun(&self, client_id: &Text) {}

    /// A slow client has caught up, or its connection has ended.
    fn slow_ended(&self, client_id: &Text) {}

    /// The backlog of a share group (`$share/NAME/FILTER`) is full or holds its publishers' acknowledgements, or
    /// `is_over`: no longer. The broker looks each second. `messages`: length of the backlog.
    fn group_backlog(&self, group: &str, messages: usize, is_over: bool) {}

    /// A message of a share group has become a dead letter, or was dropped in place of that.
    fn dead_letter(&self, letter: &DeadLetter<'_>) {}

    /// Rules have denied an action of a client, which MQTT 3.1.1 does not tell it.
    fn denied(&self, denial: &Denial<'_>) {}

    /// This broker is the new leader of its cluster, and serves clients.
    fn leader_changed(&self, change: &LeaderChange<'_>) {}

    /// Another number of nodes has all acknowledged messages.
    fn copies_changed(&self, change: &CopiesChange<'_>) {}
}

/// Decision of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As without the hook.
    Go,
    /// Refuse, with this Reason Code.
    Refuse(ReasonCode),
    /// Drop in silence.
    Drop,
}
