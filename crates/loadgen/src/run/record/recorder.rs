use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::{Layout, Part};
use crate::run::Plan;

/// What one driver thread has sent and received. It takes no locks, reads no clock and, once a stream has begun,
/// allocates next to nothing.
///
/// All times are those of the run's clock, in nanoseconds since 1970-01-01 UTC.
#[derive(Debug)]
pub struct Recorder {
    layout: Arc<Layout>,
    start_ns: u64,
}

impl Recorder {
    /// A recorder for clients of this layout. Seconds count from `start_ns`; what comes before it counts as in second
    /// 0. `u64::MAX` where it is not known yet, see [`Recorder::start`].
    pub fn new(layout: Arc<Layout>, plan: &Plan, start_ns: u64) -> Self {
        let _ = plan;
        Self { layout, start_ns }
    }

    /// Sets the beginning of second 0, before anything was published.
    pub fn start(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    /// The sequence numbers of `stream` below `upto` were handed to a socket.
    pub fn attempted(&mut self, stream: u32, upto: u32) {
        let _ = (stream, upto);
    }

    /// These messages of `stream` are published: written at QoS 0, acknowledged at QoS 1 and 2.
    pub fn published(&mut self, stream: u32, sequences: Range<u32>, now_ns: u64) {
        let _ = (stream, sequences, now_ns);
    }

    /// A message was handed to a socket by so much after its due time.
    pub fn sent_late(&mut self, late_us: u32) {
        let _ = late_us;
    }

    /// So many messages were due and have not been handed to a socket when the time was over.
    pub fn unsent(&mut self, messages: u64) {
        let _ = messages;
    }

    /// A message came to a receiver; `dup` is its DUP flag.
    ///
    /// # Panics
    /// If there is no such receiver.
    pub fn arrived(&mut self, receiver: u32, payload: &[u8], dup: bool, now_ns: u64) {
        let _ = (&self.layout, receiver, payload, dup, now_ns);
    }

    /// A simulated worker has processed a message, which took it so long.
    ///
    /// # Panics
    /// If there is no such receiver.
    pub fn processed(&mut self, receiver: u32, took: Duration, now_ns: u64) {
        let _ = (receiver, took, now_ns);
    }

    /// A CONNACK with success came, so long after the connection was begun.
    pub fn connected(&mut self, took: Duration, now_ns: u64) {
        let _ = (took, now_ns);
    }

    /// A connection was refused: CONNACK with an error, or closed instead.
    pub fn refused(&mut self) {}

    /// A connection ended by itself.
    pub fn lost(&mut self) {}

    /// The run cut a connection.
    pub fn cut(&mut self) {}

    /// A client that came back found its session.
    pub fn session_present(&mut self) {}

    /// A Will came.
    pub fn will(&mut self) {}

    /// What was recorded.
    pub fn into_part(self) -> Part {
        Part::default()
    }
}
