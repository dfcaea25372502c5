//! Messages that become dead letters, and the message that each becomes.
//!
//! The original ends once its letter is durable. A crash in between repeats the letter, and loses none.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use tenbin_codec::{
    Decoded, Decoder, MessageProperties, Packet, ProtocolVersion, PublishHeader, SharedFilter, Text, TopicName,
    UserProperty, WriteBuffer,
};
use tenbin_session::{Delivery, Publication};
use tokio::sync::{Notify, mpsc};

use super::share_group::SharedGroup;
use crate::durable::{Ended, Place};
use crate::values::WorkQueue;

/// Why a message becomes a dead letter.
#[derive(Debug, Clone)]
pub(crate) struct Fate {
    pub(crate) reason: Text,
    /// Client Identifier of the member that had the message last; empty if it is unknown.
    pub(crate) client: Text,
}

/// A message that is to become a dead letter, or a dead letter that is to become its original again.
#[derive(Debug)]
pub(crate) struct Doomed {
    group: SharedFilter,
    number: NonZeroU64,
    becomes: Becomes,
    figures: Arc<WorkFigures>,
    /// The whole message, as published.
    delivery: Delivery,
    /// Its entry on disk.
    place: Option<Place>,
    /// Attempts to publish its letter.
    attempts: u8,
}

/// What a message becomes.
#[derive(Debug)]
enum Becomes {
    /// The dead letter of these rules, or nothing if they name no topic.
    Letter(Arc<WorkQueue>, Fate),
    /// The message that it was before it became a dead letter. The channel tells whether it is published; it is a letter in the
    /// backlog again otherwise.
    Original(mpsc::Sender<bool>),
}

/// User Properties of a dead letter.
#[derive(Debug, Clone)]
pub(crate) struct LetterProperties(MessageProperties);

/// Messages that wait to become dead letters.
#[derive(Debug, Default)]
pub(crate) struct DeadLetters {
    waiting: Mutex<Vec<Doomed>>,
    added: Notify,
}

/// Totals of a share group about messages that its members did not process. Relaxed.
#[derive(Debug, Default)]
pub(crate) struct WorkFigures {
    /// Messages that members rejected.
    pub(crate) rejected: AtomicU64,
    /// Messages that members did not acknowledge in time.
    pub(crate) overdue: AtomicU64,
    /// Messages that were to be delivered again.
    pub(crate) retried: AtomicU64,
    /// Messages that became dead letters, or were dropped in place of that.
    pub(crate) dead_lettered: AtomicU64,
    /// Messages now whose letters wait, as a receiver refused them.
    pub(crate) letters_refused: AtomicU64,
    /// Bytes of messages on their way to the dead letters.
    doomed_bytes: AtomicUsize,
}

impl WorkFigures {
    /// Whether the dead letters are behind, so that new messages have to be refused.
    pub(super) fn are_behind(&self) -> bool {
        self.doomed_bytes.load(Ordering::Relaxed) >= DOOMED_BYTES_MAX
    }
}

impl DeadLetters {
    fn add(&self, doomed: Doomed) {
        doomed.figures.doomed_bytes.fetch_add(doomed.delivery.queued_bytes(), Ordering::Relaxed);
        self.waiting().push(doomed);
        self.added.notify_one();
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> Vec<Doomed> {
        std::mem::take(&mut *self.waiting())
    }

    /// Waits until there are more.
    pub(crate) async fn added(&self) {
        self.added.notified().await;
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Doomed>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Doomed {
    /// Share name and filter of the group.
    pub(crate) fn group(&self) -> &SharedFilter {
        &self.group
    }

    /// Topic of the message.
    pub(crate) fn topic(&self) -> &str {
        std::str::from_utf8(self.delivery.template.topic()).unwrap_or_default()
    }

    /// Deliveries of the message.
    pub(crate) fn deliveries(&self) -> u32 {
        self.delivery.deliveries()
    }

    /// Why it becomes a dead letter; `None`: it becomes its original again.
    pub(crate) fn fate(&self) -> Option<&Fate> {
        match &self.becomes {
            Becomes::Letter(_, fate) => Some(fate),
            Becomes::Original(_) => None,
        }
    }

    pub(crate) fn place(&self) -> Option<Place> {
        self.place
    }

    /// Whether something is to be published in place of the message.
    pub(crate) fn has_letter(&self) -> bool {
        match &self.becomes {
            Becomes::Letter(rules, _) => rules.dead_letter.is_some(),
            Becomes::Original(_) => true,
        }
    }

    /// Whether it is a dead letter that is to become its original again. It stays a letter unless each receiver takes the
    /// original.
    pub(crate) fn is_replayed(&self) -> bool {
        matches!(self.becomes, Becomes::Original(_))
    }

    /// Takes a letter apart whose original is not published, for [`SharedGroup::put_letter_back`].
    pub(crate) fn into_letter(self) -> (NonZeroU64, Delivery) {
        self.figures.doomed_bytes.fetch_sub(self.delivery.queued_bytes(), Ordering::Relaxed);
        if let Becomes::Original(ended) = self.becomes {
            let _ = ended.try_send(false); // the operator may have gone
        }
        (self.number, self.delivery)
    }

    /// Why the message ends once what it becomes is durable.
    pub(crate) fn cause(&self) -> Ended {
        match self.becomes {
            Becomes::Letter(..) => Ended::DeadLetter,
            Becomes::Original(_) => Ended::Replayed,
        }
    }

    /// Counts an attempt to publish its letter, which a receiver refused, and returns their number.
    pub(crate) fn tried(&mut self) -> u8 {
        if self.attempts == 0 {
            self.figures.letters_refused.fetch_add(1, Ordering::Relaxed);
        }
        self.attempts = self.attempts.saturating_add(1);
        self.attempts
    }

    /// Counts the message, which has ended. Returns the number of its group if that has waited for it.
    pub(crate) fn ended(self) -> Option<NonZeroU64> {
        let were_behind = self.figures.are_behind();
        if self.attempts > 0 {
            self.figures.letters_refused.fetch_sub(1, Ordering::Relaxed);
        }
        match &self.becomes {
            Becomes::Letter(..) => {
                self.figures.dead_lettered.fetch_add(1, Ordering::Relaxed);
            }
            Becomes::Original(ended) => {
                let _ = ended.try_send(true); // the operator may have gone
            }
        }
        self.figures.doomed_bytes.fetch_sub(self.delivery.queued_bytes(), Ordering::Relaxed);
        (were_behind && !self.figures.are_behind()).then_some(self.number)
    }

    /// Makes the message that it becomes. `None` if no topic is legal: by `is_legal`, and as the group must not get its own
    /// letter.
    pub(crate) fn letter(&self, is_legal: impl Fn(&Publication) -> bool, now: Instant) -> Option<Publication> {
        let (rules, fate) = match &self.becomes {
            Becomes::Letter(rules, fate) => (rules, fate),
            Becomes::Original(_) => {
                let properties = LetterProperties::of(&self.delivery)?;
                return Some(original(&self.delivery, properties, now)?).filter(is_legal);
            }
        };
        let template = rules.dead_letter.as_ref()?;
        let share_name = self.group.share_name.text();
        // A topic that is too long for the template is in a User Property all the same.
        [self.topic(), ""].into_iter().find_map(|topic| {
            let name = template.of(share_name.as_str(), topic)?;
            if self.group.filter.matches(&name) {
                return None;
            }
            Some(self.letter_to(name, fate, now)).filter(&is_legal)
        })
    }

    fn letter_to(&self, topic: TopicName, fate: &Fate, now: Instant) -> Publication {
        let mut properties = properties_of(&self.delivery).unwrap_or_default();
        // A letter about a letter tells of the last group.
        remove_letter_properties(&mut properties);
        let deliveries = self.deliveries().to_string();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string();
        for (name, value) in [
            (REASON, fate.reason.as_str()),
            (GROUP, self.group.share_name.text().as_str()),
            (TOPIC, self.topic()),
            (DELIVERIES, &deliveries),
            (CLIENT, fate.client.as_str()),
            (TIME, &time),
        ] {
            if let Ok(value) = Text::try_from(value) {
                properties.user_properties.push(UserProperty::new(Text::from_static(name), value));
            }
        }
        published_again(&self.delivery, topic, properties, now)
    }
}

impl LetterProperties {
    /// The properties of a message; `None` if it is no dead letter.
    pub(crate) fn of(delivery: &Delivery) -> Option<Self> {
        let properties = Self(properties_of(delivery)?);
        properties.value(GROUP).and(properties.value(TOPIC)).is_some().then_some(properties)
    }

    fn value(&self, name: &str) -> Option<&str> {
        let property = self.0.user_properties.iter().find(|property| property.name.as_str() == name)?;
        Some(property.value.as_str())
    }

    /// Share name of the group whose message it was.
    pub(crate) fn group(&self) -> &str {
        self.value(GROUP).unwrap_or_default()
    }

    /// Topic of that message.
    pub(crate) fn topic(&self) -> &str {
        self.value(TOPIC).unwrap_or_default()
    }

    pub(crate) fn reason(&self) -> &str {
        self.value(REASON).unwrap_or_default()
    }

    /// Client Identifier of the member that had the message last; empty if it is unknown.
    pub(crate) fn client(&self) -> &str {
        self.value(CLIENT).unwrap_or_default()
    }

    pub(crate) fn deliveries(&self) -> u32 {
        self.value(DELIVERIES).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// When it became a dead letter.
    pub(crate) fn time(&self) -> Option<SystemTime> {
        Some(UNIX_EPOCH + Duration::from_millis(self.value(TIME)?.parse().ok()?))
    }
}

/// The message that a dead letter was before. `None`: its topic is none.
pub(crate) fn original(delivery: &Delivery, properties: LetterProperties, now: Instant) -> Option<Publication> {
    let topic = TopicName::try_from(properties.topic()).ok()?;
    let LetterProperties(mut properties) = properties;
    remove_letter_properties(&mut properties);
    Some(published_again(delivery, topic, properties, now))
}

fn remove_letter_properties(properties: &mut MessageProperties) {
    properties.user_properties.retain(|property| !property.name.as_str().starts_with(PREFIX));
}

/// A new message with payload, QoS and remaining expiry of another one.
fn published_again(
    delivery: &Delivery,
    topic: TopicName,
    mut properties: MessageProperties,
    now: Instant,
) -> Publication {
    let expires_at = delivery.expires_at.filter(|at| *at > now); // an expired message has no expiry as a letter
    properties.message_expiry_interval = expires_at.and_then(|_| delivery.remaining_expiry(now));
    Publication {
        qos: delivery.published_qos,
        properties: properties.boxed(),
        expires_at,
        ..Publication::new(topic, Bytes::copy_from_slice(delivery.template.payload()))
    }
}

impl SharedGroup {
    /// Makes a message a dead letter. It must be whole.
    pub(super) fn doom(&self, rules: Arc<WorkQueue>, delivery: Delivery, place: Option<Place>, fate: Fate) {
        self.replace(Becomes::Letter(rules, fate), delivery, place);
    }

    /// Publishes the original of a dead letter that was taken out of the backlog. `ended` tells when the original is
    /// durable.
    pub(crate) fn replay(&self, letter: Delivery, ended: mpsc::Sender<bool>) {
        let place = self.stored().and_then(|queue| queue.place_of(letter.stored));
        self.replace(Becomes::Original(ended), letter, place);
    }

    /// Ends a message that was taken out of the backlog.
    pub(crate) fn end_waiting(&self, cause: Ended, delivery: &Delivery) {
        self.end_stored(cause, delivery.stored);
    }

    fn replace(&self, becomes: Becomes, delivery: Delivery, place: Option<Place>) {
        let (group, figures) = (self.name().clone(), Arc::clone(&self.figures));
        let delivery = Delivery { template: delivery.template.detach(), ..delivery.as_published() };
        let doomed = Doomed { group, number: self.number(), becomes, figures, delivery, place, attempts: 0 };
        self.queues.dead_letters.add(doomed);
    }

    /// Makes an expired message a dead letter, if the rules say so. Returns it otherwise.
    pub(crate) fn doom_expired(&self, delivery: Delivery) -> Option<Delivery> {
        let Some(rules) = self.work.load_full().filter(|rules| rules.expired_to_dead_letter) else {
            return Some(delivery);
        };
        self.doom_waiting(rules, delivery, Text::from_static("expired"));
        None
    }

    /// Makes a message a dead letter that no member has, any more or so far.
    pub(super) fn doom_waiting(&self, rules: Arc<WorkQueue>, delivery: Delivery, reason: Text) {
        let place = self.stored().and_then(|queue| queue.place_of(delivery.stored));
        let last = delivery.last_receiver().and_then(|number| self.client_of(number));
        self.doom(rules, delivery, place, Fate { reason, client: last.unwrap_or(Text::EMPTY) });
    }

    /// Returns whether expired messages become dead letters.
    pub(crate) fn dooms_expired(&self) -> bool {
        self.work.load().as_ref().is_some_and(|rules| rules.expired_to_dead_letter)
    }
}

/// The properties of a message, without its expiry.
fn properties_of(delivery: &Delivery) -> Option<MessageProperties> {
    let (version, mut out) = (ProtocolVersion::V5, WriteBuffer::new());
    delivery.template.encode(&PublishHeader::default(), version, &mut out);
    let mut input = BytesMut::from(&out.to_bytes()[..]);
    match Decoder::client(version, u32::MAX).decode(&mut input) {
        Ok(Decoded::Packet(Packet::Publish(publish))) => publish.properties.map(|properties| properties.detach()),
        _ => None,
    }
}

/// Names of the User Properties of a dead letter begin with it.
const PREFIX: &str = "dead-letter-";
const REASON: &str = "dead-letter-reason";
const GROUP: &str = "dead-letter-group";
const TOPIC: &str = "dead-letter-topic";
const DELIVERIES: &str = "dead-letter-deliveries";
const CLIENT: &str = "dead-letter-client";
const TIME: &str = "dead-letter-time";
/// Bytes of one group's messages on their way to the dead letters, from which on it refuses new ones.
const DOOMED_BYTES_MAX: usize = 16 << 20;
