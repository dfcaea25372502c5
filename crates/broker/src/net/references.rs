//! Messages by reference: a relay that has a copy of the store puts their payloads in.
//!
//! ```text
//!   on-disk backlog ─► beginning of the message ─► external packet ─► relay at the follower ─► PUBLISH ─► client
//!                                                                        └── payload, from the copy's segment
//! ```
//!
//! A message goes by reference once at most: a session whose connection has ended sends the messages in flight whole. So a
//! message that the relay cannot find costs a reconnect, and not a loop.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tenbin_codec::{WriteBuffer, write_external};
use tenbin_session::{Connection, Delivery, Sent};

use crate::durable::{ByReference, Page, REFERENCED_BYTES_MAX, REFERENCES_MAX};

/// State of a connection whose relay takes references.
#[derive(Debug, Default)]
pub(super) struct References {
    /// Average bytes of the last page's messages by reference; 0: it had none. Relaxed: one task uses it.
    average: AtomicUsize,
}

impl References {
    /// How the next page is to be read. `Err`: not before more messages are acknowledged, as too much is under way.
    ///
    /// `are_shown`: hooks or traces look at packets. `quota`: messages that can be sent beside those in the queue. A page has
    /// no more references: one that waited here would become old, and the relay does not know of it.
    pub(super) fn next_page(
        &self,
        connection: &Connection,
        are_shown: bool,
        quota: usize,
    ) -> Result<Option<ByReference>, TooMany> {
        if are_shown {
            return Ok(None);
        }
        let (average, in_flight) = (self.average.load(Ordering::Relaxed), connection.session().in_flight());
        let is_full = in_flight >= REFERENCES_MAX || in_flight.saturating_mul(average) >= REFERENCED_BYTES_MAX;
        if average > 0 && in_flight > 0 && (is_full || quota == 0) {
            return Err(TooMany);
        }
        let packet_bytes_maximum = connection.limits().peer_maximum_packet_size;
        Ok(Some(ByReference { packet_bytes_maximum, messages: quota.clamp(1, REFERENCES_MAX) }))
    }

    /// Notes the messages of a page.
    pub(super) fn take(&self, page: &Page) {
        let deliveries = page.messages.iter().filter_map(|(_, delivery)| delivery.as_ref());
        let sizes = deliveries.filter(|delivery| delivery.template.is_external()).map(|one| one.template.whole_len());
        let (count, bytes) = sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size));
        self.average.store(bytes.checked_div(count).unwrap_or(0), Ordering::Relaxed);
    }
}

/// Too many messages by reference are under way.
#[derive(Debug)]
pub(super) struct TooMany;

/// Sends a message by reference.
#[cold]
pub(super) fn send(connection: &mut Connection, delivery: Delivery, now: Instant, out: &mut WriteBuffer) -> Sent {
    let mut packet = WriteBuffer::new();
    let sent = connection.send(delivery, now, &mut packet);
    if let Sent::Written(_) = sent {
        write_external(packet, out);
    }
    sent
}
