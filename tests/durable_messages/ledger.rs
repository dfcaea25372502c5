use std::collections::HashMap;
use std::fmt;

use bytes::Bytes;
use tenbin_codec::{Publish, QoS};

use super::support::at_qos;

/// What a publisher knows of its messages.
#[derive(Default)]
pub(crate) struct Sent {
    /// By topic; a message's number is its place.
    pub(crate) topics: HashMap<Topic, Vec<Fate>>,
}

/// A topic has one publisher and one QoS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Topic {
    pub(crate) publisher: usize,
    pub(crate) qos: QoS,
    pub(crate) is_shared: bool,
    pub(crate) which: u64,
}

/// One message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Number {
    pub(crate) topic: Topic,
    pub(crate) number: usize,
}

/// The rounds in which a message was first sent, and in which PUBACK or PUBREC came.
#[derive(Clone, Copy)]
pub(crate) struct Fate {
    pub(crate) sent: usize,
    pub(crate) acknowledged: Option<usize>,
}

impl Sent {
    /// A new message on `topic`.
    pub(crate) fn add(&mut self, topic: Topic, round: usize) -> Number {
        let fates = self.topics.entry(topic).or_default();
        fates.push(Fate { sent: round, acknowledged: None });
        Number { topic, number: fates.len() - 1 }
    }

    pub(crate) fn acknowledged(&mut self, Number { topic, number }: Number, round: usize) {
        let fate = &mut self.topics.get_mut(&topic).expect("sent")[number];
        fate.acknowledged.get_or_insert(round);
    }

    /// How many were acknowledged.
    pub(crate) fn count(&self) -> usize {
        self.topics.values().flatten().filter(|fate| fate.acknowledged.is_some()).count()
    }
}

impl Number {
    pub(crate) fn to_publish(self) -> Publish {
        let Self { topic, .. } = self;
        Publish { payload: self.payload(), ..at_qos(&topic.to_string(), "", topic.qos) }
    }

    /// Whose message it is; `None` where it is not as it was published.
    pub(crate) fn of(publish: &Publish) -> Option<Self> {
        let topic = Topic::parse(std::str::from_utf8(publish.topic.as_bytes()).ok()?)?;
        let text = std::str::from_utf8(&publish.payload).ok()?;
        let number = Self { topic, number: text.split('.').next()?.parse().ok()? };
        (number.payload() == publish.payload).then_some(number)
    }

    /// Mostly short; a few are larger than a page, or than what is copied.
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

/// What one receiver got: how often each message came, repetitions of one delivery at QoS 2 left out.
#[derive(Default)]
pub(crate) struct Received {
    topics: HashMap<Topic, Vec<u8>>,
    /// Deliveries in all.
    pub(crate) deliveries: usize,
}

impl Received {
    /// How often it has come now, and how far its topic had come before.
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

    pub(crate) fn count(&self, topic: Topic, number: usize) -> u8 {
        self.topics.get(&topic).and_then(|counts| counts.get(number)).copied().unwrap_or(0)
    }

    /// One more than the highest number that has come.
    pub(crate) fn end(&self, topic: Topic) -> usize {
        self.topics.get(&topic).map_or(0, Vec::len)
    }
}
