use std::time::Instant;

use tenbin_codec::{PublishTemplate, QoS};
use tenbin_store::state::{Change, Table};

use super::record::RetainedRecord;
use super::wall_clock::WallClock;
use super::{Durable, SafeAt};

/// A retained message as it is kept.
#[derive(Debug)]
pub(crate) struct EncodedRetained(Vec<u8>);

impl EncodedRetained {
    pub(crate) fn new(template: &PublishTemplate, qos: QoS, expires_at: Option<Instant>) -> Self {
        Self(RetainedRecord::encode(template, qos, WallClock::now().to_wall(expires_at)))
    }
}

impl Durable {
    /// The topic's message is another one now.
    pub(crate) fn retained(&self, topic: &[u8], message: &EncodedRetained) -> SafeAt {
        let change = Change { table: Table::Retained, key: topic, value: Some(&message.0) };
        SafeAt { state: self.state.change([change]) }
    }

    /// These topics have none any more.
    pub(crate) fn unretained<'a>(&self, topics: impl IntoIterator<Item = &'a [u8]>) -> SafeAt {
        let change = |key| Change { table: Table::Retained, key, value: None };
        SafeAt { state: self.state.change(topics.into_iter().map(change)) }
    }
}
