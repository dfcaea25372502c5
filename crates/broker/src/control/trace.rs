//! Traces for operators.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::SystemTime;

use tenbin_admin::{Answer, ControlError, PacketView, TraceEvent, TraceFeed, TraceQuery};
use tenbin_codec::{Text, TopicFilter};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Control;
use crate::lifecycle::BrokerState;
use crate::outbox;
use crate::trace::{Trace, TracedPacket, Wanted};

/// Ends a trace when its reader is gone.
struct Reading {
    shared: Arc<BrokerState>,
    trace: Arc<Trace>,
    packets: mpsc::Receiver<TracedPacket>,
    /// Taken from the queue, and not told yet since a gap comes first.
    next: Option<TracedPacket>,
    /// All connections have taken it over.
    is_of_all: bool,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.packets.close();
        self.shared.operations.traces.end();
        // Connections without traffic would keep the memory of a trace of all.
        if self.is_of_all
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(ask_all(Arc::clone(&self.shared)));
        }
    }
}

impl Control {
    pub(super) async fn begin_trace(&self, query: TraceQuery) -> Answer<TraceFeed> {
        let invalid = |error: String| ControlError::Invalid(error);
        let (wanted, client) = match (query.client, query.topic) {
            (Some(client), None) => {
                let text = Text::try_from(client.clone()).map_err(|error| invalid(format!("client: {error}")))?;
                (Wanted::Client(text), Some(client))
            }
            (None, Some(filter)) => {
                let filter = TopicFilter::try_from(&filter[..]).map_err(|error| invalid(format!("topic: {error}")))?;
                if filter.is_shared() {
                    return Err(invalid("topic: needs a filter without $share".to_owned()));
                }
                (Wanted::Topics(filter), None)
            }
            _ => return Err(invalid("needs either client or topic".to_owned())),
        };
        let too_many = || ControlError::TooMany("as many traces as possible run already".to_owned());
        let (trace, packets) = self.shared.operations.traces.begin(wanted).ok_or_else(too_many)?;
        let mut reading =
            Reading { shared: Arc::clone(&self.shared), trace, packets, next: None, is_of_all: client.is_none() };
        match client {
            // Its answer comes after it has found the trace. A client that is not connected finds it when it comes.
            Some(client) => drop(self.client_details(client).await),
            None => ask_all(Arc::clone(&self.shared)).await,
        }
        Ok(TraceFeed::new(move |context| {
            let packet = match reading.next.take() {
                Some(packet) => packet,
                None => match ready!(reading.packets.poll_recv(context)) {
                    Some(packet) => packet,
                    None => return Poll::Ready(None),
                },
            };
            let dropped = reading.trace.take_dropped();
            Poll::Ready(Some(if dropped > 0 {
                reading.next = Some(packet);
                TraceEvent::Dropped(dropped)
            } else {
                TraceEvent::Packet(view(&packet))
            }))
        }))
    }
}

/// Has all connections look for traces.
async fn ask_all(shared: Arc<BrokerState>) {
    let Some(roster) = shared.sessions.registry.roster() else { return };
    let mut after = Some(0);
    while let Some(last) = after {
        let mut clients = Vec::new();
        after = roster.page(last, |client, link| {
            clients.extend(link.map(|_| Arc::clone(client)));
            ControlFlow::Continue(())
        });
        clients.iter().for_each(|client| client.outbox.control(outbox::Control::Asked));
        tokio::task::yield_now().await;
    }
}

fn view(packet: &TracedPacket) -> PacketView {
    let time = packet.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    PacketView {
        time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        direction: if packet.is_received { "in" } else { "out" },
        client: packet.client.as_str().to_owned(),
        packet: packet.kind.clone(),
        topic: packet.topic.clone(),
        filters: packet.filters.clone(),
        qos: packet.qos.map(|qos| qos as u8),
        packet_id: packet.packet_id,
        reason: packet.reason,
        bytes: packet.bytes,
    }
}
