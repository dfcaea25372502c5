use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tenbin_sn_codec::v1_2::MessageId;

use crate::names::Names;
use crate::predefined::PredefinedTopics;
use crate::settings::Settings;

/// Data that all peers of a gateway share.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) settings: Settings,
    pub(crate) predefined: PredefinedTopics,
    pub(crate) names: Names,
    pub(crate) first_topic_id: u16,
    /// Key of [`Gateway::unguessable_id`].
    secret: RandomState,
    drawn: AtomicU64,
}

/// Memory of all clients' topic names, each stored once: 64 MiB.
const NAME_BYTES_MAXIMUM: usize = 64 << 20;

impl Gateway {
    /// A gateway with these settings and predefined topics.
    pub fn new(settings: Settings, predefined: PredefinedTopics) -> Self {
        Self {
            settings,
            predefined,
            names: Names::new(NAME_BYTES_MAXIMUM),
            first_topic_id: 1,
            secret: RandomState::new(),
            drawn: AtomicU64::new(0),
        }
    }

    /// Bounds the memory of all clients' topic names, in bytes.
    #[must_use]
    pub fn with_name_bytes_maximum(mut self, bytes: usize) -> Self {
        self.names = Names::new(bytes);
        self
    }

    /// Begins the topic ids of clients without Clean Session at another number than 1, 1 to 65,534, if their state is
    /// lost: an id that the client has from before should be no other topic's `[SN-TOPICID-5]`.
    #[must_use]
    pub fn with_first_topic_id(mut self, id: u16) -> Self {
        self.first_topic_id = id;
        self
    }

    /// Behaviour and bounds.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The predefined topics.
    pub fn predefined(&self) -> &PredefinedTopics {
        &self.predefined
    }

    /// A MsgId that only the receiver of its message knows. At most 32,767: some clients take ids for signed numbers.
    pub(crate) fn unguessable_id(&self) -> MessageId {
        loop {
            let drawn = self.secret.hash_one(self.drawn.fetch_add(1, Relaxed));
            if let Some(id) = MessageId::new(drawn as u16 >> 1) {
                return id;
            }
        }
    }
}
