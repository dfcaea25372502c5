use std::time::Instant;

use tenbin_codec::{PublishTemplate, QoS};
use tenbin_store::state::{Change, Table};

use super::record::RetainedRecord;
use super::wall_clock::WallClock;
use super::{CommitPoint, Durable};

/// A retained message, encoded for the disk.
#[derive(Debug)]
pub(crate) struct EncodedRetained(Box<[u8]>);

impl EncodedRetained {
    /// `None`: too large for MQTT 5.0. It came by an older version of MQTT, in a packet of nearly the largest size.
    pub(crate) fn new(template: &PublishTemplate, qos: QoS, expires_at: Option<Instant>) -> Option<Self> {
        let record = RetainedRecord::encode(template, qos, WallClock::now().to_stored_expiry(expires_at))?;
        Some(Self(record.into_boxed_slice()))
    }
}

impl Durable {
    /// Stores the new retained message of a topic.
    pub(crate) fn retained(&self, topic: &[u8], message: EncodedRetained) -> CommitPoint {
        CommitPoint::of_state(self.state.put(Table::Retained, topic.into(), message.0))
    }

    /// Removes the retained messages of these topics.
    pub(crate) fn unretained<'a>(&self, topics: impl IntoIterator<Item = &'a [u8]>) -> CommitPoint {
        let change = |key| Change { table: Table::Retained, key, value: None };
        CommitPoint::of_state(self.state.change(topics.into_iter().map(change)))
    }
}
