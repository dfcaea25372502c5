use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;
use tenbin_client::{Client, OutgoingMessage, PublishTicket, TryPublishError};
use tenbin_codec::{QoS, TopicName};
use tokio::runtime::Handle;

use crate::payload::Stamp;
use crate::{Clock, LoadgenError};

/// Publishes at a steady rate, in its own thread.
pub(super) struct Publisher {
    pub(super) client: Client,
    pub(super) topic: TopicName,
    pub(super) clock: Clock,
    /// Number of the run, for stamps.
    pub(super) run: u64,
    /// Due time of the first message by the run's clock, and the interval between messages.
    pub(super) start_ns: u64,
    pub(super) interval_ns: f64,
    pub(super) messages: u64,
    pub(super) bytes: usize,
    /// Set when the run ends early.
    pub(super) is_stopped: Arc<AtomicBool>,
    /// Runtime of the client; the publisher waits on it when the client's queue is full.
    pub(super) runtime: Handle,
}

/// Results of publishing.
pub(super) struct Published {
    /// Tickets of all messages, in order.
    pub(super) tickets: Vec<PublishTicket>,
    /// Creation time of each message by the run's clock, by sequence number.
    pub(super) made_ns: Vec<u64>,
    /// Time from due to creation of each message, in nanoseconds.
    pub(super) lateness_ns: Histogram<u64>,
}

impl Publisher {
    /// Publishes all messages, or until the run is stopped.
    ///
    /// Lateness of the system's timer is not part of a latency. Time in which the broker accepted nothing is part of
    /// it: a message that was due then counts from its due time.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub(super) fn publish(self) -> Result<Published, LoadgenError> {
        let mut lateness_ns = Histogram::new(3).expect("three digits are supported");
        let (mut tickets, mut all_made_ns, mut was_full) = (Vec::new(), Vec::new(), false);
        for sequence in 0..self.messages {
            let due_ns = self.start_ns + (sequence as f64 * self.interval_ns) as u64;
            self.clock.sleep_until_exactly(due_ns);
            if self.is_stopped.load(Ordering::Relaxed) {
                break;
            }
            let now_ns = self.clock.now_ns();
            lateness_ns.record(now_ns.saturating_sub(due_ns)).expect("the histogram grows");
            let made_ns = if was_full { due_ns } else { now_ns };
            all_made_ns.push(made_ns);
            let payload = Stamp { run: self.run, sequence, created_ns: made_ns }.encode_as(self.bytes);
            let message = OutgoingMessage::new(self.topic.clone(), payload).at(QoS::AtLeastOnce);
            let tried = self.client.try_publish(message);
            was_full = matches!(tried, Err(TryPublishError::Full(_)));
            let sent = match tried {
                Err(TryPublishError::Full(message)) => self.runtime.block_on(self.client.publish(message)),
                Err(TryPublishError::Failed(error)) => Err(error),
                Ok(ticket) => Ok(ticket),
            };
            tickets.push(sent.map_err(|error| LoadgenError::lost("the publisher", error))?);
        }
        Ok(Published { tickets, made_ns: all_made_ns, lateness_ns })
    }
}
