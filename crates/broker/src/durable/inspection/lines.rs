//! Lines of a dump: each is a JSON object, and its `record` is the kind.

use std::collections::HashSet;

use base64ct::{Base64, Encoding as _};
use serde::Serialize;
use tenbin_codec::QoS;
use tenbin_session::Delivery;
use tenbin_store::state::{FORMAT_VERSION, Table, VERSION_KEY};

use crate::durable::bytes::{RecordError, text};
use crate::durable::groups::{GROUP_KEY, GroupRecord};
use crate::durable::record::{
    Owner, RetainedRecord, SessionRecord, SpeedRecord, WillRecord, decode_grant, decode_subscription_key,
    decode_will_key,
};
use crate::durable::wall_clock::WallTime;
use crate::durable::{NUMBERS_KEY, RUN_KEY};
use crate::values::Grant;

/// Times are milliseconds since 1970.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub(super) enum Line {
    Number {
        name: &'static str,
        value: u64,
    },
    Group {
        /// As a subscription names it, without `$share/`.
        name: String,
        queue: u64,
    },
    Session {
        client_id: String,
        /// Number of the session and of its queue.
        number: u64,
        #[serde(flatten)]
        owner: OwnerOf,
        /// 4294967295: for ever.
        expiry_seconds: u32,
        /// When its connection ended.
        ended: Option<WallTime>,
    },
    Subscription {
        session: u64,
        filter: String,
        qos: u8,
        no_local: bool,
        retain_as_published: bool,
        retain_handling: u8,
        identifier: Option<u32>,
        weight: u16,
    },
    Retained {
        expires: Option<WallTime>,
        #[serde(flatten)]
        message: MessageLine,
    },
    Will {
        client_id: String,
        #[serde(flatten)]
        owner: OwnerOf,
        /// When it is to be published, if its client is disconnected.
        due: Option<WallTime>,
        delay_seconds: u32,
        #[serde(flatten)]
        message: MessageLine,
    },
    Speed {
        /// Hash of client and share group, in hexadecimal digits.
        hash: String,
        processing_time_ns: u64,
        kept: WallTime,
    },
    Queue {
        queue: u64,
        /// `session`, `group` or `nobody`; `None`: unknown.
        of: Option<&'static str>,
        waiting: usize,
        bytes: u64,
        first: Option<u64>,
        last: Option<u64>,
        /// Messages that were sent and not acknowledged.
        under_way: Vec<UnderWay>,
        /// Packet Identifiers of QoS 2 messages from the client, until PUBREL.
        held: Vec<u16>,
    },
    Waiting {
        queue: u64,
        sequence: u64,
        published_qos: u8,
        expires: Option<WallTime>,
        subscription_identifiers: Vec<u32>,
        /// Hash of the key by which a share group chooses the member, in hexadecimal digits.
        share_key: Option<String>,
        #[serde(flatten)]
        message: MessageLine,
    },
    Unreadable {
        /// A table with a key, a queue with an offset, or a larger part.
        what: String,
        error: String,
    },
}

#[derive(Serialize)]
pub(super) struct OwnerOf {
    user: Option<String>,
    realm: String,
    listener: String,
    /// Number of rules that came with the login.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<usize>,
}

/// Fields of all messages.
#[derive(Serialize)]
pub(super) struct MessageLine {
    topic: String,
    qos: u8,
    retain: bool,
    /// Length of the payload.
    bytes: usize,
    /// Payload in Base64, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
}

#[derive(Serialize)]
pub(super) struct UnderWay {
    pub(super) sequence: u64,
    pub(super) packet_id: u16,
    /// PUBREC was received.
    pub(super) is_received: bool,
}

impl Line {
    /// Decodes a record of the state. `None`: it has another version, and a broker ignores it too.
    ///
    /// # Errors
    /// A broker of this version does not write such a record.
    pub(super) fn decode(
        table: Table,
        key: &[u8],
        value: &[u8],
        with_payloads: bool,
    ) -> Result<Option<Self>, RecordError> {
        let number = || value.try_into().map(u64::from_le_bytes).map_err(|_| RecordError::Illegal("length"));
        Ok(Some(match table {
            // Other versions cannot be opened.
            Table::Meta if key == VERSION_KEY => Self::Number { name: "format version", value: FORMAT_VERSION.into() },
            Table::Meta if key == NUMBERS_KEY => Self::Number { name: GIVEN_NUMBERS, value: number()? },
            Table::Meta if key == RUN_KEY => Self::Number { name: "run", value: number()? },
            Table::Meta => {
                let Some(name) = key.strip_prefix(GROUP_KEY) else { return Ok(None) };
                let queue = GroupRecord::decode(value).ok_or(RecordError::Illegal("number"))?.queue.get();
                Self::Group { name: string(name, "share group")?, queue }
            }
            Table::Sessions => {
                let client_id = string(key, "Client Identifier")?;
                let SessionRecord { number, owner, expiry, ended, .. } = SessionRecord::decode(value)?;
                Self::Session {
                    client_id,
                    number: number.get(),
                    owner: owner.into(),
                    expiry_seconds: expiry,
                    ended: time(ended),
                }
            }
            Table::Subscriptions => {
                let (session, filter) = decode_subscription_key(key)?;
                let Grant { options, identifier, weight } = decode_grant(value)?;
                Self::Subscription {
                    session,
                    filter: filter.text().as_str().to_owned(),
                    qos: options.qos.bits(),
                    no_local: options.no_local,
                    retain_as_published: options.retain_as_published,
                    retain_handling: options.retain_handling as u8,
                    identifier,
                    weight: weight.get(),
                }
            }
            Table::Retained => {
                let RetainedRecord { expiry, publish } = RetainedRecord::decode(value)?;
                if key != publish.topic.as_bytes() {
                    return Err(RecordError::Illegal("topic"));
                }
                let topic = publish.topic.text().as_str();
                let message = MessageLine::new(topic, publish.qos, publish.retain, &publish.payload, with_payloads);
                Self::Retained { expires: time(expiry.time), message }
            }
            Table::Wills => {
                let (client_id, _) = decode_will_key(key)?;
                let WillRecord { owner, due, will } = WillRecord::decode(value)?;
                let topic = will.topic.text().as_str();
                Self::Will {
                    client_id: client_id.as_str().to_owned(),
                    owner: owner.into(),
                    due: time(due),
                    delay_seconds: will.delay_interval.unwrap_or(0),
                    message: MessageLine::new(topic, will.qos, will.retain, &will.payload, with_payloads),
                }
            }
            Table::Speeds => {
                let hash = key.try_into().map(u64::from_le_bytes).map_err(|_| RecordError::Illegal("hash"))?;
                let SpeedRecord { processing_time, kept } = SpeedRecord::decode(value)?;
                let processing_time_ns = u64::try_from(processing_time.as_nanos()).unwrap_or(u64::MAX);
                Self::Speed { hash: format!("{hash:016x}"), processing_time_ns, kept }
            }
        }))
    }
}

impl From<Owner> for OwnerOf {
    fn from(Owner { user, realm, listener, rules }: Owner) -> Self {
        let user = user.map(|user| user.as_str().to_owned());
        let rules = rules.map(|terms| terms.rules.len());
        Self { user, realm: realm.as_ref().to_owned(), listener: listener.as_ref().to_owned(), rules }
    }
}

impl MessageLine {
    fn new(topic: &str, qos: QoS, retain: bool, payload: &[u8], with_payload: bool) -> Self {
        let encoded = with_payload.then(|| Base64::encode_string(payload));
        Self { topic: topic.to_owned(), qos: qos.bits(), retain, bytes: payload.len(), payload: encoded }
    }

    /// A message as its receiver gets it.
    pub(super) fn of(delivery: &Delivery, with_payload: bool) -> Self {
        let topic = std::str::from_utf8(delivery.template.topic()).unwrap_or_default(); // topics are UTF-8
        Self::new(topic, delivery.qos, delivery.retain, delivery.template.payload(), with_payload)
    }
}

pub(super) fn time(wall: WallTime) -> Option<WallTime> {
    (wall != 0).then_some(wall)
}

fn string(bytes: &[u8], what: &'static str) -> Result<String, RecordError> {
    text(bytes, what).map(|text| text.as_str().to_owned())
}

/// Name of the highest number that may have been given to a session or share group.
const GIVEN_NUMBERS: &str = "session numbers";

/// Numbers of sessions and share groups, which are the numbers of their queues.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The highest number that may have been given.
    last: u64,
    pub(super) sessions: HashSet<u64>,
    pub(super) groups: HashSet<u64>,
}

impl Numbers {
    /// Adds a record. The table of numbers and share groups has to come before the table of sessions.
    ///
    /// # Errors
    /// The record contradicts another one.
    pub(super) fn note(&mut self, line: &Line) -> Result<(), RecordError> {
        match *line {
            Line::Number { name: GIVEN_NUMBERS, value } => self.last = self.last.max(value),
            Line::Group { queue, .. } => {
                self.last = self.last.max(queue);
                self.groups.insert(queue);
            }
            Line::Session { number, .. } => {
                let is_free = number <= self.last && !self.groups.contains(&number);
                if !is_free || !self.sessions.insert(number) {
                    return Err(RecordError::Illegal("number"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
