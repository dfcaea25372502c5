//! Traces: the packets of one client, or the PUBLISH packets of some topics, as operators watch them.
//!
//! A connection asks for the traces that concern it when it begins, and when its owner is asked. Without a trace, its
//! packets cost nothing. A trace holds no payloads.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tenbin_codec::{Packet, QoS, Text, TopicFilter, TopicName};
use tokio::sync::mpsc;

/// All traces of a broker.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    /// Length of the list. Written under its lock, read without it by connections that begin: the owner of one that
    /// misses a new trace is asked afterwards. Relaxed.
    count: AtomicUsize,
    list: Mutex<Vec<Arc<Trace>>>,
}

/// Packets that a trace wants.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// All packets of a client.
    Client(Text),
    /// PUBLISH packets of all clients with a topic that matches.
    Topics(TopicFilter),
}

/// One trace.
#[derive(Debug)]
pub(crate) struct Trace {
    wanted: Wanted,
    packets: mpsc::Sender<TracedPacket>,
    dropped: AtomicU64,
}

/// A packet in a trace.
#[derive(Debug, Clone)]
pub(crate) struct TracedPacket {
    pub(crate) at: SystemTime,
    /// From the client, not to it.
    pub(crate) is_received: bool,
    pub(crate) client: Text,
    /// Name of the packet type.
    pub(crate) kind: String,
    /// Topic of a PUBLISH, at most [`TEXT_MAX`] bytes of it.
    pub(crate) topic: Option<String>,
    /// Filters of a SUBSCRIBE or UNSUBSCRIBE, at most [`TEXT_MAX`] bytes of each.
    pub(crate) filters: Vec<String>,
    pub(crate) qos: Option<QoS>,
    pub(crate) packet_id: Option<u16>,
    /// Reason Code; of several ones the highest.
    pub(crate) reason: Option<u8>,
    /// Size of the packet; `None` = unknown.
    pub(crate) bytes: Option<usize>,
}

/// The traces that concern one connection.
#[derive(Debug)]
pub(crate) struct Traced {
    client: Text,
    traces: Vec<Arc<Trace>>,
    /// Input that was not decoded at the last look.
    undecoded: usize,
}

impl Traces {
    /// Begins a trace; `None` if there are [`TRACES_MAX`] already.
    pub(crate) fn begin(&self, wanted: Wanted) -> Option<(Arc<Trace>, mpsc::Receiver<TracedPacket>)> {
        let (packets, received) = mpsc::channel(PACKETS_MAX);
        let trace = Arc::new(Trace { wanted, packets, dropped: AtomicU64::new(0) });
        let mut list = self.list();
        list.retain(|trace| !trace.is_over());
        if list.len() >= TRACES_MAX {
            return None;
        }
        list.push(Arc::clone(&trace));
        self.count.store(list.len(), Ordering::Relaxed);
        Some((trace, received))
    }

    /// Removes traces whose receiver is gone.
    pub(crate) fn end(&self) {
        let mut list = self.list();
        list.retain(|trace| !trace.is_over());
        self.count.store(list.len(), Ordering::Relaxed);
    }

    /// The traces that concern a client; `None` if there are none.
    pub(crate) fn of(&self, client: &Text) -> Option<Box<Traced>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let is_wanted = |trace: &&Arc<Trace>| {
            !trace.is_over() && matches!(&trace.wanted, Wanted::Topics(_)) | trace.is_of_client(client)
        };
        let traces: Vec<_> = self.list().iter().filter(is_wanted).cloned().collect();
        (!traces.is_empty()).then(|| Box::new(Traced { client: client.clone(), traces, undecoded: 0 }))
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Trace>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trace {
    /// Packets that the receiver has missed because it was too slow, since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.packets.is_closed()
    }

    fn is_of_client(&self, client: &Text) -> bool {
        matches!(&self.wanted, Wanted::Client(wanted) if wanted == client)
    }

    /// Whether the trace shows a packet; `topic`: of a PUBLISH.
    fn wants(&self, topic: Option<&TopicName>) -> bool {
        match &self.wanted {
            Wanted::Client(_) => true,
            Wanted::Topics(filter) => topic.is_some_and(|topic| filter.matches(topic)),
        }
    }
}

impl Traced {
    /// Whether no trace is left.
    pub(crate) fn is_over(&self) -> bool {
        self.traces.iter().all(|trace| trace.is_over())
    }

    /// Notes the length of the input before a packet is decoded.
    pub(crate) fn has_input(&mut self, undecoded: usize) {
        self.undecoded = undecoded;
    }

    /// Notes the length of the input behind a decoded packet, and returns the packet's size.
    pub(crate) fn decoded(&mut self, undecoded: usize) -> usize {
        std::mem::replace(&mut self.undecoded, undecoded).saturating_sub(undecoded)
    }

    /// Traces that the client has connected.
    pub(crate) fn connected(&self) {
        self.trace(self.packet(true, "CONNECT".to_owned(), None), None);
    }

    /// Traces a packet. `aliased`: the topic for which its Topic Alias stands.
    pub(crate) fn trace_packet(&self, is_received: bool, packet: &Packet, aliased: Option<TopicName>, bytes: usize) {
        let mut traced = self.packet(is_received, packet.packet_type().to_string(), Some(bytes));
        let mut topic = None;
        match packet {
            Packet::Publish(publish) => {
                topic = Some(&publish.topic).filter(|topic| !topic.is_empty()).or(aliased.as_ref());
                traced.topic = topic.map(|topic| beginning(topic.text()));
                traced.qos = Some(publish.qos);
                traced.packet_id = publish.packet_id.map(|id| id.get());
            }
            Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
                (traced.packet_id, traced.reason) = (Some(ack.packet_id.get()), Some(ack.reason.byte()));
            }
            Packet::Subscribe(subscribe) => {
                let filters = subscribe.subscriptions.iter().map(|asked| beginning(asked.filter.text()));
                traced.filters = filters.take(FILTERS_MAX).collect();
                traced.packet_id = Some(subscribe.packet_id.get());
            }
            Packet::Unsubscribe(unsubscribe) => {
                traced.filters =
                    unsubscribe.filters.iter().take(FILTERS_MAX).map(|filter| beginning(filter.text())).collect();
                traced.packet_id = Some(unsubscribe.packet_id.get());
            }
            Packet::SubAck(suback) => {
                traced.packet_id = Some(suback.packet_id.get());
                traced.reason = suback.reasons.iter().map(|reason| reason.byte()).max();
            }
            Packet::UnsubAck(unsuback) => {
                traced.packet_id = Some(unsuback.packet_id.get());
                traced.reason = unsuback.reasons.iter().map(|reason| reason.byte()).max();
            }
            Packet::ConnAck(connack) => traced.reason = Some(connack.reason.byte()),
            Packet::Disconnect(disconnect) => traced.reason = Some(disconnect.reason.byte()),
            Packet::Auth(auth) => traced.reason = Some(auth.reason.byte()),
            Packet::Connect(_) | Packet::PingReq(_) | Packet::PingResp => {}
        }
        self.trace(traced, topic);
    }

    fn packet(&self, is_received: bool, kind: String, bytes: Option<usize>) -> TracedPacket {
        TracedPacket {
            at: SystemTime::now(),
            is_received,
            client: self.client.clone(),
            kind,
            topic: None,
            filters: Vec::new(),
            qos: None,
            packet_id: None,
            reason: None,
            bytes,
        }
    }

    fn trace(&self, packet: TracedPacket, topic: Option<&TopicName>) {
        for trace in self.traces.iter().filter(|trace| trace.wants(topic)) {
            if let Err(mpsc::error::TrySendError::Full(_)) = trace.packets.try_send(packet.clone()) {
                trace.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// A copy of the beginning of a text, so that waiting packets keep neither long texts nor the packet itself in memory.
fn beginning(text: &Text) -> String {
    let text = text.as_str();
    match text.get(..text.floor_char_boundary(TEXT_MAX)) {
        Some(beginning) if beginning.len() < text.len() => format!("{beginning}…"),
        _ => text.to_owned(),
    }
}

/// Traces at a time.
const TRACES_MAX: usize = 8;
/// Packets that wait for the reader of a trace.
const PACKETS_MAX: usize = 1024;
/// Length of topics and filters that a trace shows, in bytes.
const TEXT_MAX: usize = 256;
/// Filters of one packet that a trace shows.
const FILTERS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use tenbin_codec::PingReq;

    use super::*;

    fn wanted(client: &'static str) -> Wanted {
        Wanted::Client(Text::from_static(client))
    }

    #[test]
    fn ninth_trace_is_refused_until_another_ends() {
        let traces = Traces::default();
        let mut begun: Vec<_> = (0..TRACES_MAX).map(|_| traces.begin(wanted("a")).unwrap()).collect();
        assert!(traces.begin(wanted("a")).is_none());
        begun.pop();
        assert!(traces.begin(wanted("b")).is_some());
        assert_eq!(traces.of(&Text::from_static("a")).unwrap().traces.len(), TRACES_MAX - 1);
        begun.clear();
        traces.end();
        assert!(traces.of(&Text::from_static("a")).is_none());
    }

    #[test]
    fn packets_beyond_the_queue_are_counted() {
        let traces = Traces::default();
        let (trace, mut packets) = traces.begin(wanted("a")).unwrap();
        let traced = traces.of(&Text::from_static("a")).unwrap();
        let ping = Packet::PingReq(PingReq::default());
        (0..PACKETS_MAX + 3).for_each(|_| traced.trace_packet(true, &ping, None, 2));
        assert_eq!((trace.take_dropped(), trace.take_dropped()), (3, 0));
        let first = packets.try_recv().unwrap();
        assert_eq!((&first.kind[..], first.bytes, first.is_received), ("PINGREQ", Some(2), true));
        assert!(traces.of(&Text::from_static("b")).is_none());
    }
}
