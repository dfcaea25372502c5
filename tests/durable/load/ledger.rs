use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use bytes::Bytes;
use tenbin_codec::{Publish, QoS};

use crate::support::{at_qos, with_expiry};

/// A publisher's record of its messages.
#[derive(Default)]
pub(crate) struct Sent {
    /// By topic. A message's number is its index.
    pub(crate) topics: HashMap<Topic, Vec<Fate>>,
}

/// A topic, which has one publisher and one QoS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Topic {
    pub(crate) publisher: usize,
    pub(crate) qos: QoS,
    pub(crate) is_shared: bool,
    pub(crate) which: u64,
}

/// One message of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Number {
    pub(crate) topic: Topic,
    pub(crate) number: usize,
}

/// Rounds in which a message was first sent, and in which its PUBACK or PUBREC arrived.
#[derive(Clone, Copy)]
pub(crate) struct Fate {
    pub(crate) sent: usize,
    pub(crate) first_sent: Instant,
    /// True if it was sent again with DUP.
    pub(crate) is_repeated: bool,
    /// Round of an acknowledgement with success.
    pub(crate) acknowledged: Option<usize>,
    pub(crate) is_refused: bool,
}

impl Sent {
    /// Adds a new message on `topic`.
    pub(crate) fn add(&mut self, topic: Topic, round: usize) -> Number {
        let fates = self.topics.entry(topic).or_default();
        let first_sent = Instant::now();
        fates.push(Fate { sent: round, first_sent, is_repeated: false, acknowledged: None, is_refused: false });
        Number { topic, number: fates.len() - 1 }
    }

    pub(crate) fn acknowledged(&mut self, message: Number, round: usize) {
        self.fate(message).acknowledged.get_or_insert(round);
    }

    pub(crate) fn refused(&mut self, message: Number) {
        self.fate(message).is_refused = true;
    }

    pub(crate) fn repeated(&mut self, message: Number) {
        self.fate(message).is_repeated = true;
    }

    fn fate(&mut self, Number { topic, number }: Number) -> &mut Fate {
        &mut self.topics.get_mut(&topic).expect("sent")[number]
    }

    /// Number of refused messages.
    pub(crate) fn refusals(&self) -> usize {
        self.topics.values().flatten().filter(|fate| fate.is_refused).count()
    }

    /// Number of acknowledged messages.
    pub(crate) fn count(&self) -> usize {
        self.topics.values().flatten().filter(|fate| fate.acknowledged.is_some()).count()
    }
}

impl Number {
    pub(crate) fn to_publish(self) -> Publish {
        let Self { topic, .. } = self;
        let publish = Publish { payload: self.payload(), ..at_qos(&topic.to_string(), "", topic.qos) };
        if self.number % 7 == 3 { with_expiry(publish, EXPIRY_SECONDS) } else { publish }
    }

    /// Identifies a received message. Returns `None` if it differs from the published one.
    pub(crate) fn of(publish: &Publish) -> Option<Self> {
        let topic = Topic::parse(std::str::from_utf8(publish.topic.as_bytes()).ok()?)?;
        let text = std::str::from_utf8(&publish.payload).ok()?;
        let number = Self { topic, number: text.split('.').next()?.parse().ok()? };
        (number.payload() == publish.payload).then_some(number)
    }

    /// Mostly short. A few payloads exceed a page, or the size up to which payloads are copied.
    fn payload(self) -> Bytes {
        let length = match self.number % 100 {
            0 => 20_000,
            50 => 5000,
            other => 20 + other * 5,
        };
        format!("{}{}", self.number, ".".repeat(length)).into()
    }
}

impl Topic {
    fn parse(text: &str) -> Option<Self> {
        let mut levels = text.split('/');
        let is_shared = match levels.next()? {
            "group" => true,
            "load" => false,
            _ => return None,
        };
        let mut next = || levels.next()?.parse::<u64>().ok();
        let (publisher, qos, which) = (next()? as usize, QoS::from_bits(next()? as u8)?, next()?);
        Some(Self { publisher, qos, is_shared, which })
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = if self.is_shared { "group" } else { "load" };
        write!(f, "{first}/{}/{}/{}", self.publisher, self.qos, self.which)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topic {}, message {}", self.topic, self.number)
    }
}

/// A receiver's record: how often each message arrived, without repetitions of one QoS 2 delivery.
#[derive(Default)]
pub(crate) struct Received {
    topics: HashMap<Topic, Vec<u8>>,
    /// Total number of deliveries.
    pub(crate) deliveries: usize,
}

impl Received {
    /// Adds a delivery. Returns how often its message has arrived now, and the previous end of its topic.
    pub(crate) fn add(&mut self, Number { topic, number }: Number) -> (u8, usize) {
        self.deliveries += 1;
        let counts = self.topics.entry(topic).or_default();
        let before = counts.len();
        if before <= number {
            counts.resize(number + 1, 0);
        }
        counts[number] = counts[number].saturating_add(1);
        (counts[number], before)
    }

    /// As [`Received::add`], for a session whose deliveries are counted elsewhere.
    pub(crate) fn add_uncounted(&mut self, message: Number) {
        self.add(message);
        self.deliveries -= 1;
    }

    pub(crate) fn count(&self, topic: Topic, number: usize) -> u8 {
        self.topics.get(&topic).and_then(|counts| counts.get(number)).copied().unwrap_or(0)
    }

    /// One more than the highest number received.
    pub(crate) fn end(&self, topic: Topic) -> usize {
        self.topics.get(&topic).map_or(0, Vec::len)
    }
}

/// Message Expiry Interval of some messages: longer than any run.
pub(crate) const EXPIRY_SECONDS: u32 = 86_000;
