use hdrhistogram::Histogram;
use tenbin_client::{Client, OutgoingMessage, TryPublishError};
use tenbin_codec::{QoS, TopicName};
use tokio::runtime::Handle;

use super::Schedule;
use super::shared::Shared;
use crate::payload::Stamp;
use crate::{Clock, LoadgenError};

/// Publishes on an absolute schedule, in its own thread.
pub(super) struct Publisher {
    pub(super) schedule: Schedule,
    /// Due time of the first message, by the run's clock.
    pub(super) start_ns: u64,
    /// Number of the run, for stamps.
    pub(super) run: u64,
    pub(super) topic: TopicName,
    pub(super) qos: QoS,
    pub(super) clock: Clock,
    pub(super) client: Client,
    /// Runtime of the client; the publisher waits on it when the client's queue is full.
    pub(super) runtime: Handle,
}

/// The publisher's record of a run.
#[derive(Debug)]
pub(crate) struct PublisherRecord {
    /// Creation time of each message by the run's clock, by sequence number.
    pub(crate) created_ns: Vec<u64>,
    /// Time from due to creation of each message, in nanoseconds.
    pub(crate) lateness_ns: Histogram<u64>,
}

impl Publisher {
    /// Publishes all messages, or until the run is stopped.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub(super) fn publish(self, shared: &Shared) -> Result<PublisherRecord, LoadgenError> {
        let mut lateness_ns = Histogram::new(3).expect("three digits are supported");
        let mut made_ns = Vec::with_capacity(self.schedule.due_ns().len());
        for due_ns in self.schedule.due_ns() {
            let due_ns = self.start_ns.saturating_add(*due_ns);
            self.clock.sleep_until_exactly(due_ns);
            if shared.is_stopped() {
                break;
            }
            let created_ns = self.clock.now_ns();
            lateness_ns.record(created_ns - due_ns).expect("the histogram grows");
            made_ns.push(created_ns);
            let stamp = Stamp { run: self.run, sequence: shared.publish(), created_ns };
            self.send(stamp)?;
        }
        Ok(PublisherRecord { created_ns: made_ns, lateness_ns })
    }

    fn send(&self, stamp: Stamp) -> Result<(), LoadgenError> {
        let message = OutgoingMessage::new(self.topic.clone(), stamp.encode()).at(self.qos);
        // Waits for a client with a full queue; the delay shows as lateness of later messages.
        let sent = match self.client.try_publish(message) {
            Ok(_ticket) => Ok(()),
            Err(TryPublishError::Full(message)) => self.runtime.block_on(self.client.publish(message)).map(drop),
            Err(TryPublishError::Failed(error)) => Err(error),
        };
        sent.map_err(|error| LoadgenError::lost("the publisher", error))
    }
}
