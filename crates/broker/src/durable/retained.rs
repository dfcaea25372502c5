use std::time::Instant;

use tenbin_codec::{PublishTemplate, QoS};
use tenbin_store::state::{Change, Table};

use super::record::RetainedRecord;
use super::wall_clock::WallClock;
use super::{Durable, SafeAt};

/// A retained message as it is kept.
#[derive(Debug)]
pub(crate) struct EncodedRetained(Box<[u8]>);

impl EncodedRetained {
    /// `None`: it came as the largest packet that there is or nearly, and as one of MQTT 5.0 it would be larger.
    pub(crate) fn new(template: &PublishTemplate, qos: QoS, expires_at: Option<Instant>) -> Option<Self> {
        let record = RetainedRecord::encode(template, qos, WallClock::now().to_stored_expiry(expires_at))?;
        Some(Self(record.into_boxed_slice()))
    }
}

impl Durable {
    /// The topic's message is another one now.
    pub(crate) fn retained(&self, topic: &[u8], message: EncodedRetained) -> SafeAt {
        SafeAt::of_state(self.state.put(Table::Retained, topic.into(), message.0))
    }

    /// These topics have none any more.
    pub(crate) fn unretained<'a>(&self, topics: impl IntoIterator<Item = &'a [u8]>) -> SafeAt {
        let change = |key| Change { table: Table::Retained, key, value: None };
        SafeAt::of_state(self.state.change(topics.into_iter().map(change)))
    }
}
