//! Records of the state, as bytes. The first byte of a value is the version of its layout. Numbers are little-endian,
//! except in ordered keys, where they are big-endian. Texts have their length in four bytes before them.
//!
//! ```text
//!   table           key                      value
//!   sessions        Client Identifier        1 | number 8 | owner | Session Expiry Interval 4 | connection ended 8
//!                                            2 | … | address that began it, as IPv6 16
//!                                            3 | … as 1 | has an address 1 | address 16 | rules
//!   subscriptions   session's number, filter 1 | Subscription Options 1 | Subscription Identifier 4 | weight 2
//!   retained        topic                    2 | expires 8 | seconds left at storing 4 | PUBLISH of MQTT 5.0
//!                                            1 | … without the seconds left: older, is read and never written
//!   wills           Client Identifier        1 | owner | due 8 | Will Delay Interval 4 | PUBLISH of MQTT 5.0
//!                                            2 | rules | … as 1
//!   speeds          hash 8                   1 | processing time in ns 8 | kept 8
//!
//!   owner           has a user 1 | user | realm | listener
//!   rules           of the login, see `stored_rules`; records without them have an older version
//!   ended, expires, due, kept   milliseconds since 1970; 0 = not, never, not known yet
//! ```

use std::net::Ipv6Addr;
use std::num::{NonZeroU16, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tenbin_codec::{
    Decoded, Decoder, PACKET_SIZE_MAX, Packet, PacketId, ProtocolVersion, Publish, PublishHeader, PublishTemplate, QoS,
    RetainHandling, SubscriptionOptions, Text, TopicFilter, VARINT_MAX, Will, WriteBuffer,
};

use super::bytes::{Fields, RecordError, put_bytes, text};
use super::stored_rules;
use super::wall_clock::{StoredExpiry, WallTime};
use crate::auth::{Identity, Principal, Terms};
use crate::values::Grant;

const VERSION: u8 = 1;
/// Version of a session's record with an address.
const VERSION_WITH_ADDRESS: u8 = 2;
/// Version of a session's record with rules.
const VERSION_WITH_RULES: u8 = 3;
/// Version of a Will's record with rules.
const WILL_WITH_RULES: u8 = 2;
/// Version of a retained message's record with the seconds left.
const VERSION_WITH_INTERVAL: u8 = 2;

/// Record of a session that outlives its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionRecord {
    pub(super) number: NonZeroU64,
    pub(super) owner: Owner,
    /// Session Expiry Interval in seconds; `u32::MAX` = for ever.
    pub(super) expiry: u32,
    /// When its connection ended; 0 while it is connected, or if it never expires.
    pub(super) ended: WallTime,
    /// The address that began it, if the session counts for that address.
    pub(super) address: Option<Ipv6Addr>,
}

/// Owner of a session or of a Will, and the listener of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) user: Option<Text>,
    pub(super) realm: Arc<str>,
    pub(super) listener: Arc<str>,
    /// Rules that came with the login; `None` = none.
    pub(super) rules: Option<Arc<Terms>>,
}

/// Record of a Will.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WillRecord {
    pub(super) owner: Owner,
    /// When it is due; 0 while its client is connected.
    pub(super) due: WallTime,
    pub(super) will: Will,
}

/// Record of a retained message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RetainedRecord {
    pub(super) expiry: StoredExpiry,
    pub(super) publish: Publish,
}

/// Record of a client's speed in a share group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpeedRecord {
    pub(super) processing_time: Duration,
    pub(super) kept: WallTime,
}

impl SessionRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut record = vec![match (&self.owner.rules, self.address) {
            (Some(_), _) => VERSION_WITH_RULES,
            (None, Some(_)) => VERSION_WITH_ADDRESS,
            (None, None) => VERSION,
        }];
        record.extend_from_slice(&self.number.get().to_le_bytes());
        self.owner.put(&mut record);
        record.extend_from_slice(&self.expiry.to_le_bytes());
        record.extend_from_slice(&self.ended.to_le_bytes());
        if self.owner.rules.is_some() {
            record.push(u8::from(self.address.is_some()));
        }
        record.extend(self.address.iter().flat_map(Ipv6Addr::octets));
        self.owner.put_rules(&mut record);
        record
    }

    pub(super) fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let versions = [VERSION, VERSION_WITH_ADDRESS, VERSION_WITH_RULES];
        let (mut fields, version) = Fields::of_versions(record, &versions)?;
        let number = NonZeroU64::new(fields.u64()?).ok_or(RecordError::Illegal("number"))?;
        let mut owner = Owner::take(&mut fields)?;
        let (expiry, ended) = (fields.u32()?, fields.u64()?);
        let has_address = match version {
            VERSION_WITH_RULES => fields.u8()? != 0,
            version => version == VERSION_WITH_ADDRESS,
        };
        let address = has_address.then(|| fields.array().map(Ipv6Addr::from_octets)).transpose()?;
        if version == VERSION_WITH_RULES {
            owner.rules = Some(stored_rules::take(&mut fields)?);
        }
        fields.end()?;
        Ok(Self { number, owner, expiry, ended, address })
    }

    /// When the session ends without a new connection; 0: never, or connected.
    pub(super) fn expires(&self) -> WallTime {
        if self.ended == 0 || self.expiry == u32::MAX {
            return 0;
        }
        self.ended.saturating_add(u64::from(self.expiry) * 1000)
    }
}

impl Owner {
    fn put(&self, record: &mut Vec<u8>) {
        record.push(u8::from(self.user.is_some()));
        put_bytes(record, self.user.as_ref().map_or(b"", |user| user.as_bytes()));
        put_bytes(record, self.realm.as_bytes());
        put_bytes(record, self.listener.as_bytes());
    }

    fn take(fields: &mut Fields<'_>) -> Result<Self, RecordError> {
        let has_user = fields.u8()? != 0;
        let user = fields.text("user")?;
        let (realm, listener) = (fields.str("realm")?.into(), fields.str("listener")?.into());
        Ok(Self { user: has_user.then_some(user), realm, listener, rules: None })
    }

    fn put_rules(&self, record: &mut Vec<u8>) {
        if let Some(rules) = &self.rules {
            stored_rules::put(rules, record);
        }
    }

    /// The principal with its rules, without a stamp of credentials: the broker checks these when the client comes back.
    pub(super) fn principal(&self, client_id: Text) -> Principal {
        let (user, realm, terms) = (self.user.clone(), Arc::clone(&self.realm), self.rules.clone());
        let identity = Identity { user, realm, stamp: 0, terms };
        Principal { client_id, identity, listener: Arc::clone(&self.listener) }
    }
}

impl From<&Principal> for Owner {
    fn from(principal: &Principal) -> Self {
        let Identity { user, realm, .. } = &principal.identity;
        let (listener, rules) = (Arc::clone(&principal.listener), stored_rules::to_store(principal));
        Self { user: user.clone(), realm: Arc::clone(realm), listener, rules }
    }
}

pub(super) fn subscription_key(session: NonZeroU64, filter: &TopicFilter) -> Vec<u8> {
    let mut key = session.get().to_be_bytes().to_vec();
    key.extend_from_slice(filter.as_bytes());
    key
}

pub(super) fn decode_subscription_key(key: &[u8]) -> Result<(u64, TopicFilter), RecordError> {
    let mut fields = Fields::of_key(key);
    let session = u64::from_be_bytes(fields.array()?);
    let filter = TopicFilter::new(text(fields.rest(), "filter")?).map_err(|_| RecordError::Illegal("filter"))?;
    Ok((session, filter))
}

/// Key of a Will. `number`: which of the client's Wills, see
/// [`Durable::will_published`](super::Durable::will_published).
pub(super) fn will_key(client_id: &[u8], number: u16) -> Vec<u8> {
    let mut key = client_id.to_vec();
    if number > 0 {
        key.push(0); // in no Client Identifier
        key.extend_from_slice(&number.to_be_bytes());
    }
    key
}

pub(super) fn decode_will_key(key: &[u8]) -> Result<(Text, u16), RecordError> {
    let (client_id, number) = match key.iter().position(|&byte| byte == 0) {
        Some(end) => {
            let number = key[end + 1..].try_into().map_err(|_| RecordError::Illegal("number"))?;
            (&key[..end], u16::from_be_bytes(number))
        }
        None => (key, 0),
    };
    Ok((text(client_id, "Client Identifier")?, number))
}

pub(super) fn encode_grant(grant: &Grant) -> Vec<u8> {
    let SubscriptionOptions { qos, no_local, retain_as_published, retain_handling } = grant.options;
    let options =
        qos.bits() | u8::from(no_local) << 2 | u8::from(retain_as_published) << 3 | (retain_handling as u8) << 4;
    let mut record = vec![VERSION, options];
    record.extend_from_slice(&grant.identifier.unwrap_or(0).to_le_bytes());
    record.extend_from_slice(&grant.weight.get().to_le_bytes());
    record
}

pub(super) fn decode_grant(record: &[u8]) -> Result<Grant, RecordError> {
    let mut fields = Fields::of(record, VERSION)?;
    let (options, identifier, weight) = (fields.u8()?, fields.u32()?, fields.u16()?);
    fields.end()?;
    let illegal = RecordError::Illegal("options byte");
    let retain_handling = match options >> 4 {
        0 => RetainHandling::Always,
        1 => RetainHandling::IfNew,
        2 => RetainHandling::Never,
        _ => return Err(illegal),
    };
    let options = SubscriptionOptions {
        qos: QoS::from_bits(options & 3).ok_or(illegal)?,
        no_local: options & 4 != 0,
        retain_as_published: options & 8 != 0,
        retain_handling,
    };
    if identifier > VARINT_MAX {
        return Err(RecordError::Illegal("Subscription Identifier"));
    }
    let weight = NonZeroU16::new(weight).ok_or(RecordError::Illegal("weight"))?;
    Ok(Grant { options, identifier: (identifier != 0).then_some(identifier), weight })
}

impl RetainedRecord {
    /// Encodes a retained message that is kept as a template. `None`: no PUBLISH of MQTT 5.0 is so large.
    pub(super) fn encode(template: &PublishTemplate, qos: QoS, expiry: StoredExpiry) -> Option<Vec<u8>> {
        let mut record = vec![VERSION_WITH_INTERVAL];
        record.extend_from_slice(&expiry.to_bytes());
        let header = PublishHeader { qos, retain: true, packet_id: packet_id(qos), ..PublishHeader::default() };
        let mut out = WriteBuffer::new();
        template.encode(&header, ProtocolVersion::V5, &mut out);
        let publish = out.to_bytes();
        record.extend_from_slice(&publish);
        (!publish.is_empty()).then_some(record)
    }

    pub(super) fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let (mut fields, version) = Fields::of_versions(record, &[VERSION, VERSION_WITH_INTERVAL])?;
        let expiry = StoredExpiry::take(&mut fields, version == VERSION_WITH_INTERVAL)?;
        Ok(Self { expiry, publish: decode_publish(fields.rest())? })
    }
}

impl WillRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut record = vec![if self.owner.rules.is_some() { WILL_WITH_RULES } else { VERSION }];
        self.owner.put_rules(&mut record);
        self.owner.put(&mut record);
        record.extend_from_slice(&self.due.to_le_bytes());
        record.extend_from_slice(&self.will.delay_interval.unwrap_or(0).to_le_bytes());
        let Will { qos, retain, topic, payload, properties, .. } = self.will.clone();
        let publish = Publish { qos, retain, packet_id: packet_id(qos), properties, ..Publish::new(topic, payload) };
        let mut out = WriteBuffer::new();
        Packet::Publish(publish).encode(ProtocolVersion::V5, &mut out);
        record.extend_from_slice(&out.to_bytes());
        record
    }

    pub(super) fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let (mut fields, version) = Fields::of_versions(record, &[VERSION, WILL_WITH_RULES])?;
        let rules = (version == WILL_WITH_RULES).then(|| stored_rules::take(&mut fields)).transpose()?;
        let owner = Owner { rules, ..Owner::take(&mut fields)? };
        let (due, delay) = (fields.u64()?, fields.u32()?);
        let Publish { qos, retain, topic, payload, properties, .. } = decode_publish(fields.rest())?;
        let delay_interval = (delay != 0).then_some(delay);
        Ok(Self { owner, due, will: Will { qos, retain, topic, payload, delay_interval, properties } })
    }
}

impl SpeedRecord {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut record = vec![VERSION];
        let nanos = u64::try_from(self.processing_time.as_nanos()).unwrap_or(u64::MAX);
        record.extend_from_slice(&nanos.to_le_bytes());
        record.extend_from_slice(&self.kept.to_le_bytes());
        record
    }

    pub(super) fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::of(record, VERSION)?;
        let (nanos, kept) = (fields.u64()?, fields.u64()?);
        fields.end()?;
        Ok(Self { processing_time: Duration::from_nanos(nanos), kept })
    }
}

/// Any Packet Identifier where the QoS requires one: its value does not matter here.
fn packet_id(qos: QoS) -> Option<PacketId> {
    PacketId::new(1).filter(|_| qos.is_acknowledged())
}

/// Decodes a PUBLISH, which nothing may follow.
fn decode_publish(packet: &[u8]) -> Result<Publish, RecordError> {
    let mut input = BytesMut::from(packet);
    let illegal = RecordError::Illegal("PUBLISH");
    match Decoder::client(ProtocolVersion::V5, PACKET_SIZE_MAX).decode(&mut input) {
        Ok(Decoded::Packet(Packet::Publish(publish))) if publish.topic_alias.is_none() => {
            if input.is_empty() {
                Ok(publish)
            } else {
                Err(RecordError::Long)
            }
        }
        Ok(Decoded::NeedMore(_)) => Err(RecordError::Short),
        Ok(Decoded::Packet(_)) | Err(_) => Err(illegal),
    }
}
