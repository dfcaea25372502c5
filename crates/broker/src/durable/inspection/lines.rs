//! Lines of a dump: each is a JSON object, and its `record` is the kind.

use base64ct::{Base64, Encoding as _};
use serde::Serialize;
use tenbin_codec::{Publish, QoS, RetainHandling};
use tenbin_session::Delivery;

use super::records::Entry;
use crate::durable::record::Owner;
use crate::durable::wall_clock::WallTime;

/// Times are milliseconds since 1970.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub(super) enum Line<'a> {
    Number {
        name: &'a str,
        value: u64,
    },
    Group {
        /// As a subscription names it, without `$share/`.
        name: &'a str,
        queue: u64,
    },
    Session {
        client_id: &'a str,
        /// Number of the session and of its queue.
        number: u64,
        #[serde(flatten)]
        owner: OwnerOf<'a>,
        /// 4294967295: for ever.
        expiry_seconds: u32,
        /// When its connection ended.
        ended: Option<WallTime>,
    },
    Subscription {
        session: u64,
        filter: &'a str,
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
        message: Message<'a>,
    },
    Will {
        client_id: &'a str,
        #[serde(flatten)]
        owner: OwnerOf<'a>,
        /// When it is to be published, if its client is disconnected.
        due: Option<WallTime>,
        delay_seconds: u32,
        #[serde(flatten)]
        message: Message<'a>,
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
        subscription_identifiers: &'a [u32],
        /// Hash of the key by which a share group chooses the member, in hexadecimal digits.
        share_key: Option<String>,
        #[serde(flatten)]
        message: Message<'a>,
    },
    Unreadable {
        /// A table with a key, a queue with an offset, or a larger part.
        what: String,
        error: String,
    },
}

#[derive(Serialize)]
pub(super) struct OwnerOf<'a> {
    user: Option<&'a str>,
    realm: &'a str,
    listener: &'a str,
}

/// Fields of all messages.
#[derive(Serialize)]
pub(super) struct Message<'a> {
    topic: &'a str,
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
    /// PUBREC has come.
    pub(super) is_received: bool,
}

impl<'a> Line<'a> {
    /// `None`: the record has no line.
    pub(super) fn of(entry: &'a Entry, with_payloads: bool) -> Option<Self> {
        Some(match entry {
            Entry::Number(name, value) => Self::Number { name, value: *value },
            Entry::Group(name, queue) => Self::Group { name: name.as_str(), queue: queue.get() },
            Entry::Session(client_id, session) => Self::Session {
                client_id: client_id.as_str(),
                number: session.number.get(),
                owner: OwnerOf::from(&session.owner),
                expiry_seconds: session.expiry,
                ended: time(session.ended),
            },
            Entry::Subscription(session, filter, grant) => Self::Subscription {
                session: *session,
                filter: filter.text().as_str(),
                qos: grant.options.qos.bits(),
                no_local: grant.options.no_local,
                retain_as_published: grant.options.retain_as_published,
                retain_handling: number_of(grant.options.retain_handling),
                identifier: grant.identifier,
                weight: grant.weight.get(),
            },
            Entry::Retained(retained) => {
                let Publish { topic, qos, retain, payload, .. } = &retained.publish;
                let message = Message::new(topic.text().as_str(), *qos, *retain, payload, with_payloads);
                Self::Retained { expires: time(retained.expiry.time), message }
            }
            Entry::Will(client_id, will) => Self::Will {
                client_id: client_id.as_str(),
                owner: OwnerOf::from(&will.owner),
                due: time(will.due),
                delay_seconds: will.will.delay_interval.unwrap_or(0),
                message: Message::new(
                    will.will.topic.text().as_str(),
                    will.will.qos,
                    will.will.retain,
                    &will.will.payload,
                    with_payloads,
                ),
            },
            Entry::Speed(hash, speed) => Self::Speed {
                hash: format!("{hash:016x}"),
                processing_time_ns: u64::try_from(speed.processing_time.as_nanos()).unwrap_or(u64::MAX),
                kept: speed.kept,
            },
            Entry::Unknown => return None,
        })
    }
}

impl<'a> From<&'a Owner> for OwnerOf<'a> {
    fn from(Owner { user, realm, listener }: &'a Owner) -> Self {
        Self { user: user.as_ref().map(|user| user.as_str()), realm, listener }
    }
}

impl<'a> Message<'a> {
    fn new(topic: &'a str, qos: QoS, retain: bool, payload: &[u8], with_payload: bool) -> Self {
        let encoded = with_payload.then(|| Base64::encode_string(payload));
        Self { topic, qos: qos.bits(), retain, bytes: payload.len(), payload: encoded }
    }

    /// A message as its receiver gets it.
    pub(super) fn of(delivery: &'a Delivery, with_payload: bool) -> Self {
        let topic = std::str::from_utf8(delivery.template.topic()).unwrap_or_default(); // topics are UTF-8
        Self::new(topic, delivery.qos, delivery.retain, delivery.template.payload(), with_payload)
    }
}

pub(super) fn time(wall: WallTime) -> Option<WallTime> {
    (wall != 0).then_some(wall)
}

fn number_of(handling: RetainHandling) -> u8 {
    handling as u8
}
