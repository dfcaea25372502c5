//! One sleeping client with its peer at the gateway and its session at the broker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tenbin_codec::{Decoded, Decoder, Packet, PacketId, Publish, QoS, ReasonCode, TopicName, WriteBuffer};
use tenbin_sn::{Action, Alarm, End, Gateway, GatewayPeer, Io, Output};
use tenbin_sn_codec::v1_2::{self, Connect, Disconnect, Message, PingReq, PubAck, RegAck, ReturnCode, WillTopic};

/// Bounds of the default settings on the messages of a sleeping client, and on the bytes of their payloads.
const BUFFER: (usize, usize) = (64, 16 * 1024);

pub(crate) struct Sleeper {
    pub(crate) name: String,
    /// Duration of its sleeps.
    pub(crate) duration: u16,
    pub(crate) clean_session: bool,
    pub(crate) peer: GatewayPeer,
    pub(crate) alarm: Alarm,
    /// Its last datagram.
    pub(crate) spoke_at: Instant,
    /// Datagrams that it hears before it fails, the last one without an answer; `None` = all.
    pub(crate) attention: Option<usize>,
    pub(crate) end: Option<(End, Instant)>,
    pub(crate) figures: Figures,
    upstream: WriteBuffer,
    input: BytesMut,
    decoder: Decoder,
    /// Datagrams on their way to the client.
    to_client: VecDeque<Vec<u8>>,
    /// Packets on their way to the gateway.
    to_gateway: VecDeque<Packet>,
    /// Whether its receiver is on.
    is_listening: bool,
    broker: Session,
    /// Last number received at QoS 0 and at QoS 1.
    last: [Option<u32>; 2],
    topics: Vec<String>,
}

/// The client's session at the broker.
#[derive(Default)]
struct Session {
    has_will: bool,
    /// Messages at QoS 1 that wait; the first is under way if there is an id.
    queue: VecDeque<(String, Bytes)>,
    under_way: Option<PacketId>,
    last_id: u16,
    next_number: u32,
    disconnect: Option<ReasonCode>,
}

/// Counts of one client, and of all together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) wakes: u64,
    pub(crate) pingresps: u64,
    /// Messages of the broker at QoS 0 and at QoS 1.
    pub(crate) sent: [u64; 2],
    /// New messages at QoS 0 and at QoS 1.
    pub(crate) received: [u64; 2],
    /// Copies at QoS 1.
    pub(crate) copies: u64,
    /// Messages at QoS 0 that were sent while the receiver was off.
    pub(crate) unheard: u64,
    /// Messages at QoS 0 in the gateway's buffer at the end.
    pub(crate) waiting: u64,
    pub(crate) most_messages: usize,
    pub(crate) most_bytes: usize,
}

impl Sleeper {
    /// A client that connects with a Will and falls asleep.
    pub(crate) fn new(
        gateway: &Arc<Gateway>,
        number: usize,
        duration: u16,
        clean_session: bool,
        now: Instant,
        output: &mut Output,
    ) -> Self {
        let name = format!("sleeper-{number}");
        let connect = Connect { will: true, clean_session, duration: 60, client_id: &name };
        let mut upstream = WriteBuffer::new();
        let mut io = Io { now, upstream: &mut upstream, output };
        let (peer, action) = GatewayPeer::accept(gateway, &connect, 20, None, &mut io);
        assert_eq!(action, Action::Continue, "the Will comes first");
        output.datagrams.clear();
        let mut sleeper = Self {
            name,
            duration,
            clean_session,
            peer,
            alarm: Alarm::default(),
            spoke_at: now,
            attention: None,
            end: None,
            figures: Figures::default(),
            upstream,
            input: BytesMut::new(),
            decoder: Decoder::server(1 << 20),
            to_client: VecDeque::new(),
            to_gateway: VecDeque::new(),
            is_listening: true,
            broker: Session::default(),
            last: [None; 2],
            topics: Vec::new(),
        };
        let topic = format!("gone/{}", sleeper.name);
        sleeper.say(
            &Message::WillTopic(Some(WillTopic { qos: v1_2::QoS::AtLeastOnce, retain: false, topic: &topic })),
            now,
            output,
        );
        sleeper.say(&Message::WillMsg(b"lost"), now, output);
        assert!(sleeper.peer.is_connected() && sleeper.broker.has_will);
        sleeper.say(&Message::Disconnect(Disconnect { duration: Some(duration) }), now, output);
        sleeper.is_listening = false;
        assert!(sleeper.peer.is_asleep());
        sleeper
    }

    /// Time of its loss, if it says nothing further.
    pub(crate) fn lost_at(&self) -> Instant {
        let stated = Duration::from_secs(self.duration.into());
        self.spoke_at + stated + if self.duration <= 60 { stated / 2 } else { stated / 10 }
    }

    /// Wakes: the client asks for its messages.
    pub(crate) fn wake(&mut self, attention: Option<usize>, now: Instant, output: &mut Output) {
        self.figures.wakes += 1;
        (self.is_listening, self.attention) = (true, attention);
        let client_id = self.name.clone();
        self.say(&Message::PingReq(PingReq { client_id: Some(&client_id) }), now, output);
        assert!(attention.is_some() || !self.is_listening, "PINGRESP ends the wake of {}", self.name);
    }

    /// The broker has a message for the client.
    pub(crate) fn publish(&mut self, topic: &str, qos: QoS, size: usize, now: Instant, output: &mut Output) {
        if self.end.is_some() {
            return;
        }
        let number = self.broker.next_number;
        self.broker.next_number += 1;
        self.figures.sent[qos as usize] += 1;
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(size.max(4), b'x');
        if qos == QoS::AtLeastOnce {
            self.broker.queue.push_back((topic.to_owned(), payload.into()));
            self.send_next();
        } else {
            let topic = TopicName::try_from(topic).expect("a name");
            self.to_gateway.push_back(Packet::Publish(Publish::new(topic, payload.into())));
        }
        self.run(now, output);
    }

    /// A datagram of the client, and all that follows from it.
    pub(crate) fn say(&mut self, message: &Message<'_>, now: Instant, output: &mut Output) {
        self.send(message, now, output);
        self.run(now, output);
    }

    pub(crate) fn tick(&mut self, now: Instant, output: &mut Output) {
        let mut io = Io { now, upstream: &mut self.upstream, output };
        let action = self.peer.handle_timeout(&mut io);
        self.collect(action, now, output);
        self.run(now, output);
    }

    /// Whether the broker has published the Will. Panics if that would break MQTT's rules or the gateway's own.
    pub(crate) fn will_is_published(&self) -> bool {
        let Some((end, _)) = self.end else { return false };
        match (end, self.broker.disconnect) {
            (End::Disconnected, Some(ReasonCode::Success)) => false,
            // The stream closes without DISCONNECT, and the session stays.
            (End::Overslept, None) => !self.clean_session && self.broker.has_will,
            // The session ends with the client, and the Will is asked for.
            (End::Overslept, Some(ReasonCode::DisconnectWithWill)) => self.clean_session && self.broker.has_will,
            other => panic!("{}: {other:?}", self.name),
        }
    }

    /// Sends the next message at QoS 1: Receive Maximum is 1.
    fn send_next(&mut self) {
        let session = &mut self.broker;
        let Some((topic, payload)) = session.queue.front().filter(|_| session.under_way.is_none()) else { return };
        session.last_id = session.last_id % u16::MAX + 1;
        session.under_way = PacketId::new(session.last_id);
        let topic = TopicName::try_from(topic.as_str()).expect("a name");
        let mut publish = Publish::new(topic, payload.clone());
        (publish.qos, publish.packet_id) = (QoS::AtLeastOnce, session.under_way);
        self.to_gateway.push_back(Packet::Publish(publish));
    }

    fn send(&mut self, message: &Message<'_>, now: Instant, output: &mut Output) {
        self.spoke_at = now;
        let mut datagram = Vec::new();
        message.encode(&mut datagram);
        let message = Message::decode(&datagram).expect("legal");
        let mut io = Io { now, upstream: &mut self.upstream, output };
        let action = self.peer.handle_message(&message, datagram.len(), &mut io);
        self.collect(action, now, output);
    }

    /// Takes the output of a call.
    fn collect(&mut self, action: Action, now: Instant, output: &mut Output) {
        self.to_client.extend(output.datagrams.iter().map(<[u8]>::to_vec));
        output.datagrams.clear();
        let (messages, bytes) = self.peer.waiting();
        assert!(messages <= BUFFER.0 && bytes <= BUFFER.1, "{}: {messages} messages, {bytes} bytes", self.name);
        self.figures.most_messages = self.figures.most_messages.max(messages);
        self.figures.most_bytes = self.figures.most_bytes.max(bytes);
        match action {
            Action::Continue => {}
            Action::OpenUpstream => {
                let mut io = Io { now, upstream: &mut self.upstream, output };
                self.peer.upstream_opened(&mut io);
            }
            Action::End(end) => self.end = Some((end, now)),
            Action::ReopenUpstream => panic!("{}: no Will changes", self.name),
        }
        self.input.extend_from_slice(&self.upstream.to_bytes());
        self.upstream.clear();
    }

    /// Passes datagrams and packets on until none is left, or the peer has no room.
    fn run(&mut self, now: Instant, output: &mut Output) {
        loop {
            if let Some(datagram) = self.to_client.pop_front() {
                self.hear(&datagram, now, output);
            } else if let Decoded::Packet(packet) = self.decoder.decode(&mut self.input).expect("legal packets") {
                self.serve(&packet);
            } else if self.end.is_none()
                && self.peer.accepts_packets()
                && let Some(packet) = self.to_gateway.pop_front()
            {
                let mut io = Io { now, upstream: &mut self.upstream, output };
                let action = self.peer.handle_packet(packet, &mut io);
                self.collect(action, now, output);
            } else {
                return;
            }
        }
    }

    /// The broker's answer to a packet.
    fn serve(&mut self, packet: &Packet) {
        match packet {
            Packet::Connect(connect) => {
                self.broker.has_will = connect.will.is_some();
                let connack = tenbin_codec::ConnAck::new(false, ReasonCode::Success);
                self.to_gateway.push_back(Packet::ConnAck(Box::new(connack)));
            }
            Packet::PingReq(_) => self.to_gateway.push_back(Packet::PingResp),
            Packet::PubAck(ack) => {
                assert_eq!(Some(ack.packet_id), self.broker.under_way.take());
                self.broker.queue.pop_front();
                self.send_next();
            }
            Packet::Disconnect(disconnect) => self.broker.disconnect = Some(disconnect.reason),
            other => panic!("{other:?}"),
        }
    }

    /// A datagram of the gateway reaches the client, if its receiver is on.
    fn hear(&mut self, datagram: &[u8], now: Instant, output: &mut Output) {
        let message = Message::decode(datagram).expect("legal");
        let is_heard = self.is_listening && self.attention != Some(0);
        if let Message::Publish(publish) = &message {
            self.note(publish, is_heard);
        }
        if !is_heard {
            return;
        }
        if let Some(attention) = &mut self.attention {
            *attention -= 1;
            if *attention == 0 {
                return; // It fails before it answers.
            }
        }
        match message {
            Message::Register(v1_2::Register { topic_id, message_id, topic }) => {
                self.topics.resize(self.topics.len().max(usize::from(topic_id)), String::new());
                self.topics[usize::from(topic_id) - 1] = topic.to_owned();
                self.send(&Message::RegAck(RegAck { topic_id, message_id, code: ReturnCode::Accepted }), now, output);
            }
            Message::Publish(publish) if publish.message_id.is_some() => {
                let (topic_id, message_id) = (publish.topic.field(), publish.message_id);
                self.send(&Message::PubAck(PubAck { topic_id, message_id, code: ReturnCode::Accepted }), now, output);
            }
            Message::PingResp => {
                self.figures.pingresps += 1;
                self.is_listening = false;
            }
            _ => {}
        }
    }

    /// Checks a message of the gateway.
    fn note(&mut self, publish: &v1_2::Publish<'_>, is_heard: bool) {
        let qos = usize::from(publish.message_id.is_some());
        if !is_heard {
            self.figures.unheard += 1 - qos as u64;
            return;
        }
        if let v1_2::Topic::Normal(id) = publish.topic {
            assert!(self.topics.get(usize::from(id) - 1).is_some_and(|name| !name.is_empty()), "a known id");
        }
        let number = u32::from_be_bytes(publish.data[..4].try_into().expect("four bytes"));
        if qos == 1 && self.last[1] == Some(number) {
            assert!(publish.dup, "{}: a copy without DUP", self.name);
            self.figures.copies += 1;
            return;
        }
        assert!(self.last[qos].is_none_or(|last| last < number), "{}: {number} after {:?}", self.name, self.last);
        self.last[qos] = Some(number);
        self.figures.received[qos] += 1;
    }
}

impl Figures {
    pub(crate) fn add(&mut self, other: &Self) {
        self.wakes += other.wakes;
        self.pingresps += other.pingresps;
        for qos in 0..2 {
            self.sent[qos] += other.sent[qos];
            self.received[qos] += other.received[qos];
        }
        self.copies += other.copies;
        self.unheard += other.unheard;
        self.waiting += other.waiting;
        self.most_messages = self.most_messages.max(other.most_messages);
        self.most_bytes = self.most_bytes.max(other.most_bytes);
    }
}
