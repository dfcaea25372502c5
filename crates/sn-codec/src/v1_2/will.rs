use alloc::vec::Vec;

use super::flags::{Flags, QoS};
use crate::DecodeError;
use crate::reader::Reader;

/// Topic of a Will, in WILLTOPIC (§5.4.7) and WILLTOPICUPD (§5.4.23).
///
/// ```text
///   Flags: QoS, Retain | topic name        or no body at all: no Will
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WillTopic<'a> {
    /// QoS at which the Will is published.
    pub qos: QoS,
    /// Whether it is published as a retained message.
    pub retain: bool,
    /// At least one character.
    pub topic: &'a str,
}

impl<'a> WillTopic<'a> {
    pub(super) fn decode(mut body: Reader<'a>) -> Result<Option<Self>, DecodeError> {
        if body.is_empty() {
            return Ok(None);
        }
        let flags = Flags(body.u8()?);
        if body.is_empty() {
            return Err(DecodeError::TopicEmpty);
        }
        Ok(Some(Self { qos: flags.qos()?, retain: flags.retain(), topic: body.rest_text()? }))
    }

    pub(super) fn len(&self) -> usize {
        1 + self.topic.len()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(Flags::default().with_qos(Some(self.qos)).with_retain(self.retain).0);
        out.extend_from_slice(self.topic.as_bytes());
    }
}
