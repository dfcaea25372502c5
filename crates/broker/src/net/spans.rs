//! Spans of one connection, for a collector of OpenTelemetry.

use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::Text;
use tenbin_session::{Delivery, Publication};

use crate::hooks::HookSet;
use crate::router::Published;
use crate::telemetry::Telemetry;
pub(super) use crate::telemetry::{DeliverSpan, PublishSpan};

/// Where the spans of a connection go, and those of the messages in this batch.
#[derive(Debug)]
pub(super) struct Spans {
    telemetry: Option<Arc<Telemetry>>,
    published: Vec<(Box<PublishSpan>, Published)>,
}

impl Spans {
    pub(super) fn of(set: &HookSet) -> Self {
        Self { telemetry: set.telemetry().cloned(), published: Vec::new() }
    }

    /// Whether traces may begin with any message of the client.
    pub(super) fn begin_traces(&self) -> bool {
        self.telemetry.as_ref().is_some_and(|telemetry| telemetry.begins_traces())
    }

    /// Begins the span of a message from the client, which was read at `read_at`, and writes its id into the message.
    #[cold]
    #[inline(never)]
    pub(super) fn begin(
        &self,
        client: &Text,
        publication: &mut Publication,
        read_at: Instant,
    ) -> Option<Box<PublishSpan>> {
        self.telemetry.as_ref()?.begin(client, publication, read_at).map(Box::new)
    }

    /// Keeps the span of a message until the batch is with its receivers.
    pub(super) fn published(&mut self, span: Option<Box<PublishSpan>>, published: Published) {
        self.published.extend(span.map(|span| (span, published)));
    }

    /// Ends the spans of the batch's messages; `refused`: as for [`Published::reached`].
    pub(super) fn flushed(&mut self, refused: &[u32]) {
        if let Some(telemetry) = &self.telemetry {
            let ended = self.published.drain(..);
            ended.for_each(|(span, published)| telemetry.end(*span, published.reached(refused)));
        }
    }

    /// Begins the span of a message to the client.
    pub(super) fn deliver(&self, delivery: &Delivery, client: &Text) -> Option<DeliverSpan> {
        self.telemetry.as_ref()?.deliver(delivery, client)
    }
}
