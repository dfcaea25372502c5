use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;
use tenbin_client::{Client, OutgoingMessage, PublishTicket, TryPublishError};
use tenbin_codec::{QoS, TopicName};
use tokio::runtime::Handle;

use crate::payload::Stamp;
use crate::{Clock, LoadgenError};

/// Publishes at a steady rate, from a thread of its own.
pub(super) struct Publisher {
    pub(super) client: Client,
    pub(super) topic: TopicName,
    pub(super) clock: Clock,
    /// Number of the run, for the messages.
    pub(super) run: u64,
    /// When the first message is due, by the run's clock, and from each to the next.
    pub(super) start_ns: u64,
    pub(super) interval_ns: f64,
    pub(super) messages: u64,
    pub(super) bytes: usize,
    /// Set when the run ends before its time.
    pub(super) is_stopped: Arc<AtomicBool>,
    /// Waits there when the client's queue is full.
    pub(super) runtime: Handle,
}

/// What was published.
pub(super) struct Published {
    /// One for each message, in order.
    pub(super) tickets: Vec<PublishTicket>,
    /// When each message was made, by the run's clock; by sequence number.
    pub(super) made_ns: Vec<u64>,
    /// How long after it was due each message was made, in nanoseconds.
    pub(super) lateness_ns: Histogram<u64>,
}

impl Publisher {
    /// Publishes all messages, or up to the stop of the run. What the system's timer is late by is no part of a latency, but
    /// time in which the broker took nothing is: whatever was due then counts from when it was due.
    ///
    /// # Errors
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
