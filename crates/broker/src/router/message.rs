//! One message on its way to its receivers.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::BytesMut;
use tenbin_codec::{MessageProperties, PlainPublish, PublishTemplate, QoS, TopicName};
use tenbin_session::{Delivery, Publication};

use super::fanout::Fanout;
use super::matches::Terms;
use crate::durable::{PLACE_BYTES, RECORD_BYTES, StoredQueue};
use crate::outbox::{Booked, Outbox};
use crate::values::{Bound, Moment};

/// The share group of a delivery, and the hash by which it chose a member.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) group: Option<NonZeroU64>,
    pub(super) key: Option<NonZeroU64>,
}

impl Share {
    /// For a receiver without a share group.
    pub(super) const NONE: Self = Self { group: None, key: None };
}

/// The receiver of one delivery.
pub(super) struct To<'a> {
    pub(super) number: u64,
    pub(super) outbox: &'a Arc<Outbox>,
    /// Its stored queue, if the message goes there.
    pub(super) kept: Option<Arc<StoredQueue>>,
}

/// One publication on its way to its receivers.
pub(super) struct RoutedMessage<'a> {
    /// `None` if `plain` is the whole message.
    publication: Option<&'a Publication>,
    pub(super) name: &'a TopicName,
    pub(super) qos: QoS,
    /// The packet that most receivers get unchanged.
    plain: Option<PlainPublish<'a>>,
    /// Created when a receiver needs it; the last receiver takes it.
    template: Option<PublishTemplate>,
    /// Size of the packet for the balancer.
    pub(super) packet_bytes: u32,
    /// Hash of the topic.
    pub(super) topic: u64,
    /// Persistent storage is configured.
    may_be_kept: bool,
    /// [`Fanout::begin_message`] was called for it.
    is_begun: bool,
    /// See [`Delivery::message`].
    number: u32,
    pub(super) now: Moment,
}

impl<'a> RoutedMessage<'a> {
    /// Prepares a publication. `may_be_kept`: persistent storage is configured. `number`: [`Delivery::message`].
    pub(super) fn new(publication: &'a Publication, topic: u64, may_be_kept: bool, number: u32, now: Moment) -> Self {
        let Publication { topic: name, qos, retain, properties, expires_at, .. } = publication;
        let has_more = qos.is_acknowledged() || *retain || properties.is_some() || expires_at.is_some();
        let plain = PlainPublish::new(name, &publication.payload).filter(|_| !has_more);
        if let Some(plain) = plain {
            return Self::plain(plain, name, topic, now);
        }
        let template = BLOCK.with_borrow_mut(|block| publication.template(block));
        let packet_bytes = Booked::packet_bytes(template.len());
        let (publication, template) = (Some(publication), Some(template));
        Self {
            publication,
            name,
            qos: *qos,
            plain: None,
            template,
            packet_bytes,
            topic,
            may_be_kept,
            is_begun: qos.is_acknowledged(),
            number,
            now,
        }
    }

    #[inline]
    pub(super) fn plain(plain: PlainPublish<'a>, name: &'a TopicName, topic: u64, now: Moment) -> Self {
        let packet_bytes = Booked::packet_bytes(plain.template_len());
        let (plain, qos) = (Some(plain), QoS::AtMostOnce);
        Self {
            publication: None,
            name,
            qos,
            plain,
            template: None,
            packet_bytes,
            topic,
            may_be_kept: false,
            is_begun: false,
            number: 0,
            now,
        }
    }

    /// Prepares a plain message of QoS 1 or 2. `may_be_kept` and `number` as for [`RoutedMessage::new`].
    #[inline]
    pub(super) fn acknowledged(
        (plain, qos): (PlainPublish<'a>, QoS),
        name: &'a TopicName,
        topic: u64,
        may_be_kept: bool,
        number: u32,
        now: Moment,
    ) -> Self {
        let template = BLOCK.with_borrow_mut(|block| plain.template(block));
        let template = Some(template);
        Self { qos, plain: None, template, may_be_kept, is_begun: true, number, ..Self::plain(plain, name, topic, now) }
    }

    pub(super) fn properties(&self) -> Option<&MessageProperties> {
        self.publication?.properties.as_deref()
    }

    /// The encoded message, if it has properties, as the context of a trace is one.
    #[cfg(feature = "otel")]
    #[inline]
    pub(super) fn with_properties(&self) -> Option<&PublishTemplate> {
        self.template.as_ref().filter(|_| self.properties().is_some())
    }

    /// Returns whether a receiver with these terms acknowledges it.
    #[inline]
    pub(super) fn is_acknowledged_by(&self, terms: &Terms) -> bool {
        self.qos.is_acknowledged() && terms.qos.is_acknowledged()
    }

    /// Returns whether stored queues keep the message on disk.
    #[inline]
    pub(super) fn may_be_kept(&self) -> bool {
        self.may_be_kept && self.qos.is_acknowledged()
    }

    /// Adds the delivery to one receiver.
    #[inline]
    pub(super) fn add_to(&mut self, fanout: &mut Fanout, to: To<'_>, terms: &Terms, share: Share, is_last: bool) {
        let To { number, outbox, kept } = to;
        if let Some(plain) = self.plain.filter(|_| terms.identifiers.is_none())
            && let Some(wire) = outbox.wire()
            && outbox.takes(plain.encoded_len(wire.version))
        {
            fanout.add_plain((number, outbox, wire), (share.group, share.key), &plain, self.now.at);
        } else if outbox.keeps_unacknowledged() && !self.is_acknowledged_by(terms) && share.group.is_none() {
            self.add_slowly(fanout, (number, outbox), terms, is_last);
        } else {
            fanout.add(number, outbox, self.delivery(terms, share, is_last), kept, self.now.at);
        }
    }

    /// Adds the delivery to a slow receiver whose QoS 0 messages spill to disk.
    #[cold]
    fn add_slowly(&mut self, fanout: &mut Fanout, (number, outbox): (u64, &Arc<Outbox>), terms: &Terms, is_last: bool) {
        if !std::mem::replace(&mut self.is_begun, true) {
            fanout.begin_message(); // QoS 0 messages mostly need no number
        }
        let once = if fanout.is_booked() { 0 } else { RECORD_BYTES + self.packet_bytes as usize };
        let shortage = || (!fanout.book(outbox.take_disk_room(once + PLACE_BYTES))).then_some(Bound::StoreBytes);
        if let Some(bound) = outbox.over_quota(self.now.at).or_else(shortage) {
            outbox.drop_newest(self.name, bound, self.now.at);
            return;
        }
        let delivery = self.delivery(terms, Share::NONE, is_last);
        fanout.add(number, outbox, delivery, outbox.collects_in(false), self.now.at);
    }

    /// Creates the delivery to one receiver. The last one takes the template itself, which saves a clone of its
    /// reference counter.
    #[inline(always)] // called once per delivery: a call would move the delivery once more
    pub(super) fn delivery(&mut self, terms: &Terms, share: Share, is_last: bool) -> Delivery {
        if let (None, Some(plain)) = (&self.template, &self.plain) {
            self.template = Some(BLOCK.with_borrow_mut(|block| plain.template(block)));
        }
        let template = if is_last { self.template.take() } else { self.template.clone() };
        let retain = self.publication.is_some_and(|publication| publication.retain);
        Delivery {
            template: template.expect("nobody comes after the last"),
            qos: QoS::min(self.qos, terms.qos),          // [MQTT-3.8.4-8]
            retain: retain && terms.retain_as_published, // [MQTT-3.3.1-12], [MQTT-3.3.1-13]
            published_qos: self.qos,
            published_retain: retain,
            extras: terms.identifiers.clone(),
            stored: None,
            expires_at: self.publication.and_then(|publication| publication.expires_at),
            share: share.group,
            share_key: share.key,
            message: self.number,
        }
    }
}

thread_local! {
    /// Memory block for templates. One per thread, since most connections are idle.
    static BLOCK: RefCell<BytesMut> = RefCell::default();
}
