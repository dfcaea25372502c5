//! Hooks of one connection: the client that they see, and the events that they have yet to get.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf as _, BytesMut};
use rustc_hash::FxHashMap;
use tenbin_codec::{
    Decoded, Decoder, ExternalScanner, Packet, PacketId, PacketType, ProtocolVersion, QoS, ReasonCode, Scanned,
    TopicFilter, TopicName, WriteBuffer,
};
use tenbin_session::{Connection, Delivery, Sent, Session};

use super::output::Output;
use super::spans::{DeliverSpan, Spans};
use crate::hooks::{
    Client, DropReason, Dropped, Ending, Events, Granted, HookSet, Hooks, InFlight, Outgoing, Publication,
    QosDropReason, Subscribing, Verdict,
};
use crate::registry::Lease;
use crate::router::Published;
use crate::trace::Traced;
use crate::values::Peer;

/// Hooks of a connection, and traces of its packets. A connection has none if no hook of the broker wants an event and
/// no operator traces it.
///
/// Methods that messages call are cold: without hooks, a message costs a look at a pointer.
#[derive(Debug)]
pub(super) struct Hooked {
    set: Arc<HookSet>,
    /// Events that the hooks want, beside the other fields.
    events: Events,
    client: Client,
    /// The client continues an earlier session.
    session_present: bool,
    /// A hook has panicked during the handshake.
    has_panicked: bool,
    /// The client had no send quota at the last look.
    has_no_quota: bool,
    /// Position in the output up to which packets were shown.
    shown: u64,
    /// Packets that the socket has not taken, with their type, size and end in the output.
    unsent: VecDeque<(PacketType, usize, u64)>,
    /// Messages of this batch.
    published: Vec<(Publication, Published)>,
    /// Messages of QoS 1 and 2 on the way to the client, if their acknowledgement is to be told.
    in_flight: FxHashMap<PacketId, Named>,
    /// Traces of operators; `None` = there are none.
    traced: Option<Box<Traced>>,
    pub(super) spans: Spans,
}

/// Topic and QoS of a message that is being sent.
#[derive(Debug)]
pub(super) struct Named {
    topic: Box<[u8]>,
    qos: QoS,
    span: Option<DeliverSpan>,
}

impl Named {
    fn in_flight(&self, packet_id: PacketId) -> InFlight<'_> {
        InFlight::new(packet_id, &self.topic, self.qos)
    }
}

impl Hooked {
    /// Hooks of a new connection; `None` if they want no event, and there are no spans.
    pub(super) fn of(set: &Arc<HookSet>, session_present: bool, client: impl FnOnce() -> Client) -> Option<Box<Self>> {
        (!set.is_idle()).then(|| Box::new(Self::new(set, session_present, client())))
    }

    /// Hooks that want no event, for traces alone.
    pub(super) fn for_traces(set: &Arc<HookSet>, client: Client) -> Box<Self> {
        Box::new(Self::new(set, false, client))
    }

    fn new(set: &Arc<HookSet>, session_present: bool, client: Client) -> Self {
        Self {
            set: Arc::clone(set),
            events: set.events(),
            client,
            session_present,
            has_panicked: false,
            has_no_quota: false,
            shown: 0,
            unsent: VecDeque::new(),
            published: Vec::new(),
            in_flight: FxHashMap::default(),
            traced: None,
            spans: Spans::of(set),
        }
    }

    /// Traces packets from here on, behind the `shown` first bytes of the output.
    pub(super) fn trace(&mut self, traced: Option<Box<Traced>>, shown: u64) {
        self.traced = traced;
        self.shown = shown;
    }

    /// Whether neither a hook nor a trace wants anything.
    pub(super) fn is_needless(&self) -> bool {
        self.set.is_idle() && self.traced.as_ref().is_none_or(|traced| traced.is_over())
    }

    /// Notes the length of the input, for sizes of packets in traces.
    pub(super) fn has_input(&mut self, undecoded: usize) {
        if let Some(traced) = &mut self.traced {
            traced.has_input(undecoded);
        }
    }

    /// Traces a packet from the client, behind which `undecoded` bytes of input are left.
    pub(super) fn trace_received(&mut self, packet: &Packet, connection: &Connection, undecoded: usize) {
        let Some(traced) = &mut self.traced else { return };
        let bytes = traced.decoded(undecoded);
        let aliased = alias_of(packet).and_then(|alias| connection.received_alias(alias)).cloned();
        traced.trace_packet(true, packet, aliased, bytes);
    }

    /// Traces the packets that have joined the output since it was last shown.
    pub(super) fn trace_output(&self, out: &Output, connection: &Connection) {
        let Some(traced) = self.traced.as_ref().filter(|_| out.end() > self.shown) else { return };
        let at = usize::try_from(self.shown.saturating_sub(out.written())).unwrap_or(0);
        let mut input = BytesMut::from(&out.to_bytes()[at..]);
        let mut decoder = Decoder::client(self.client.version, u32::MAX);
        let mut before = input.len();
        loop {
            // A message by reference, from before the trace.
            while let [0, ..] = input[..]
                && let Ok(Scanned::External(used, _)) = ExternalScanner::default().scan(&input)
            {
                input.advance(used);
                before = input.len();
            }
            let Ok(Decoded::Packet(packet)) = decoder.decode(&mut input) else { return };
            let bytes = std::mem::replace(&mut before, input.len()) - input.len();
            let topic = alias_of(&packet).and_then(|alias| connection.sent_alias(alias));
            let topic = topic.and_then(|topic| TopicName::try_from(std::str::from_utf8(topic).ok()?).ok());
            traced.trace_packet(false, &packet, topic, bytes);
        }
    }

    #[inline]
    pub(super) fn wants(&self, events: Events) -> bool {
        self.events.has(events)
    }

    /// Calls the hooks if one wants `event`.
    #[inline]
    fn tell(&self, event: Events, call: impl FnMut(&dyn Hooks)) {
        if self.wants(event) {
            self.set.tell(event, call);
        }
    }

    /// Asks the hooks if one wants `event`.
    #[inline]
    fn ask(&self, event: Events, call: impl FnMut(&dyn Hooks) -> Verdict) -> Verdict {
        if self.wants(event) { self.set.ask(event, call) } else { Verdict::Go }
    }

    /// Whether messages from the client are to be looked at one by one.
    pub(super) fn looks_at_each(&self) -> bool {
        self.looks_at_packets() || self.wants(Events::PUBLISH | Events::PUBLISHED) || self.spans.begin_traces()
    }

    /// Whether packets from the client are to be looked at one by one.
    #[inline]
    pub(super) fn looks_at_packets(&self) -> bool {
        self.traced.is_some() || self.wants(Events::PACKET_READ | Events::PACKET_PROCESSED)
    }

    /// Shows the CONNACK, before anything of the connection is written.
    pub(super) fn session_establish(&mut self, granted: &mut Granted) {
        HookSet::forget_panic();
        self.tell(Events::SESSION_ESTABLISH, |hooks| hooks.session_establish(&self.client, granted));
        self.has_panicked = HookSet::take_panic();
    }

    /// Tells that the connection begins, behind the `written` first bytes of its output. Returns whether it may go on.
    pub(super) fn session_established(&mut self, written: u64) -> bool {
        self.shown = written;
        if let Some(traced) = &self.traced {
            traced.connected();
        }
        let present = self.session_present;
        self.tell(Events::SESSION_ESTABLISHED, |hooks| hooks.session_established(&self.client, present));
        !self.has_panicked
    }

    pub(super) fn disconnected(&self, ending: &Ending) {
        self.tell(Events::DISCONNECTED, |hooks| hooks.disconnected(&self.client, ending));
    }

    pub(super) fn packet_read(&self, packet: &Packet) -> Verdict {
        self.ask(Events::PACKET_READ, |hooks| hooks.packet_read(&self.client, packet))
    }

    pub(super) fn packet_processed(&self, kind: PacketType, result: Result<(), ReasonCode>) {
        self.tell(Events::PACKET_PROCESSED, |hooks| hooks.packet_processed(&self.client, kind, result));
    }

    pub(super) fn subscribe(&self, subscription: &mut Subscribing) -> Result<(), ReasonCode> {
        let verdict = self.ask(Events::SUBSCRIBE, |hooks| hooks.subscribe(&self.client, subscription));
        refusal(verdict, PacketType::SubAck).map_or(Ok(()), Err)
    }

    pub(super) fn subscribed(&self, subscription: &Subscribing, reason: ReasonCode) {
        self.tell(Events::SUBSCRIBED, |hooks| hooks.subscribed(&self.client, subscription, reason));
    }

    pub(super) fn unsubscribe(&self, filter: &TopicFilter) -> Option<ReasonCode> {
        let verdict = self.ask(Events::UNSUBSCRIBE, |hooks| hooks.unsubscribe(&self.client, filter));
        refusal(verdict, PacketType::UnsubAck)
    }

    pub(super) fn unsubscribed(&self, filter: &TopicFilter, reason: ReasonCode) {
        self.tell(Events::UNSUBSCRIBED, |hooks| hooks.unsubscribed(&self.client, filter, reason));
    }

    /// Asks whether to forward a message, and applies changes that pass `check`. Else the Reason Code of its
    /// acknowledgement.
    #[cold]
    #[inline(never)]
    pub(super) fn publish(
        &self,
        publication: &mut tenbin_session::Publication,
        now: Instant,
        check: impl FnOnce(&tenbin_session::Publication) -> Result<(), ReasonCode>,
    ) -> Option<ReasonCode> {
        let before = Publication::of(publication);
        let mut message = before.clone();
        match self.ask(Events::PUBLISH, |hooks| hooks.publish(&self.client, &mut message)) {
            Verdict::Drop => return Some(ReasonCode::Success),
            verdict => {
                if let Some(reason) = refusal(verdict, PacketType::PubAck) {
                    return Some(reason);
                }
            }
        }
        if message == before {
            return None;
        }
        message.apply_to(publication, now);
        let reason = check(publication).err()?;
        let Client { peer, id, .. } = &self.client;
        tracing::warn!(%peer, client = ?id, topic = ?publication.topic, %reason, "message refused: a hook has made it illegal");
        refusal(Verdict::Refuse(reason), PacketType::PubAck)
    }

    /// Notes a message for [`flushed`](Self::flushed).
    #[cold]
    #[inline(never)]
    pub(super) fn note_published(&mut self, publication: &tenbin_session::Publication, published: Published) {
        if self.wants(Events::PUBLISHED) {
            self.published.push((Publication::of(publication), published));
        }
    }

    /// Tells of the batch's messages, which are in their receivers' queues; `refused`: by [`Published::message`], in order,
    /// once for each receiver without room.
    #[cold]
    #[inline(never)]
    pub(super) fn flushed(&mut self, refused: &[u32]) {
        for (message, published) in std::mem::take(&mut self.published) {
            let receivers = published.reached(refused);
            self.tell(Events::PUBLISHED, |hooks| hooks.published(&self.client, &message, receivers));
        }
        self.spans.flushed(refused);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn retained_sent(&self, topic: &[u8]) {
        let topic = std::str::from_utf8(topic).unwrap_or_default();
        self.tell(Events::RETAINED_SENT, |hooks| hooks.retained_sent(&self.client, topic));
    }

    /// Topic and QoS of a message, if its end is to be told.
    #[cold]
    #[inline(never)]
    pub(super) fn name(&self, delivery: &Delivery) -> Option<Named> {
        let span = self.spans.deliver(delivery, &self.client.id);
        let is_wanted = span.is_some() || self.wants(Events::QOS_SENT | Events::QOS_COMPLETE | Events::DROPPED);
        is_wanted.then(|| Named { topic: delivery.template.topic().into(), qos: delivery.qos, span })
    }

    /// Tells hooks the fate of a message.
    #[cold]
    #[inline(never)]
    pub(super) fn sent(&mut self, mut named: Named, sent: &Sent) {
        if let Some(span) = named.span.take() {
            named.span = span_after(span, sent);
        }
        match sent {
            Sent::Written(Some(id)) => {
                let message = named.in_flight(*id);
                self.tell(Events::QOS_SENT, |hooks| hooks.qos_sent(&self.client, &message));
                if named.span.is_some() || self.wants(Events::QOS_COMPLETE) {
                    self.in_flight.insert(*id, named);
                }
            }
            Sent::Expired(_) => self.dropped(&named.topic, DropReason::Expired),
            Sent::TooLarge => self.dropped(&named.topic, DropReason::TooLarge),
            Sent::Written(None) | Sent::Blocked(_) => {}
        }
    }

    fn dropped(&self, topic: &[u8], reason: DropReason) {
        let dropped = Dropped::new(&self.client.id, topic, reason);
        self.tell(Events::DROPPED, |hooks| hooks.dropped(&dropped));
    }

    /// Tells of the end of a sent message.
    #[cold]
    #[inline(never)]
    pub(super) fn delivered(&mut self, packet_id: PacketId, reason: ReasonCode) {
        let mut named = self.in_flight.remove(&packet_id);
        if let Some(span) = named.as_mut().and_then(|named| named.span.take()) {
            span.end(reason.is_error().then(|| reason.to_string()));
        }
        if reason.is_error() {
            return self.qos_dropped(packet_id, QosDropReason::Refused);
        }
        let unknown = Named { topic: Box::default(), qos: QoS::AtLeastOnce, span: None };
        let message = named.as_ref().unwrap_or(&unknown).in_flight(packet_id);
        self.tell(Events::QOS_COMPLETE, |hooks| hooks.qos_complete(&self.client, &message));
    }

    #[cold]
    #[inline(never)]
    pub(super) fn qos_dropped(&self, packet_id: PacketId, reason: QosDropReason) {
        self.tell(Events::QOS_DROPPED, |hooks| hooks.qos_dropped(&self.client, packet_id.get(), reason));
    }

    /// Tells of messages in flight that end with the connection; `is_over`: the session does too.
    pub(super) fn connection_ends(&self, session: &Session, is_over: bool) {
        if self.wants(Events::QOS_DROPPED) {
            let ends = session.packet_ids().filter(|(_, is_given_away)| is_over || *is_given_away);
            ends.for_each(|(packet_id, _)| self.qos_dropped(packet_id, QosDropReason::Ended));
        }
    }

    /// Looks at the client's send quota after messages were sent.
    #[cold]
    #[inline(never)]
    pub(super) fn has_quota(&mut self, quota: u16) {
        let had_no_quota = std::mem::replace(&mut self.has_no_quota, quota == 0);
        if quota == 0 && !had_no_quota {
            self.tell(Events::SEND_QUOTA_EXHAUSTED, |hooks| hooks.send_quota_exhausted(&self.client));
        }
    }

    /// Shows the packets that have joined the output since the last call, and encodes changed ones again.
    ///
    /// Call it before the output is written, and before positions in it are noted.
    pub(super) fn show(&mut self, out: &mut Output, connection: &Connection) {
        let packet_bytes_maximum = connection.limits().peer_maximum_packet_size;
        if self.traced.is_some() {
            self.trace_output(out, connection);
            self.traced.take_if(|traced| traced.is_over());
        }
        if !self.wants(Events::PACKET_ENCODE | Events::PACKET_SENT) {
            self.shown = out.end();
            return;
        }
        if out.end() <= self.shown {
            return;
        }
        let all = out.to_bytes();
        let mut at = usize::try_from(self.shown.saturating_sub(out.written())).unwrap_or(0);
        let mut input = BytesMut::from(&all[at..]);
        let mut decoder = Decoder::client(self.client.version, u32::MAX);
        let mut shown = WriteBuffer::new();
        shown.append_packets(&all[..at]);
        while let Ok(Decoded::Packet(packet)) = decoder.decode(&mut input) {
            let end = all.len() - input.len();
            let (kind, mut outgoing) = (packet.packet_type(), Outgoing::new(packet));
            self.tell(Events::PACKET_ENCODE, |hooks| hooks.packet_encode(&self.client, &mut outgoing));
            let before = shown.len();
            match outgoing.changed(self.client.version, packet_bytes_maximum) {
                Some(changed) => shown.append(changed),
                None => shown.append_packets(&all[at..end]),
            }
            at = end;
            if self.wants(Events::PACKET_SENT) {
                self.unsent.push_back((kind, shown.len() - before, out.written() + shown.len() as u64));
            }
        }
        shown.append_packets(&all[at..]); // nothing: the output is our own
        out.clear();
        out.append(shown);
        self.shown = out.end();
    }

    /// Tells which packets the socket has taken, now that it has `written` bytes.
    #[cold]
    #[inline(never)]
    pub(super) fn written(&mut self, written: u64) {
        while let Some((kind, bytes, _)) = self.unsent.pop_front_if(|(.., end)| *end <= written) {
            self.tell(Events::PACKET_SENT, |hooks| hooks.packet_sent(&self.client, kind, bytes));
        }
    }
}

/// The client of a session, as hooks see it.
pub(super) fn client_of(lease: &Lease, peer: Peer, version: ProtocolVersion) -> Client {
    let principal = lease.client.rights.principal();
    Client {
        id: principal.client_id.clone(),
        user: principal.identity.user.clone(),
        peer,
        listener: Arc::clone(&principal.listener),
        version,
    }
}

/// The Topic Alias that stands for the topic of a PUBLISH.
fn alias_of(packet: &Packet) -> Option<NonZeroU16> {
    let Packet::Publish(publish) = packet else { return None };
    publish.topic_alias.filter(|_| publish.topic.is_empty())
}

/// The span of a message with this fate, unless it has ended.
fn span_after(mut span: DeliverSpan, sent: &Sent) -> Option<DeliverSpan> {
    match sent {
        Sent::Written(Some(_)) => {
            span.sent();
            return Some(span);
        }
        Sent::Written(None) => span.end(None),
        Sent::Expired(_) => span.end(Some("the message has expired".to_owned())),
        Sent::TooLarge => span.end(Some("the message is too large for its receiver".to_owned())),
        Sent::Blocked(_) => span.forget(),
    }
    None
}

/// Reason Code of a refusal, as far as this packet can carry it.
fn refusal(verdict: Verdict, packet: PacketType) -> Option<ReasonCode> {
    match verdict {
        Verdict::Go => None,
        Verdict::Refuse(reason) if reason.is_error() && reason.is_valid_in(packet) => Some(reason),
        Verdict::Refuse(_) => Some(ReasonCode::ImplementationSpecificError),
        Verdict::Drop => Some(ReasonCode::UnspecifiedError),
    }
}
