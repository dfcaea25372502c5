//! A peer between a client's messages and a broker's packets, both of the test.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tenbin_codec::{
    Ack, ConnAck, ConnAckProperties, Connect, Decoded, Decoder, Packet, PacketId, Publish, QoS, ReasonCode, SubAck,
    TopicName, WriteBuffer,
};
use tenbin_sn::{
    Action, Candidate, ClientState, DropCause, Gateway, GatewayPeer, Io, Output, PredefinedTopics, Settings, Verdict,
};
use tenbin_sn_codec::v1_2::{self, Disconnect, Message, MessageId, PingReq, Topic};

/// Retry time of the default settings.
pub(crate) const RETRY: Duration = Duration::from_secs(10);

/// A peer with its surroundings.
pub(crate) struct Rig {
    pub(crate) peer: GatewayPeer,
    pub(crate) now: Instant,
    pub(crate) action: Action,
    pub(crate) output: Output,
    upstream: WriteBuffer,
    input: BytesMut,
    decoder: Decoder,
    datagrams: VecDeque<Vec<u8>>,
}

/// A gateway with two predefined topics, which trusts addresses.
pub(crate) fn gateway(change: impl FnOnce(&mut Settings)) -> Arc<Gateway> {
    let mut settings = Settings { trusts_addresses: true, ..Settings::default() };
    change(&mut settings);
    let topics = PredefinedTopics::new([(1, "pre/defined"), (2, "of/%c")]).expect("legal");
    Arc::new(Gateway::new(settings, topics))
}

pub(crate) fn connect(client_id: &str) -> v1_2::Connect<'_> {
    v1_2::Connect { will: false, clean_session: false, duration: 60, client_id }
}

impl Rig {
    /// A peer right after this CONNECT.
    #[allow(clippy::disallowed_methods, reason = "any start of the virtual time will do")]
    pub(crate) fn accept(gateway: &Arc<Gateway>, connect: v1_2::Connect<'_>, state: Option<ClientState>) -> Self {
        let now = Instant::now();
        let (mut upstream, mut output, mut datagram) = (WriteBuffer::new(), Output::default(), Vec::new());
        Message::Connect(connect).encode(&mut datagram);
        let mut io = Io { now, upstream: &mut upstream, output: &mut output };
        let (peer, action) = GatewayPeer::accept(gateway, &connect, datagram.len(), state, &mut io);
        let mut rig = Self {
            peer,
            now,
            action,
            output,
            upstream,
            input: BytesMut::new(),
            decoder: Decoder::server(1 << 20),
            datagrams: VecDeque::new(),
        };
        rig.collect();
        rig
    }

    /// A peer of a candidate that has proven its address.
    #[allow(clippy::disallowed_methods, reason = "any start of the virtual time will do")]
    pub(crate) fn accept_proven(gateway: &Arc<Gateway>, candidate: Candidate) -> Self {
        let now = Instant::now();
        let (mut upstream, mut output) = (WriteBuffer::new(), Output::default());
        let mut io = Io { now, upstream: &mut upstream, output: &mut output };
        let (peer, action) = GatewayPeer::accept_proven(gateway, candidate, None, &mut io).expect("a CONNECT");
        let (input, decoder, datagrams) = (BytesMut::new(), Decoder::server(1 << 20), VecDeque::new());
        let mut rig = Self { peer, now, action, output, upstream, input, decoder, datagrams };
        rig.collect();
        rig
    }

    /// Follows [`End::SessionExists`](tenbin_sn::End::SessionExists).
    pub(crate) fn make_candidate(&mut self) -> Candidate {
        self.call(|peer, io| peer.to_candidate(|_| false, io))
    }

    /// A datagram of the candidate.
    pub(crate) fn candidate_gets(&mut self, candidate: &mut Candidate, datagram: &[u8]) -> Verdict {
        let message = Message::decode(datagram).expect("a legal message");
        self.call(|_, io| candidate.handle_message(&message, datagram.len(), io))
    }

    pub(crate) fn candidate_waits(&mut self, candidate: &mut Candidate, until: Instant) -> Verdict {
        self.now = self.now.max(until);
        self.call(|_, io| candidate.handle_timeout(io))
    }

    /// An active client that a second message has confirmed.
    pub(crate) fn active(change: impl FnOnce(&mut Settings)) -> Self {
        Self::active_with(&gateway(change), connect("c"), None)
    }

    pub(crate) fn active_with(gateway: &Arc<Gateway>, connect: v1_2::Connect<'_>, state: Option<ClientState>) -> Self {
        let mut rig = Self::accept(gateway, connect, state);
        rig.open();
        rig.broker(connack(ReasonCode::Success));
        assert_eq!(rig.sent(), [b"\x03\x05\x00"]);
        rig.client(Message::PingReq(PingReq { client_id: None }));
        assert_eq!(rig.sent(), [b"\x02\x17"]);
        rig
    }

    fn call<T>(&mut self, f: impl FnOnce(&mut GatewayPeer, &mut Io<'_>) -> T) -> T {
        let mut io = Io { now: self.now, upstream: &mut self.upstream, output: &mut self.output };
        let result = f(&mut self.peer, &mut io);
        self.collect();
        result
    }

    fn collect(&mut self) {
        self.datagrams.extend(self.output.datagrams.iter().map(<[u8]>::to_vec));
        self.output.datagrams.clear();
        self.input.extend_from_slice(&self.upstream.to_bytes());
        self.upstream.clear();
    }

    /// A message of the client.
    pub(crate) fn client(&mut self, message: Message<'_>) {
        let mut datagram = Vec::new();
        message.encode(&mut datagram);
        self.datagram(&datagram);
    }

    pub(crate) fn datagram(&mut self, datagram: &[u8]) {
        let message = Message::decode(datagram).expect("a legal message");
        self.action = self.call(|peer, io| peer.handle_message(&message, datagram.len(), io));
    }

    /// A packet of the broker.
    pub(crate) fn broker(&mut self, packet: Packet) {
        self.action = self.call(|peer, io| peer.handle_packet(packet, io));
    }

    /// Follows [`Action::OpenUpstream`] and returns the CONNECT.
    pub(crate) fn open(&mut self) -> Connect {
        assert!(matches!(self.action, Action::OpenUpstream | Action::ReopenUpstream), "{:?}", self.action);
        self.decoder = Decoder::server(1 << 20);
        self.call(GatewayPeer::upstream_opened);
        match &self.packets()[..] {
            [Packet::Connect(connect)] => (**connect).clone(),
            other => panic!("no CONNECT: {other:?}"),
        }
    }

    pub(crate) fn close_upstream(&mut self) {
        self.action = self.call(GatewayPeer::upstream_closed);
    }

    pub(crate) fn evict(&mut self) {
        self.action = self.call(GatewayPeer::evict);
    }

    pub(crate) fn probe(&mut self) {
        self.call(GatewayPeer::probe);
    }

    /// Handles the passage of time without a deadline.
    pub(crate) fn tick(&mut self) {
        self.action = self.call(GatewayPeer::handle_timeout);
    }

    /// Lets time pass, with all deadlines on the way, until the peer asks for an action.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(deadline) = self.peer.poll_timeout().filter(|&deadline| deadline <= end) {
            self.now = self.now.max(deadline);
            self.action = self.call(GatewayPeer::handle_timeout);
            if self.action != Action::Continue {
                return;
            }
            assert_ne!(self.peer.poll_timeout(), Some(deadline), "a deadline that stays");
        }
        self.now = end;
    }

    /// Datagrams to the client since the last call.
    pub(crate) fn sent(&mut self) -> Vec<Vec<u8>> {
        self.datagrams.drain(..).collect()
    }

    /// Packets to the broker since the last call.
    pub(crate) fn packets(&mut self) -> Vec<Packet> {
        let mut packets = Vec::new();
        while let Decoded::Packet(packet) = self.decoder.decode(&mut self.input).expect("legal packets") {
            packets.push(packet);
        }
        assert!(self.input.is_empty(), "whole packets only");
        packets
    }

    pub(crate) fn drops(&self, cause: DropCause) -> u64 {
        self.output.drops.get(cause)
    }

    /// Registers a topic for the client and returns its id.
    pub(crate) fn register(&mut self, topic: &str) -> u16 {
        self.client(Message::Register(v1_2::Register { topic_id: 0, message_id: MessageId::new(99), topic }));
        match Message::decode(&self.sent()[0]) {
            Ok(Message::RegAck(regack)) if regack.code == v1_2::ReturnCode::Accepted => regack.topic_id,
            other => panic!("no REGACK: {other:?}"),
        }
    }

    /// Puts the client to sleep for this many seconds.
    pub(crate) fn sleep(&mut self, seconds: u16) {
        self.client(Message::Disconnect(Disconnect { duration: Some(seconds) }));
        assert_eq!(self.sent(), [b"\x02\x18"]);
    }

    /// PINGREQ of a sleeping client.
    pub(crate) fn wake(&mut self) {
        self.client(Message::PingReq(PingReq { client_id: Some("c") }));
    }
}

pub(crate) fn connack(reason: ReasonCode) -> Packet {
    Packet::ConnAck(Box::new(ConnAck::new(false, reason)))
}

pub(crate) fn connack_with(session_present: bool, change: impl FnOnce(&mut ConnAckProperties)) -> Packet {
    let mut connack = ConnAck::new(session_present, ReasonCode::Success);
    change(&mut connack.properties);
    Packet::ConnAck(Box::new(connack))
}

pub(crate) fn id(id: u16) -> MessageId {
    MessageId::new(id).expect("not 0")
}

pub(crate) fn packet_id(id: u16) -> PacketId {
    NonZeroU16::new(id).expect("not 0").into()
}

pub(crate) fn ack(id: u16, reason: ReasonCode) -> Ack {
    Ack::new(packet_id(id), reason)
}

pub(crate) fn ok(id: u16) -> Ack {
    ack(id, ReasonCode::Success)
}

/// A PUBLISH of the broker; `id` 0 is QoS 0.
pub(crate) fn from_broker(topic: &str, qos: QoS, id: u16, payload: &'static [u8]) -> Packet {
    let topic = TopicName::try_from(topic).expect("a name");
    let mut publish = Publish::new(topic, Bytes::from_static(payload));
    publish.qos = qos;
    publish.packet_id = PacketId::new(id);
    Packet::Publish(publish)
}

pub(crate) fn suback(id: u16, reason: ReasonCode) -> Packet {
    Packet::SubAck(SubAck { packet_id: packet_id(id), properties: Default::default(), reasons: vec![reason] })
}

/// A PUBLISH of the client.
pub(crate) fn to_broker(topic: Topic, qos: v1_2::QoS, id: u16, data: &'static [u8]) -> v1_2::Publish<'static> {
    v1_2::Publish { dup: false, qos: Some(qos), retain: false, topic, message_id: MessageId::new(id), data }
}
