use bytes::{Bytes, BytesMut};
use tenbin_codec::{MessageProperties, ReasonCode, ReportCarrier, TopicName, Will};
use tenbin_session::Publication;

use crate::Config;
use crate::values::Bound;

/// Checks of messages before they are forwarded: topics, and sizes that the configuration bounds.
#[derive(Debug)]
pub(crate) struct MessageChecks {
    topic_bytes: usize,
    topic_levels: usize,
    packet_bytes: usize,
    /// Payloads that are declared as UTF-8 are checked.
    payload_format: bool,
}

impl MessageChecks {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            topic_bytes: config.topic_bytes_maximum(),
            topic_levels: config.topic_levels_maximum(),
            packet_bytes: config.packet_bytes_maximum() as usize,
            payload_format: config.capabilities.payload_format_check,
        }
    }

    /// Checks that a client's message may be forwarded.
    ///
    /// # Errors
    /// The Reason Code of its acknowledgement.
    pub(crate) fn publish(&self, publication: &Publication) -> Result<(), ReasonCode> {
        self.topic(&publication.topic)?;
        if self.payload_format {
            check_payload_format(publication.properties.as_deref(), &publication.payload)?;
        }
        Ok(())
    }

    /// Checks that a message of the embedding program may be forwarded, or one that its hooks have changed.
    ///
    /// # Errors
    /// The Reason Code of the refusal.
    pub(crate) fn own(&self, publication: &Publication) -> Result<(), ReasonCode> {
        if publication.topic.is_empty() || publication.topic.as_bytes() == ReportCarrier::TOPIC.as_bytes() {
            return Err(ReasonCode::TopicNameInvalid);
        }
        self.topic(&publication.topic).map_err(|reason| match reason {
            ReasonCode::Success => ReasonCode::NotAuthorized, // reserved all the same
            reason => reason,
        })?;
        let properties = publication.properties.as_deref();
        let response_topic = properties.and_then(|properties| properties.response_topic.as_ref());
        if response_topic.is_some_and(|topic| TopicName::try_from(topic.as_str()).is_err()) {
            return Err(ReasonCode::TopicNameInvalid); // [MQTT-3.3.2-14]
        }
        check_payload_format(properties, &publication.payload)?;
        let correlation = properties.and_then(|properties| properties.correlation_data.as_ref()).map_or(0, Bytes::len);
        let has_room = publication.payload.len() <= self.packet_bytes
            && correlation <= u16::MAX.into()
            && publication.template(&mut BytesMut::new()).len() <= self.packet_bytes;
        if has_room { Ok(()) } else { Err(ReasonCode::PacketTooLarge) }
    }

    /// Whether a dead letter may have this topic.
    pub(crate) fn letter(&self, name: &TopicName) -> bool {
        !name.is_empty() && name.as_bytes() != ReportCarrier::TOPIC.as_bytes() && self.topic(name).is_ok()
    }

    /// Checks that a Will may be published later.
    ///
    /// # Errors
    /// The Reason Code of CONNACK.
    pub(crate) fn will(&self, will: &Will) -> Result<(), ReasonCode> {
        match self.topic(&will.topic) {
            Ok(()) if will.topic.as_bytes() == ReportCarrier::TOPIC.as_bytes() => {
                return Err(ReasonCode::TopicNameInvalid);
            }
            Ok(()) | Err(ReasonCode::Success) => {}
            Err(_) => return Err(ReasonCode::TopicNameInvalid),
        }
        if self.payload_format {
            check_payload_format(will.properties.as_deref(), &will.payload)?;
        }
        Ok(())
    }

    /// Checks that clients may publish to this topic.
    ///
    /// `$SYS` and the like are reserved for the broker (MQTT 5.0 §4.7.2), and length and number of levels are bounded.
    /// `$load` itself carries load reports.
    ///
    /// # Errors
    /// The Reason Code of the answer; [`ReasonCode::Success`] if the message is acknowledged and dropped.
    pub(crate) fn topic(&self, name: &TopicName) -> Result<(), ReasonCode> {
        let topic = name.as_bytes();
        // A topic with n separators has n + 1 levels and at least n bytes, so the length check rules out nearly all
        // topics.
        let has_separator = |&byte: &u8| u8::from(byte == b'/');
        let separators_in = |bytes: &[u8]| usize::from(bytes.iter().map(has_separator).sum::<u8>());
        let separators = || topic.chunks(u8::MAX.into()).map(separators_in).sum::<usize>();
        let has_too_many_levels = || topic.len() >= self.topic_levels && separators() >= self.topic_levels;
        if topic.len() > self.topic_bytes || has_too_many_levels() {
            return Err(ReasonCode::TopicNameInvalid);
        }
        let is_reserved = || {
            topic != ReportCarrier::TOPIC.as_bytes()
                && RESERVED.contains(&topic.split(|&byte| byte == b'/').next().unwrap_or_default())
        };
        if topic.first() == Some(&b'$') && is_reserved() {
            // A Mosquitto bridge publishes its own state here and takes a refusal for a failure: accept and drop it.
            return Err(if is_bridge_state(name) { ReasonCode::Success } else { ReasonCode::NotAuthorized });
        }
        Ok(())
    }

    /// The bound that a topic exceeds, after [`MessageChecks::topic`] has refused it.
    pub(crate) fn bound(&self, topic: &TopicName) -> Option<Bound> {
        let is_long = topic.as_bytes().len() > self.topic_bytes;
        let is_deep = || topic.as_bytes().split(|&byte| byte == b'/').count() > self.topic_levels;
        if is_long { Some(Bound::TopicBytes) } else { is_deep().then_some(Bound::TopicLevels) }
    }
}

/// Returns [`ReasonCode::PayloadFormatInvalid`] if a payload declared as UTF-8 is not (MQTT 5.0 §3.3.2.3.2).
fn check_payload_format(properties: Option<&MessageProperties>, payload: &[u8]) -> Result<(), ReasonCode> {
    let is_text = properties.is_some_and(|properties| properties.payload_format_indicator == Some(true));
    if is_text && std::str::from_utf8(payload).is_err() {
        return Err(ReasonCode::PayloadFormatInvalid);
    }
    Ok(())
}

/// Whether `topic` is `$SYS/broker/connection/<bridge>/state`.
fn is_bridge_state(topic: &TopicName) -> bool {
    let bridge = topic.as_bytes().strip_prefix(b"$SYS/broker/connection/");
    bridge.and_then(|rest| rest.strip_suffix(b"/state")).is_some_and(|bridge| !bridge.contains(&b'/'))
}

/// First levels of topics that clients may not publish to.
const RESERVED: [&[u8]; 3] = [b"$SYS", b"$share", ReportCarrier::TOPIC.as_bytes()];
