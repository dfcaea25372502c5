//! Spans of sampled messages, for a collector of OpenTelemetry.
//!
//! ```text
//!   PUBLISH with a sampled traceparent ── begin: the id of a span *publish*, written into the property
//!     router ── choice of each share group ──┐
//!   batch handed over ── *publish* ends ─────┼─ known messages: the last 4,096, by that id
//!   receiver ── traceparent of the message ──┘  begin a span *deliver*, until it is sent or acknowledged
//! ```
//!
//! The message itself carries the id, so that queues, groups and the disk know nothing of spans.

mod span;
mod trace_parent;

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustc_hash::FxHashMap;
use serde_json::Value;
use tenbin_codec::{PublishTemplate, QoS, Text, UserProperty};
use tenbin_session::{Delivery, Publication};

use crate::event_queue::{Bounds, EventQueue};
use span::{Operation, Span, integer, milliseconds, text};
pub(crate) use span::{rejected, request};
use trace_parent::TraceParent;

/// Spans of a broker, and the messages of which there are some.
#[derive(Debug)]
pub(crate) struct Telemetry {
    queue: Arc<EventQueue>,
    /// Share of the messages without a trace for which one begins.
    root_ratio: f64,
    known: Mutex<Known>,
    /// Makes ids of `count`.
    ids: RandomState,
    /// Relaxed: only its value matters.
    count: AtomicU64,
}

/// Sampled messages, by their span *publish*.
#[derive(Debug, Default)]
struct Known {
    messages: FxHashMap<u64, Message>,
    /// Their ids, oldest first.
    order: VecDeque<u64>,
}

#[derive(Debug)]
struct Message {
    /// When it went to its receivers' queues.
    at: SystemTime,
    payload_bytes: usize,
    /// The last choice of each share group.
    choices: Vec<GroupChoice>,
}

/// A choice of a share group.
#[derive(Debug, Clone)]
pub(crate) struct GroupChoice {
    pub(crate) group: NonZeroU64,
    /// `$share/NAME/FILTER`.
    pub(crate) name: String,
    /// Client Identifier; `None`: the message waits with the group.
    pub(crate) member: Option<Text>,
    pub(crate) reason: &'static str,
    pub(crate) predicted_wait: Option<Duration>,
    pub(crate) at: SystemTime,
}

/// A span *publish* that has begun.
#[derive(Debug)]
pub(crate) struct PublishSpan {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    begin: SystemTime,
    attributes: Vec<Value>,
}

/// A span *deliver*. One that is dropped ends with an error: its connection has ended before it.
#[derive(Debug)]
pub(crate) struct DeliverSpan {
    queue: Arc<EventQueue>,
    /// Boxed, as few messages have one.
    span: Option<Box<Span>>,
}

impl Telemetry {
    pub(crate) fn new(root_ratio: f64) -> Self {
        let (queue, known) = (Arc::new(EventQueue::new(BOUNDS)), Mutex::default());
        Self { queue, root_ratio, known, ids: RandomState::new(), count: AtomicU64::new(0) }
    }

    /// Spans that have ended.
    pub(crate) fn queue(&self) -> &Arc<EventQueue> {
        &self.queue
    }

    /// Whether traces may begin with any message.
    pub(crate) fn begins_traces(&self) -> bool {
        self.root_ratio > 0.0
    }

    /// Begins the span *publish* of a message, which was read at `read_at`, and writes its id into the message. `None`: the
    /// message is not sampled.
    pub(crate) fn begin(&self, client: &Text, publication: &mut Publication, read_at: Instant) -> Option<PublishSpan> {
        let is_given = |property: &&mut UserProperty| property.name.as_bytes() == TraceParent::NAME.as_bytes();
        let properties = publication.properties.as_mut().map(|properties| &mut properties.user_properties);
        let given = properties.and_then(|properties| properties.iter_mut().find(is_given));
        let (trace, id, parent) = if let Some(property) = given {
            let (parent, id) = (TraceParent::sampled(property.value.as_bytes())?, self.next_id());
            property.value = parent.with_span(id);
            (parent.trace, id, Some(parent.span))
        } else if self.draws_root() {
            let trace = u128::from(self.next_id()) << 64 | u128::from(self.next_id());
            let id = self.next_id();
            let (name, value) = (Text::from_static(TraceParent::NAME), TraceParent::root(trace, id).with_span(id));
            publication.properties.get_or_insert_default().user_properties.push(UserProperty::new(name, value));
            (trace, id, None)
        } else {
            return None;
        };
        let (at, payload_bytes) = (SystemTime::now(), publication.payload.len());
        self.known().add(id, Message { at, payload_bytes, choices: Vec::new() });
        let topic = publication.topic.text().as_str();
        let attributes = attributes(client, topic, publication.qos, payload_bytes);
        Some(PublishSpan { trace, id, parent, begin: at - read_at.elapsed(), attributes })
    }

    /// Ends the span of a message that has reached `receivers` receivers; a share group counts as one.
    pub(crate) fn end(&self, span: PublishSpan, receivers: usize) {
        let PublishSpan { trace, id, parent, begin, mut attributes } = span;
        let choice = self.known().messages.get(&id).and_then(|message| message.choices.first().cloned());
        attributes.push(integer("tenbin.receivers", receivers));
        if let Some(GroupChoice { name, member, reason, predicted_wait, .. }) = choice {
            attributes.push(text("tenbin.group", &name));
            attributes.extend(member.map(|member| text("tenbin.member", member.as_str())));
            attributes.push(text("tenbin.reason", reason));
            attributes.extend(predicted_wait.map(|wait| milliseconds("tenbin.predicted_wait_ms", wait)));
        }
        let (operation, end) = (Operation::Publish, SystemTime::now());
        let span = Span { operation, trace, id, parent, begin, end, attributes, events: Vec::new(), error: None };
        self.queue.push(span.into_json());
    }

    /// The id of the message's span, if the message is known.
    pub(crate) fn span_of(&self, template: &PublishTemplate) -> Option<u64> {
        let id = parent_in(template)?.span;
        self.known().messages.contains_key(&id).then_some(id)
    }

    /// Notes the choice of a share group for the message with this span.
    pub(crate) fn chosen(&self, id: u64, choice: GroupChoice) {
        let mut known = self.known();
        let Some(message) = known.messages.get_mut(&id) else { return };
        match message.choices.iter_mut().find(|earlier| earlier.group == choice.group) {
            Some(earlier) => *earlier = choice,
            None => message.choices.push(choice),
        }
    }

    /// Begins the span *deliver* of a message that `client` is about to get, from the time when the message went to the
    /// queues. `None`: the message is not known, or may be a retained one of an earlier time.
    pub(crate) fn deliver(&self, delivery: &Delivery, client: &Text) -> Option<DeliverSpan> {
        let parent = if delivery.retain { None } else { parent_in(&delivery.template) }?;
        let (begin, payload_bytes, choice) = {
            let known = self.known();
            let message = known.messages.get(&parent.span)?;
            let choice = message.choices.iter().find(|choice| Some(choice.group) == delivery.share).cloned();
            (message.at, message.payload_bytes, choice)
        };
        let topic = std::str::from_utf8(delivery.template.topic()).unwrap_or_default();
        let mut attributes = attributes(client, topic, delivery.qos, payload_bytes);
        let mut events = Vec::new();
        if let Some(GroupChoice { name, member, reason, predicted_wait, at, .. }) = choice {
            let is_own = member.as_ref() == Some(client);
            let reason = match member {
                Some(_) if is_own => reason,
                Some(_) => "moved",
                None => "waited",
            };
            attributes.extend([
                text("tenbin.group", &name),
                text("tenbin.member", client.as_str()),
                text("tenbin.reason", reason),
            ]);
            let wait = predicted_wait.filter(|_| is_own);
            attributes.extend(wait.map(|wait| milliseconds("tenbin.predicted_wait_ms", wait)));
            events.extend(is_own.then_some(("chosen", at)));
        }
        if delivery.deliveries() > 0 {
            attributes.push(integer("tenbin.earlier_deliveries", delivery.deliveries() as usize));
        }
        let span = Span {
            operation: Operation::Deliver,
            trace: parent.trace,
            id: self.next_id(),
            parent: Some(parent.span),
            begin,
            end: begin,
            attributes,
            events,
            error: None,
        };
        Some(DeliverSpan { queue: Arc::clone(&self.queue), span: Some(Box::new(span)) })
    }

    /// Whether a trace begins with a message that has none.
    fn draws_root(&self) -> bool {
        // A number of 53 bits, below 1.
        self.begins_traces() && self.root_ratio > (self.next_id() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A random number that is not 0.
    fn next_id(&self) -> u64 {
        self.ids.hash_one(self.count.fetch_add(1, Ordering::Relaxed)).max(1)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn add(&mut self, id: u64, message: Message) {
        if self.order.len() >= KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.messages.remove(&oldest);
        }
        self.messages.insert(id, message);
        self.order.push_back(id);
    }
}

impl DeliverSpan {
    /// The message is written, and its acknowledgement will end the span.
    pub(crate) fn sent(&mut self) {
        self.span.iter_mut().for_each(|span| span.events.push(("sent", SystemTime::now())));
    }

    pub(crate) fn end(mut self, error: Option<String>) {
        self.push(error);
    }

    /// The message stays in its queue.
    pub(crate) fn forget(mut self) {
        self.span = None;
    }

    fn push(&mut self, error: Option<String>) {
        if let Some(span) = self.span.take() {
            self.queue.push(Span { end: SystemTime::now(), error, ..*span }.into_json());
        }
    }
}

impl Drop for DeliverSpan {
    fn drop(&mut self) {
        self.push(Some("the connection has ended before the acknowledgement".to_owned()));
    }
}

/// The trace in the properties of a message.
fn parent_in(template: &PublishTemplate) -> Option<TraceParent> {
    TraceParent::sampled(template.user_property(TraceParent::NAME)?)
}

/// Attributes of both spans; `client`: publisher or receiver.
fn attributes(client: &Text, topic: &str, qos: QoS, payload_bytes: usize) -> Vec<Value> {
    vec![
        text("messaging.destination.name", topic),
        text("messaging.client.id", client.as_str()),
        integer("messaging.message.body.size", payload_bytes),
        integer("tenbin.qos", qos as usize),
    ]
}

const BOUNDS: Bounds = Bounds {
    waiting: 4096,
    batch: 512,
    gathered: Duration::from_secs(1),
    dropped: |metrics| &metrics.telemetry_dropped,
    taken: Some(|metrics| &metrics.telemetry_sent),
};
/// Messages of which the broker knows the span. Later ones take the place of the oldest.
const KNOWN_MAX: usize = 4096;

#[cfg(test)]
mod tests;
