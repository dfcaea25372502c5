use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::num::{NonZeroU16, NonZeroU32};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use tenbin_codec::{
    Connect, Decoded, Decoder, Packet, PacketId, ProtocolVersion, PublishTemplate, QoS, ReasonCode, Text, TopicName,
    WriteBuffer,
};
use tenbin_session::handshake::{Capabilities, complete, negotiate};
use tenbin_session::{Connection, Delivery, Event, Limits, PendingAck, Role, Sent, Session, SessionExpiry};

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Client = 0,
    Server = 1,
}

impl End {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Limits of the client and of the server on one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    pub(crate) receive_maximum: [u16; 2],
    pub(crate) topic_aliases: [u16; 2],
}

/// Two ends, the bytes between them, and the model.
///
/// ```text
///   application ── publish ──► Host ── bytes, late ──► Host ── Event::Publish ──► application
///                    ▲                    ╎ cut: gone                                │
///                    └── messages: payload number, identifier, number of arrivals ◄──┘
/// ```
pub(crate) struct Pair {
    version: ProtocolVersion,
    now: Instant,
    /// Delay to the client, and to the server.
    delays: [Duration; 2],
    hosts: [Host; 2],
    is_connected: bool,
    has_been_connected: bool,
    /// Messages of both directions, by the number in their payload.
    messages: BTreeMap<u32, Message>,
}

/// One end: its session or connection, its application, and the wire to it.
struct Host {
    connection: Option<Connection>,
    session: Session,
    decoder: Decoder,
    input: BytesMut,
    /// Bytes in transit to this end, with their arrival times.
    wire: VecDeque<(Instant, Bytes)>,
    /// QoS 1 and 2 messages that could not be sent yet.
    backlog: VecDeque<(u32, Delivery)>,
    /// Messages that the application has not acknowledged.
    pending: VecDeque<(PendingAck, Option<u32>)>,
    /// Numbers of arrived messages by QoS, without repetitions.
    first_arrivals: [Vec<u32>; 3],
    duplicates: usize,
    /// Message numbers by this end's Packet Identifiers.
    numbers: HashMap<PacketId, u32>,
    /// Identifiers of this end's PUBLISHes on this connection without acknowledgement.
    open: HashSet<PacketId>,
    /// Decodes this end's output.
    observer: Decoder,
}

/// Model of one message.
struct Message {
    sender: End,
    qos: QoS,
    id: Option<PacketId>,
    is_released: bool,
    arrivals: usize,
    is_refused: bool,
    is_concluded: bool,
}

impl Pair {
    pub(crate) fn new(version: ProtocolVersion, delays: [u16; 2]) -> Self {
        Self {
            version,
            now: epoch(),
            delays: delays.map(|milliseconds| Duration::from_millis(u64::from(milliseconds))),
            hosts: [Host::new(version), Host::new(version)],
            is_connected: false,
            has_been_connected: false,
            messages: BTreeMap::new(),
        }
    }

    /// Makes a new connection of the same sessions, and cuts an existing one.
    pub(crate) fn connect(&mut self, limits: ConnectionLimits) {
        self.cut();
        let session_present = self.has_been_connected;
        let (client, server, decoders) = shake_hands(self.version, limits, session_present);
        for (host, ((role, limits), decoder)) in
            self.hosts.iter_mut().zip([(Role::Client, client), (Role::Server, server)].into_iter().zip(decoders))
        {
            let session = std::mem::take(&mut host.session);
            host.connection = Some(Connection::new(role, self.version, limits, session, self.now));
            host.decoder = decoder;
        }
        let [client, server] = &mut self.hosts;
        (client.observer, server.observer) = (server.decoder.clone(), client.decoder.clone());
        self.is_connected = true;
        self.has_been_connected = true;
        for end in [End::Client, End::Server] {
            self.with(end, |connection, now, out| connection.resume(now, out));
            self.send_backlog(end);
        }
    }

    /// Both ends lose the connection and all bytes in transit.
    pub(crate) fn cut(&mut self) {
        self.is_connected = false;
        for host in &mut self.hosts {
            if let Some(connection) = host.connection.take() {
                host.session = connection.into_session();
            }
            host.input.clear();
            host.wire.clear();
            host.pending.clear();
            host.open.clear();
        }
    }

    pub(crate) fn wait(&mut self, milliseconds: u16) {
        self.now += Duration::from_millis(u64::from(milliseconds));
    }

    /// Publishes a message. Without a connection, QoS 0 is lost, and other messages wait.
    pub(crate) fn publish(&mut self, end: End, qos: QoS, topic: u8) {
        let number = self.messages.len() as u32;
        let (id, is_released, arrivals, is_refused) = (None, false, 0, false);
        let is_concluded = qos == QoS::AtMostOnce;
        self.messages.insert(number, Message { sender: end, qos, id, is_released, arrivals, is_refused, is_concluded });
        let topic = TopicName::try_from(["a", "b/b", "c/c/c", "d"][usize::from(topic)]).unwrap();
        let payload = Bytes::copy_from_slice(&number.to_be_bytes());
        let template = PublishTemplate::new(&topic, None, &payload, &mut BytesMut::new());
        let delivery = Delivery::new(template, qos, false);
        if qos.is_acknowledged() {
            self.host(end).backlog.push_back((number, delivery));
            self.send_backlog(end);
        } else if self.is_connected {
            let sent = self.with(end, |connection, now, out| connection.send(delivery, now, out));
            assert!(matches!(sent, Sent::Written(None)), "QoS 0 waits for nothing: {sent:?}");
        }
    }

    /// Lets up to `bytes` arrive at `end`, if they are due.
    pub(crate) fn deliver(&mut self, end: End, mut bytes: usize) {
        if !self.is_connected {
            return;
        }
        let now = self.now;
        let host = self.host(end);
        while let Some((at, chunk)) = host.wire.front_mut() {
            if *at > now || bytes == 0 {
                break;
            }
            let part = chunk.split_to(bytes.min(chunk.len()));
            bytes -= part.len();
            host.input.extend_from_slice(&part);
            if !chunk.has_remaining() {
                host.wire.pop_front();
            }
        }
        while let Decoded::Packet(packet) = {
            let host = self.host(end);
            host.decoder.decode(&mut host.input).expect("the other end writes legal packets")
        } {
            self.handle(end, packet);
        }
    }

    /// The application of `end` acknowledges its oldest messages.
    pub(crate) fn acknowledge(&mut self, end: End, count: usize, refuse: bool) {
        for _ in 0..count {
            let Some((ack, number)) = self.host(end).pending.pop_front() else { return };
            // 3.1.1 cannot refuse: the sender would see success, but the receiver would not have the message.
            let refuse = refuse && self.version.is_v5();
            let reason = if refuse { ReasonCode::QuotaExceeded } else { ReasonCode::Success };
            if refuse {
                let number = number.unwrap_or_else(|| self.hosts[end.other() as usize].numbers[&ack.packet_id]);
                let message = self.messages.get_mut(&number).unwrap();
                message.is_refused = true;
                // The message does not count as received; if the refusal gets lost, the message comes again as new.
                message.arrivals = 0;
            }
            self.with(end, |connection, now, out| connection.acknowledge(ack, reason, now, out));
        }
    }

    pub(crate) fn run_until_quiet(&mut self) {
        if !self.is_connected {
            self.connect(ConnectionLimits { receive_maximum: [2, 2], topic_aliases: [1, 1] });
        }
        for _ in 0..10_000 {
            for end in [End::Client, End::Server] {
                self.acknowledge(end, usize::MAX, false);
                self.send_backlog(end);
            }
            let Some(next) = self.hosts.iter().filter_map(|host| host.wire.front()).map(|(at, _)| *at).min() else {
                return;
            };
            self.now = self.now.max(next);
            self.deliver(End::Client, usize::MAX);
            self.deliver(End::Server, usize::MAX);
        }
        panic!("the two never come to rest");
    }

    /// Checks the final state, once no bytes are in transit.
    pub(crate) fn check(&self) {
        for host in &self.hosts {
            let connection = host.connection.as_ref().expect("connected at the end");
            assert!(connection.session().is_empty(), "{:?}", connection.session());
            assert!(host.backlog.is_empty() && host.input.is_empty() && host.pending.is_empty());
            for arrivals in &host.first_arrivals {
                assert!(arrivals.is_sorted(), "first arrivals are out of order: {arrivals:?}");
            }
        }
        for (number, message) in &self.messages {
            assert!(message.is_concluded, "message {number} is not concluded");
            let is_kept = match message.qos {
                QoS::AtMostOnce => message.arrivals <= 1,
                QoS::AtLeastOnce => message.arrivals >= 1 || message.is_refused,
                QoS::ExactlyOnce => message.arrivals == 1 || message.is_refused && message.arrivals == 0,
            };
            assert!(is_kept, "message {number}, QoS {}, came {} times", message.qos, message.arrivals);
        }
    }

    /// Number of arrivals at `end`, including repetitions.
    pub(crate) fn arrivals(&self, end: End) -> usize {
        self.messages.values().filter(|message| message.sender != end).map(|message| message.arrivals).sum()
    }

    /// Number of messages that `end` recognised as repeated.
    pub(crate) fn duplicates(&self, end: End) -> usize {
        self.hosts[end as usize].duplicates
    }

    pub(crate) fn is_under_way_to(&self, end: End) -> bool {
        !self.hosts[end as usize].wire.is_empty()
    }

    fn handle(&mut self, end: End, packet: Packet) {
        let closes = match &packet {
            Packet::PubAck(ack) | Packet::PubComp(ack) => Some(ack.packet_id),
            Packet::PubRec(ack) if ack.reason.is_error() => Some(ack.packet_id),
            _ => None,
        };
        if let Some(id) = closes {
            self.host(end).open.remove(&id);
        }
        let event = self.with(end, |connection, now, out| connection.handle_packet(packet, now, out));
        match event.expect("two correct ends break no rule") {
            Event::Handled => {}
            Event::Publish(publication) => {
                let number = u32::from_be_bytes(publication.payload[..].try_into().unwrap());
                let message = self.messages.get_mut(&number).unwrap();
                assert_eq!((message.sender, message.qos), (end.other(), publication.qos));
                message.arrivals += 1;
                assert!(message.qos == QoS::AtLeastOnce || message.arrivals == 1, "message {number} came again");
                let host = &mut self.hosts[end as usize];
                let first_arrivals = &mut host.first_arrivals[publication.qos as usize];
                if !first_arrivals.contains(&number) {
                    first_arrivals.push(number);
                }
                host.pending.extend(publication.ack.map(|ack| (ack, Some(number))));
            }
            Event::Duplicate(ack) => {
                assert_eq!(ack.qos, QoS::ExactlyOnce);
                let host = self.host(end);
                host.duplicates += 1;
                host.pending.push_back((ack, None));
            }
            Event::Delivered { packet_id, .. } => {
                let number = self.host(end).numbers[&packet_id];
                let message = self.messages.get_mut(&number).unwrap();
                assert!(!message.is_concluded, "message {number} is concluded twice");
                message.is_concluded = true;
                self.send_backlog(end);
            }
            other => panic!("nobody asked for {other:?}"),
        }
    }

    fn send_backlog(&mut self, end: End) {
        if !self.is_connected {
            return;
        }
        while let Some((number, delivery)) = self.host(end).backlog.pop_front() {
            match self.with(end, |connection, now, out| connection.send(delivery, now, out)) {
                Sent::Written(Some(id)) => {
                    let before = self.hosts[end as usize].numbers.insert(id, number);
                    assert!(before.is_none_or(|before| self.messages[&before].is_concluded), "id {id} is taken");
                }
                Sent::Blocked(delivery) => {
                    self.host(end).backlog.push_front((number, delivery));
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Acts on the connection of `end`, and puts its output on the wire.
    fn with<T>(&mut self, end: End, act: impl FnOnce(&mut Connection, Instant, &mut WriteBuffer) -> T) -> T {
        let mut out = WriteBuffer::new();
        let now = self.now;
        let result = act(self.host(end).connection.as_mut().expect("connected"), now, &mut out);
        if !out.is_empty() {
            self.observe(end, &out.to_bytes());
            let other = end.other();
            let at = now + self.delays[other as usize];
            self.host(other).wire.push_back((at, out.to_bytes()));
        }
        result
    }

    /// Checks the PUBLISHes and PUBRELs that `end` writes.
    fn observe(&mut self, end: End, bytes: &[u8]) {
        let host = &mut self.hosts[end as usize];
        let connection = host.connection.as_ref().expect("connected");
        let receive_maximum = usize::from(connection.limits().peer_receive_maximum);
        let mut input = BytesMut::from(bytes);
        while let Decoded::Packet(packet) = host.observer.decode(&mut input).expect("legal packets are written") {
            match packet {
                Packet::Publish(publish) => {
                    let number = u32::from_be_bytes(publish.payload[..].try_into().unwrap());
                    let message = self.messages.get_mut(&number).unwrap();
                    let Some(id) = publish.packet_id else { continue };
                    assert_eq!(publish.dup, message.id.is_some(), "DUP of message {number}");
                    assert!(message.id.is_none_or(|first| first == id), "the id of message {number} has changed");
                    assert!(!message.is_released, "message {number} came after its PUBREL");
                    assert!(!message.is_concluded, "message {number} is over");
                    message.id = Some(id);
                    assert!(host.open.insert(id), "message {number} was repeated on the same connection");
                    assert!(host.open.len() <= receive_maximum, "more than {receive_maximum} are open");
                }
                Packet::PubRel(ack) if !ack.reason.is_error() => {
                    self.messages.get_mut(&host.numbers[&ack.packet_id]).unwrap().is_released = true;
                }
                _ => {}
            }
        }
        assert!(input.is_empty(), "half a packet was written");
    }

    fn host(&mut self, end: End) -> &mut Host {
        &mut self.hosts[end as usize]
    }
}

impl Host {
    fn new(version: ProtocolVersion) -> Self {
        Self {
            connection: None,
            session: Session::new(),
            decoder: Decoder::client(version, u32::MAX),
            input: BytesMut::new(),
            wire: VecDeque::new(),
            backlog: VecDeque::new(),
            pending: VecDeque::new(),
            first_arrivals: Default::default(),
            duplicates: 0,
            numbers: HashMap::new(),
            open: HashSet::new(),
            observer: Decoder::client(version, u32::MAX),
        }
    }
}

/// Performs the handshake. Returns the limits and a decoder for the client and for the server.
fn shake_hands(
    version: ProtocolVersion,
    limits: ConnectionLimits,
    session_present: bool,
) -> (Limits, Limits, [Decoder; 2]) {
    let [receive_maximum, server_receive_maximum] = limits.receive_maximum.map(|n| NonZeroU16::new(n).unwrap());
    let [topic_aliases, server_topic_aliases] = limits.topic_aliases;
    let mut connect = Connect::new(version, Text::from_static("client"));
    connect.clean_start = false;
    connect.keep_alive = 0;
    connect.properties.session_expiry_interval = Some(u32::MAX);
    connect.properties.receive_maximum = Some(receive_maximum);
    connect.properties.topic_alias_maximum = Some(topic_aliases);
    let capabilities = Capabilities {
        receive_maximum: server_receive_maximum,
        maximum_packet_size: NonZeroU32::new(1000).unwrap(),
        topic_alias_maximum: server_topic_aliases,
        topic_aliases_sent: u16::MAX,
        keep_alive_maximum: Duration::ZERO,
        session_expiry_maximum: SessionExpiry::Never,
        maximum_qos: QoS::ExactlyOnce,
        retain_available: true,
        wildcard_subscriptions_available: true,
        subscription_identifiers_available: true,
        shared_subscriptions_available: true,
    };
    let mut server_decoder = Decoder::server(1000);
    let Packet::Connect(received) = pass(&Packet::Connect(Box::new(connect.clone())), version, &mut server_decoder)
    else {
        panic!("CONNECT was sent");
    };
    let negotiated = negotiate(&received, &capabilities, session_present, None).unwrap();
    let mut client_decoder = Decoder::client(version, 1000);
    let connack = Packet::ConnAck(Box::new(negotiated.connack));
    let Packet::ConnAck(received) = pass(&connack, version, &mut client_decoder) else {
        panic!("CONNACK was sent");
    };
    let accepted = complete(&connect, &received, Session::new()).unwrap();
    assert_eq!(accepted.session_present, session_present);
    (accepted.limits, negotiated.limits, [client_decoder, server_decoder])
}

fn pass(packet: &Packet, version: ProtocolVersion, decoder: &mut Decoder) -> Packet {
    let mut out = WriteBuffer::new();
    packet.encode(version, &mut out);
    match decoder.decode(&mut BytesMut::from(&out.to_bytes()[..])) {
        Ok(Decoded::Packet(packet)) => packet,
        other => panic!("{other:?}"),
    }
}

#[allow(clippy::disallowed_methods, reason = "there is no other way to an Instant; nothing waits for it")]
fn epoch() -> Instant {
    Instant::now()
}
