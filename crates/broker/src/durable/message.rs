//! Encoding of a stored message: one body for all of its entries, and a tag for each entry.
//!
//! ```text
//!   body   3 | published QoS 1, RETAIN 4, expires 8 | bytes of properties 4 | expiry, if it expires | Topic Name
//!            | properties | payload
//!          expiry: time 8 | seconds left at storing 4 | number of the storing run 8 | time by that run's clock 8
//!          2 | published QoS 1, RETAIN 4 | expires 8 | seconds left 4 | bytes of properties 4 | …: older, is read and
//!            never written
//!          1 | … without the seconds left: likewise
//!   tag    of a session: QoS 1, RETAIN 4 | Subscription Identifiers, 4 each; or nothing: as published, RETAIN 0
//!          of a share group: hash of the key that the group chose by 8; or nothing; or, of a message that was delivered
//!          before and taken back: that hash or 0 8 | deliveries 4 | when it is due 8, 0 = at once. No session's tag has 8
//!          or 20 bytes
//! ```

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use tenbin_codec::{PublishTemplate, QoS, REFERENCE_BYTES};
use tenbin_session::{Delivery, Extras};
use tenbin_store::spool::{RecordAt, Reference};

use super::bytes::{Fields, RecordError};
use super::message_expiry::{MessageClock, MessageExpiry};
use super::wall_clock::WallTime;

/// The part of a body before the template.
#[derive(Debug)]
pub(super) struct Head {
    bytes: [u8; HEAD_BYTES + MessageExpiry::BYTES],
    len: usize,
}

impl Head {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Encodes the part of a body before the template.
pub(super) fn head(delivery: &Delivery, clock: MessageClock) -> Head {
    let mut head = Head { bytes: [0; _], len: HEAD_BYTES };
    head.bytes[0] = VERSION;
    head.bytes[1] = flags(delivery.published_qos, delivery.published_retain);
    head.bytes[2..HEAD_BYTES].copy_from_slice(&delivery.template.to_store().0.to_le_bytes());
    if let Some(at) = delivery.expires_at {
        head.bytes[1] |= EXPIRES;
        head.bytes[HEAD_BYTES..].copy_from_slice(&clock.to_stored(at).to_bytes());
        head.len = head.bytes.len();
    }
    head
}

/// Encodes the tag of an entry in a session's queue.
pub(super) fn tag(delivery: &Delivery) -> Vec<u8> {
    let identifiers = delivery.identifiers();
    if delivery.qos == delivery.published_qos && !delivery.retain && identifiers.is_empty() {
        return Vec::new();
    }
    let mut tag = vec![flags(delivery.qos, delivery.retain)];
    // A tag has no room for more. A session with more subscriptions to one topic gets the first identifiers only.
    identifiers.iter().take(IDENTIFIERS_MAX).for_each(|identifier| tag.extend_from_slice(&identifier.to_le_bytes()));
    tag
}

/// Encodes the tag of an entry in a share group's queue.
pub(super) fn group_tag(delivery: &Delivery, clock: MessageClock) -> Vec<u8> {
    if delivery.deliveries() == 0 {
        return delivery.share_key.iter().flat_map(|key| key.get().to_le_bytes()).collect();
    }
    let key = delivery.share_key.map_or(0, NonZeroU64::get).to_le_bytes();
    let due = clock.to_wall(delivery.due()).to_le_bytes();
    [&key[..], &delivery.deliveries().to_le_bytes(), &due].concat()
}

/// Decodes a body and a tag. Returns the delivery, and whether it has expired.
///
/// # Errors
/// They are damaged, or a later version wrote them.
pub(super) fn decode(body: Bytes, tag: &[u8], clock: MessageClock) -> Result<(Delivery, bool), RecordError> {
    let (head, fields) = BodyHead::take(&body)?;
    let template = PublishTemplate::restore(head.properties_len, body.slice_ref(fields.rest()));
    delivery_of(&head, template.ok_or(RecordError::Illegal("message"))?, tag, clock)
}

/// As [`decode`], from the beginning of a body: the delivery has a reference in place of its payload. `None`: it has to be
/// read whole.
///
/// The bytes are not verified here. The reader of the reference verifies the delivery.
pub(super) fn decode_beginning(
    beginning: Bytes,
    record: &RecordAt,
    tag: &[u8],
    clock: MessageClock,
) -> Option<Delivery> {
    let (head, fields) = BodyHead::take(&beginning).ok()?;
    let rest = fields.rest();
    let topic_end = 2 + usize::from(u16::from_be_bytes(*rest.first_chunk()?));
    let parts = rest.get(..topic_end.checked_add(head.properties_len as usize)?)?;
    let read = beginning.len() - rest.len() + parts.len();
    let reference = record.behind(&beginning[..read]);
    let payload_len = u32::try_from(record.body_len().checked_sub(read)?).ok()?;
    let parts = Bytes::copy_from_slice(parts); // pins no page of other messages
    let template = PublishTemplate::external(head.properties_len, parts, payload_len, reference.to_bytes())?;
    let (delivery, is_over) = delivery_of(&head, template, tag, clock).ok()?;
    // Nothing is lost by bytes that are not verified.
    (delivery.qos.is_acknowledged() && !is_over).then_some(delivery)
}

const _: () = assert!(Reference::BYTES == REFERENCE_BYTES);

/// Makes the delivery of a template, and tells whether it has expired.
fn delivery_of(
    head: &BodyHead,
    template: PublishTemplate,
    tag: &[u8],
    clock: MessageClock,
) -> Result<(Delivery, bool), RecordError> {
    let (published_qos, published_retain) = flags_in(head.flags)?;
    let expires_at = head.expiry.and_then(|expiry| clock.expires_at(expiry)); // [MQTT-3.3.2-6]
    let mut delivery = Delivery { published_retain, expires_at, ..Delivery::new(template, published_qos, false) };
    if let Ok(key) = tag.try_into() {
        let key = NonZeroU64::new(u64::from_le_bytes(key)).ok_or(RecordError::Illegal("tag"))?;
        delivery.share_key = Some(key);
    } else if let Ok(tag) = <&[u8; RETRY_TAG_BYTES]>::try_from(tag) {
        let mut fields = Fields::of_key(tag);
        delivery.share_key = NonZeroU64::new(fields.u64()?);
        let (deliveries, due) = (fields.u32()?, clock.to_instant(fields.u64()?));
        delivery.extras = Some(Arc::new(Extras { deliveries, due, ..Extras::default() }));
    } else if let Some((&flags, identifiers)) = tag.split_first() {
        (delivery.qos, delivery.retain) = flags_in(flags)?;
        let (identifiers, rest) = identifiers.as_chunks();
        if !rest.is_empty() {
            return Err(RecordError::Illegal("tag"));
        }
        let identifiers: Box<[u32]> = identifiers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        delivery.extras = Extras::identifiers(identifiers);
    }
    Ok((delivery, expires_at.is_some_and(|at| clock.has_come(at))))
}

/// When a message expires, as its body says; 0: never.
pub(super) fn expires(body: &[u8]) -> Result<WallTime, RecordError> {
    Ok(BodyHead::take(body)?.0.expiry.map_or(0, |expiry| expiry.stored.time))
}

/// The part of a body before the template, in any version.
struct BodyHead {
    flags: u8,
    expiry: Option<MessageExpiry>,
    properties_len: u32,
}

impl BodyHead {
    /// Decodes it, and returns the fields behind it too.
    fn take(body: &[u8]) -> Result<(Self, Fields<'_>), RecordError> {
        let (mut fields, version) = Fields::of_versions(body, &VERSIONS)?;
        let flags = fields.u8()?;
        if version != VERSION {
            let expiry = MessageExpiry::take_older(&mut fields, version == VERSION_WITHOUT_RUN)?;
            return Ok((Self { flags, expiry, properties_len: fields.u32()? }, fields));
        }
        let properties_len = fields.u32()?;
        let expiry = (flags & EXPIRES != 0).then(|| MessageExpiry::take(&mut fields)).transpose()?;
        Ok((Self { flags: flags & !EXPIRES, expiry, properties_len }, fields))
    }
}

fn flags(qos: QoS, retain: bool) -> u8 {
    qos.bits() | u8::from(retain) << 2
}

fn flags_in(flags: u8) -> Result<(QoS, bool), RecordError> {
    let qos = QoS::from_bits(flags & 3).filter(|_| flags < 8).ok_or(RecordError::Illegal("flags"))?;
    Ok((qos, flags & 4 != 0))
}

const VERSION: u8 = 3;
const VERSION_WITHOUT_RUN: u8 = 2;
const VERSION_WITHOUT_INTERVAL: u8 = 1;
const VERSIONS: [u8; 3] = [VERSION_WITHOUT_INTERVAL, VERSION_WITHOUT_RUN, VERSION];
/// A flag of a body: its expiry follows.
const EXPIRES: u8 = 8;
/// Bytes before the template in the body of a message that does not expire.
pub(super) const HEAD_BYTES: usize = 6;
const IDENTIFIERS_MAX: usize = 63;
/// Bytes of the tag of a message that was taken back from a member of its share group.
const RETRY_TAG_BYTES: usize = 20;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bytes::BytesMut;
    use tenbin_codec::TopicName;
    use tenbin_session::Publication;

    use super::super::message_expiry::RunClock;
    use super::super::wall_clock::StoredExpiry;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn delivery(qos: QoS, retain: bool) -> Delivery {
        let topic = TopicName::try_from("a/b").unwrap();
        Delivery::new(Publication::new(topic, Bytes::from_static(b"hi")).template(&mut BytesMut::new()), qos, retain)
    }

    fn stored(delivery: &Delivery, clock: MessageClock) -> (Bytes, Vec<u8>) {
        let [first, second] = delivery.template.to_store().1;
        (Bytes::from([head(delivery, clock).as_bytes(), first, second].concat()), tag(delivery))
    }

    #[test]
    fn stored_message_is_decoded_as_each_receiver_gets_it() {
        let clock = RunClock::begin().now();
        let plain = delivery(QoS::AtLeastOnce, false);
        let less = Delivery { published_qos: QoS::ExactlyOnce, published_retain: true, ..plain.clone() };
        let named = Delivery { extras: Extras::identifiers([1, 268_435_455]), retain: true, ..less.clone() };
        let many = Delivery { extras: Extras::identifiers((0..100).collect::<Vec<_>>()), ..plain.clone() };
        for (delivery, tag_bytes) in [(plain, 0), (less, 1), (named, 9), (many, 253)] {
            let (body, tag) = stored(&delivery, clock);
            assert_eq!(tag.len(), tag_bytes);
            let back = decode(body, &tag, clock).unwrap().0;
            let facts = |delivery: &Delivery| {
                let published = (delivery.published_qos, delivery.published_retain);
                (delivery.qos, delivery.retain, published, delivery.template.payload().to_vec())
            };
            assert_eq!(facts(&back), facts(&delivery));
            assert_eq!(back.identifiers(), &delivery.identifiers()[..delivery.identifiers().len().min(63)]);
        }
    }

    #[test]
    fn share_key_of_a_group_tag_is_optional_and_round_trips() {
        let clock = RunClock::begin().now();
        for key in [None, NonZeroU64::new(7), NonZeroU64::new(u64::MAX)] {
            let delivery = Delivery { share_key: key, ..delivery(QoS::AtLeastOnce, true) };
            let (body, _) = stored(&delivery, clock);
            let back = decode(body, &group_tag(&delivery, clock), clock).unwrap().0;
            assert_eq!((back.share_key, back.qos, back.published_retain), (key, QoS::AtLeastOnce, true));
            assert!(back.extras.is_none());
        }
    }

    #[test]
    fn deliveries_and_due_time_of_a_group_tag_round_trip() {
        let clock = RunClock::begin().now();
        let due = clock.at() + Duration::from_secs(5);
        for (key, due) in [(None, None), (NonZeroU64::new(7), Some(due))] {
            let delivery = Delivery { share_key: key, ..delivery(QoS::AtLeastOnce, false) };
            let delivery = delivery.taken_back(3, None).taken_back(4, due);
            let (body, _) = stored(&delivery, clock);
            let tag = group_tag(&delivery, clock);
            assert_eq!(tag.len(), RETRY_TAG_BYTES);
            let back = decode(body, &tag, clock.restarted()).unwrap().0;
            assert_eq!((back.share_key, back.deliveries(), back.last_receiver()), (key, 2, None));
            let is_close = |back: Instant, due: Instant| {
                back.saturating_duration_since(due) < SECOND && due.saturating_duration_since(back) < SECOND
            };
            assert_eq!(back.due().is_some(), due.is_some());
            assert!(back.due().zip(due).is_none_or(|(back, due)| is_close(back, due)));
        }
    }

    #[test]
    fn mqtt_3_3_2_5_stored_message_expires_on_disk() {
        let clock = RunClock::begin().now();
        let soon = clock.at() + Duration::from_secs(60);
        let (body, tag) = stored(&Delivery { expires_at: Some(soon), ..delivery(QoS::AtLeastOnce, false) }, clock);
        let back = decode(body.clone(), &tag, clock).unwrap().0;
        let left = back.expires_at.unwrap().saturating_duration_since(soon - Duration::from_secs(60));
        assert!(left.abs_diff(Duration::from_secs(60)) < Duration::from_secs(1), "{left:?}");
        assert!(decode(body, &tag, clock.later(Duration::from_secs(61))).unwrap().1);
    }

    #[test]
    fn mqtt_3_3_2_6_clock_set_back_does_not_raise_stored_expiry() {
        let clock = RunClock::begin().now();
        let (start, interval) = (clock.at(), Duration::from_secs(20));
        let expiring = Delivery { expires_at: Some(start + interval), ..delivery(QoS::AtLeastOnce, false) };
        let (body, tag) = stored(&expiring, clock);
        for set_back in [0, 1, 3600, 86_400].map(Duration::from_secs) {
            let (back, is_over) = decode(body.clone(), &tag, clock.restarted().set_back(set_back)).unwrap();
            let left = back.expires_at.unwrap().saturating_duration_since(start);
            assert!(!is_over && left <= interval, "{left:?} after {set_back:?}");
            assert!(left > interval - Duration::from_secs(1), "{left:?} after {set_back:?}");
        }
    }

    #[test]
    fn clock_set_forward_for_a_while_expires_no_message() {
        let clock = RunClock::begin().now();
        let hour = Duration::from_secs(3600);
        let expiring = Delivery { expires_at: Some(clock.at() + hour), ..delivery(QoS::AtLeastOnce, false) };
        let (body, tag) = stored(&expiring, clock);
        let ahead = clock.set_forward(24 * hour);
        for clock in [ahead, ahead.set_back(24 * hour), ahead.set_back(24 * hour).restarted()] {
            let (back, is_over) = decode(body.clone(), &tag, clock).unwrap();
            assert!(!is_over && back.expires_at <= expiring.expires_at);
        }
        assert!(decode(body, &tag, ahead.restarted()).unwrap().1, "nobody else knows when it was stored");
    }

    #[test]
    fn messages_of_older_versions_are_read() {
        let clock = RunClock::begin().now();
        let soon = clock.at() + Duration::from_secs(60);
        for expires_at in [None, Some(soon)] {
            let written = Delivery { expires_at, ..delivery(QoS::AtLeastOnce, true) };
            let (body, tag) = stored(&written, clock);
            let expiry = expires_at.map(|at| clock.to_stored(at).stored);
            let expiry = expiry.unwrap_or(StoredExpiry { time: 0, interval: 0 }).to_bytes();
            let flags = [body[1] & !EXPIRES];
            let [first, second] = written.template.to_store().1;
            for (version, expiry) in [(VERSION_WITHOUT_INTERVAL, &expiry[..8]), (VERSION_WITHOUT_RUN, &expiry)] {
                let older = [&[version][..], &flags, expiry, &body[2..6], first, second].concat();
                assert_eq!(expires(&older), expires(&body));
                let (back, is_over) = decode(older.into(), &tag, clock.restarted()).unwrap();
                assert_eq!((back.expires_at, is_over), (expires_at, false));
                assert_eq!((back.published_qos, back.published_retain), (QoS::AtLeastOnce, true));
                assert_eq!(back.template.to_store(), written.template.to_store());
            }
        }
    }

    #[test]
    fn damaged_body_or_tag_is_an_error() {
        let clock = RunClock::begin().now();
        let (body, _) = stored(&delivery(QoS::ExactlyOnce, false), clock);
        for end in 0..body.len() {
            // A cut payload is no error here: the log's checksum detects that.
            let cut = decode(body.slice(..end), &[], clock);
            assert!(cut.is_err() || end >= HEAD_BYTES + 5, "{end} bytes");
        }
        let mut later = body.to_vec();
        later[0] = 4;
        assert_eq!(decode(later.into(), &[], clock).unwrap_err(), RecordError::Version(4));
        for tag in [&[3u8][..], &[8], &[1, 0, 0], &[0; 8], &[1; 12]] {
            assert!(decode(body.clone(), tag, clock).is_err(), "{tag:?}");
        }
    }
}
