//! Client and gateway's peer behind a lossy link.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tenbin_codec::{Ack, ConnAck, Decoded, Decoder, Packet, PacketId, Publish, ReasonCode, SubAck, WriteBuffer};
use tenbin_sn::{Action, ClientEvent, ClientTopic, Gateway, GatewayPeer, Io, Output, PredefinedTopics, Settings};
use tenbin_sn_codec::v1_2::{Message, QoS, ReturnCode};

use crate::{RETRY, Rig};

/// Client, lossy link, gateway's peer, and a broker that sends every message back.
struct World {
    rig: Rig,
    gateway: Arc<Gateway>,
    peer: Option<GatewayPeer>,
    upstream: WriteBuffer,
    output: Output,
    decoder: Decoder,
    input: BytesMut,
    /// Messages to send back, and whether one is under way.
    echoes: VecDeque<Publish>,
    is_echo_under_way: bool,
    last_id: u16,
    link: Vec<(Instant, bool, Vec<u8>)>,
    seed: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let settings = Settings { retry: RETRY / 50, retries: 30, in_flight: NonZeroU16::MIN, ..Settings::default() };
        Self {
            rig: Rig::new(|options| (options.retry, options.retries) = (RETRY / 50, 30)),
            gateway: Arc::new(Gateway::new(settings, PredefinedTopics::default())),
            peer: None,
            upstream: WriteBuffer::new(),
            output: Output::default(),
            decoder: Decoder::server(1 << 20),
            input: BytesMut::new(),
            echoes: VecDeque::new(),
            is_echo_under_way: false,
            last_id: 0,
            link: Vec::new(),
            seed,
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % end
    }

    /// 10 % loss, and up to 20 ms of delay.
    fn send(&mut self, is_to_client: bool, datagram: Vec<u8>) {
        if self.below(10) > 0 {
            let arrival = self.rig.now + Duration::from_millis(self.below(21));
            self.link.push((arrival, is_to_client, datagram));
        }
    }

    fn datagram_arrives(&mut self, datagram: &[u8]) {
        let message = Message::decode(datagram).expect("a legal message");
        let mut io = Io { now: self.rig.now, upstream: &mut self.upstream, output: &mut self.output };
        let action = match (&mut self.peer, &message) {
            (Some(peer), _) => peer.handle_message(&message, datagram.len(), &mut io),
            (none, Message::Connect(connect)) => {
                let (peer, action) = GatewayPeer::accept(&self.gateway, connect, datagram.len(), None, &mut io);
                *none = Some(peer);
                action
            }
            _ => Action::Continue,
        };
        self.follow(action);
    }

    fn follow(&mut self, action: Action) {
        let mut io = Io { now: self.rig.now, upstream: &mut self.upstream, output: &mut self.output };
        match action {
            Action::Continue => {}
            Action::OpenUpstream => self.peer.as_mut().expect("a peer").upstream_opened(&mut io),
            other => panic!("{other:?}"),
        }
        let datagrams: Vec<_> = self.output.datagrams.iter().map(<[u8]>::to_vec).collect();
        self.output.datagrams.clear();
        datagrams.into_iter().for_each(|datagram| self.send(true, datagram));
        self.input.extend_from_slice(&self.upstream.to_bytes());
        self.upstream.clear();
        while let Decoded::Packet(packet) = self.decoder.decode(&mut self.input).expect("legal packets") {
            self.broker(packet);
        }
    }

    fn broker(&mut self, packet: Packet) {
        let ack = |id| Ack::new(id, ReasonCode::Success);
        let answer = match packet {
            Packet::Connect(_) => Some(Packet::ConnAck(Box::new(ConnAck::new(false, ReasonCode::Success)))),
            Packet::Subscribe(subscribe) => {
                let (packet_id, properties) = (subscribe.packet_id, Default::default());
                Some(Packet::SubAck(SubAck { packet_id, properties, reasons: vec![ReasonCode::GrantedQoS2] }))
            }
            Packet::Publish(publish) => {
                let id = publish.packet_id.expect("QoS 1 or 2");
                let is_qos_1 = publish.qos == tenbin_codec::QoS::AtLeastOnce;
                self.echoes.push_back(Publish { dup: false, ..publish });
                Some(if is_qos_1 { Packet::PubAck(ack(id)) } else { Packet::PubRec(ack(id)) })
            }
            Packet::PubRel(release) => Some(Packet::PubComp(ack(release.packet_id))),
            Packet::PubRec(received) => Some(Packet::PubRel(ack(received.packet_id))),
            Packet::PubAck(_) | Packet::PubComp(_) => {
                self.is_echo_under_way = false;
                None
            }
            other => panic!("unexpected {other:?}"),
        };
        if let Some(answer) = answer {
            self.packet_arrives(answer);
        }
        if !self.is_echo_under_way
            && let Some(mut echo) = self.echoes.pop_front()
        {
            self.is_echo_under_way = true;
            self.last_id += 1;
            echo.packet_id = PacketId::new(self.last_id);
            self.packet_arrives(Packet::Publish(echo));
        }
    }

    fn packet_arrives(&mut self, packet: Packet) {
        let mut io = Io { now: self.rig.now, upstream: &mut self.upstream, output: &mut self.output };
        let action = self.peer.as_mut().expect("a peer").handle_packet(packet, &mut io);
        self.follow(action);
    }

    /// Lets time pass to the next arrival or deadline.
    fn step(&mut self) {
        for datagram in self.rig.sent() {
            self.send(false, datagram);
        }
        let arrival = self.link.iter().map(|under_way| under_way.0).min();
        let deadlines = [self.rig.client.poll_timeout(), self.peer.as_ref().and_then(GatewayPeer::poll_timeout)];
        let next = arrival.into_iter().chain(deadlines.into_iter().flatten()).min().expect("something is due");
        self.rig.now = self.rig.now.max(next);
        let now = self.rig.now;
        if let Some(at) = self.link.iter().position(|under_way| under_way.0 <= now) {
            let (_, is_to_client, datagram) = self.link.remove(at);
            if is_to_client { self.rig.gateway(&datagram) } else { self.datagram_arrives(&datagram) }
        } else if deadlines[0].is_some_and(|deadline| deadline <= now) {
            self.rig.client.handle_timeout(now, &mut self.rig.out);
        } else if let Some(peer) = &mut self.peer {
            let mut io = Io { now, upstream: &mut self.upstream, output: &mut self.output };
            let action = peer.handle_timeout(&mut io);
            self.follow(action);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn echoed_messages_come_back_complete_and_in_order(seed in any::<u64>()) {
        const MESSAGES: usize = 60;
        let mut world = World::new(seed);
        let (now, qos) = (world.rig.now, [QoS::ExactlyOnce, QoS::AtLeastOnce]);
        let rig = &mut world.rig;
        rig.client.connect(now, &mut rig.out);
        rig.client.subscribe("#".into(), QoS::ExactlyOnce, now, &mut rig.out);
        for number in 0..MESSAGES {
            let topic = ClientTopic::from(["a/b", "c/d", "xy"][number % 3]);
            let payload = Bytes::from(vec![number as u8]);
            rig.client.publish(topic, qos[number % 2], false, payload, now, &mut rig.out);
        }
        let (mut received, mut events) = (Vec::new(), Vec::new());
        for _ in 0..20_000 {
            world.step();
            for event in world.rig.events() {
                match event {
                    ClientEvent::Message { payload, qos, .. } => {
                        let number = usize::from(payload[0]);
                        let is_copy = qos == QoS::AtLeastOnce && received.contains(&number);
                        if !is_copy {
                            received.push(number);
                        }
                    }
                    event => events.push(event),
                }
            }
            if received.len() == MESSAGES && events.len() == MESSAGES + 2 {
                break;
            }
        }
        prop_assert!(received.iter().copied().eq(0..MESSAGES), "{:?}", received);
        prop_assert_eq!(&events[0], &ClientEvent::Connected);
        let is_done = |event: &ClientEvent| matches!(event, ClientEvent::Done(_, ReturnCode::Accepted));
        prop_assert!(matches!(events[1], ClientEvent::Subscribed(_, QoS::ExactlyOnce)), "{:?}", events[1]);
        prop_assert!(events.len() == MESSAGES + 2 && events[2..].iter().all(is_done), "{:?}", events);
    }
}
