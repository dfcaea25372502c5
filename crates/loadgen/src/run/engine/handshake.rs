//! Connects clients, and subscribes them.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tenbin_codec::{
    ConnAck, Connect, Decoded, Decoder, Disconnect, Packet, PacketId, PacketType, ProtocolVersion, QoS, ReasonCode,
    Secret, Subscribe, Subscription, SubscriptionOptions, Text, TopicFilter, TopicName, Will, WriteBuffer,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frame::Frame;
use super::link::Link;
use super::tls::Tls;
use super::transport::Transport;
use crate::LoadgenError;
use crate::run::{ConnectionOptions, Version, WillOptions};

/// A client: all that it needs to connect and reconnect.
#[derive(Debug, Clone)]
pub(super) struct Client {
    /// Its Client Identifier, also its name in error messages.
    pub(super) id: String,
    /// Brokers that it may connect to, its own first; at least one.
    pub(super) doors: Vec<Door>,
    /// Index of the broker to connect to.
    pub(super) turn: Cell<usize>,
    /// Time limit of an attempt to connect.
    pub(super) answer_limit: Duration,
    /// Whether the connection is lost if the broker sends nothing for Keep Alive.
    pub(super) expects_answers: bool,
    /// The subscription to make, unless its session has it already.
    pub(super) subscription: Option<Subscription>,
    /// Whether it leaves a Will, if the plan has one.
    pub(super) has_will: bool,
    /// Keep Alive in seconds; `None` for the plan's.
    pub(super) keep_alive: Option<u16>,
}

/// A broker that a client may connect to.
#[derive(Debug, Clone)]
pub(super) struct Door {
    /// Its address, for display.
    pub(super) place: String,
    /// Its host name from the plan, which its certificate must have.
    pub(super) host: String,
    /// Addresses to try in this order.
    pub(super) addresses: Vec<SocketAddr>,
}

impl Client {
    /// The broker to connect to.
    pub(super) fn door(&self) -> &Door {
        &self.doors[self.turn.get()]
    }

    /// Turns to the broker at this address; false if it is none of them.
    pub(super) fn switch_to(&self, server: &str) -> bool {
        let door = self.doors.iter().position(|door| door.place == server);
        door.inspect(|&door| self.turn.set(door)).is_some()
    }

    /// Whether it is at the broker with which it began.
    pub(super) fn is_home(&self) -> bool {
        self.turn.get() == 0
    }

    /// Turns to the next broker; without others, to the same one.
    pub(super) fn turn(&self) {
        self.turn.set((self.turn.get() + 1) % self.doors.len());
    }
}

/// A client that has connected, and subscribed if it has a subscription.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) link: Link,
    /// The broker's CONNACK.
    pub(super) connack: ConnAck,
    /// Time from the first attempt to CONNACK.
    pub(super) took: Duration,
}

/// Identity and connect options of all clients, from a plan.
#[derive(Debug)]
pub(super) struct Connector {
    version: ProtocolVersion,
    user_name: Option<Text>,
    password: Option<Secret>,
    keep_alive: u16,
    /// `None`: the session ends with the connection.
    session_expiry: Option<u32>,
    will: Option<Will>,
    tls: Option<Tls>,
    /// Path of the upgrade to WebSocket.
    websocket: Option<String>,
    /// Path of the broker's unix socket.
    unix: Option<String>,
}

impl Connector {
    /// Prepares the options of a plan; `tag` is the run's, for Wills.
    ///
    /// # Errors
    /// A value that MQTT cannot encode: a user name of more than 65,535 bytes, a Will without a topic. Unusable files
    /// for TLS.
    pub(super) fn new(options: &ConnectionOptions, tag: u16) -> Result<Self, LoadgenError> {
        let wrong = |what: &str, why: String| LoadgenError::Arguments(format!("{what}: {why}"));
        let user_name = options.user_name.as_deref().map(Text::try_from).transpose();
        let password = options.password.as_ref().map(|password| Secret::from(password.expose().as_str()));
        if password.as_ref().is_some_and(|password| password.expose().len() > usize::from(u16::MAX)) {
            return Err(wrong("password", "more than 65,535 bytes".into()));
        }
        let session_expiry = options.session_expiry.map(|expiry| {
            // Fractions are rounded up: an expiry of 0 s would end the session.
            let seconds = expiry.as_secs().saturating_add((expiry.subsec_nanos() > 0).into());
            u32::try_from(seconds).unwrap_or(u32::MAX)
        });
        Ok(Self {
            version: protocol(options.version),
            user_name: user_name.map_err(|error| wrong("user name", error.to_string()))?,
            password,
            keep_alive: options.keep_alive,
            session_expiry,
            will: options.will.as_ref().map(|options| will(options, tag)).transpose()?,
            tls: options.tls.as_ref().map(Tls::new).transpose()?,
            websocket: options.websocket.clone(),
            unix: options.unix.clone(),
        })
    }

    pub(super) fn version(&self) -> ProtocolVersion {
        self.version
    }

    /// `None` for plain TCP.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Whether sessions outlive their connections.
    pub(super) fn keeps_sessions(&self) -> bool {
        self.session_expiry.is_some()
    }

    /// Connects `client` for the first time in this run and discards any earlier session.
    ///
    /// # Errors
    /// The broker cannot be reached, does not answer within 10 s, or refuses; the error names the client.
    pub(super) async fn open(&self, client: &Client) -> Result<Connected, LoadgenError> {
        let connected = self.connect_anywhere(client).await?;
        if !connected.connack.session_present {
            return self.subscribe(client, connected).await;
        }
        // At 3.1.1, Clean Session discards the old session but also keeps no new one, so that discarding takes an extra
        // connection. At 5.0 a session present in spite of Clean Start is a violation [MQTT-3.2.2-2].
        connected.link.close(Some(&self.goodbye())).await;
        self.forget(client).await?;
        let connected = self.connect(client, true).await?;
        self.subscribe(client, connected).await
    }

    /// Reconnects `client`, resuming its session if there is one.
    ///
    /// # Errors
    /// As [`Connector::open`].
    pub(super) async fn reopen(&self, client: &Client) -> Result<Connected, LoadgenError> {
        let connected = self.connect(client, false).await?;
        // A session keeps its subscriptions [MQTT-3.1.2-5].
        if connected.connack.session_present { Ok(connected) } else { self.subscribe(client, connected).await }
    }

    /// Discards the session of a client that is not connected.
    ///
    /// # Errors
    /// As [`Connector::open`].
    pub(super) async fn forget(&self, client: &Client) -> Result<(), LoadgenError> {
        let connect = Connect { clean_start: true, ..self.connect_packet(&client.id, false, true)? };
        let connect = Connect { properties: Default::default(), ..connect };
        let connected = within(client, self.exchange_connect(client, connect)).await?;
        connected.link.close(Some(&self.goodbye())).await;
        Ok(())
    }

    /// The DISCONNECT of a client that does not reconnect; it ends the session.
    pub(super) fn goodbye(&self) -> Vec<u8> {
        let mut disconnect = Disconnect::new(ReasonCode::Success);
        if self.version.is_v5() && self.keeps_sessions() {
            let properties = disconnect.properties.get_or_insert_default();
            properties.session_expiry_interval = Some(0);
        }
        let mut out = WriteBuffer::new();
        Packet::Disconnect(disconnect).encode(self.version, &mut out);
        out.to_bytes().to_vec()
    }

    async fn connect(&self, client: &Client, is_first: bool) -> Result<Connected, LoadgenError> {
        let mut connect = self.connect_packet(&client.id, client.has_will, is_first)?;
        connect.keep_alive = client.keep_alive.unwrap_or(connect.keep_alive);
        within(client, self.exchange_connect(client, connect)).await
    }

    /// As [`Connector::connect`] for the first time, to the first broker that accepts.
    async fn connect_anywhere(&self, client: &Client) -> Result<Connected, LoadgenError> {
        let mut attempts = client.doors.len();
        loop {
            match self.connect(client, true).await {
                Err(_) if attempts > 1 => client.turn(),
                connected => return connected,
            }
            attempts -= 1;
        }
    }

    /// CONNECT of a client; with the plan's Will, if it has one and `has_will` is set.
    ///
    /// # Errors
    /// The Client Identifier is invalid.
    pub(super) fn connect_packet(
        &self,
        client_id: &str,
        has_will: bool,
        is_first: bool,
    ) -> Result<Connect, LoadgenError> {
        let client_id = Text::try_from(client_id)
            .map_err(|error| LoadgenError::Arguments(format!("client id {client_id:?}: {error}")))?;
        let keeps = self.keeps_sessions();
        let mut connect = Connect::new(self.version, client_id);
        connect.clean_start = !keeps || (self.version.is_v5() && is_first);
        connect.keep_alive = self.keep_alive;
        connect.will = self.will.clone().filter(|_| has_will);
        connect.user_name = self.user_name.clone();
        connect.password = self.password.clone();
        if self.version.is_v5() {
            connect.properties.session_expiry_interval = self.session_expiry;
        }
        Ok(connect)
    }

    async fn exchange_connect(&self, client: &Client, connect: Connect) -> Result<Connected, String> {
        let begun = Instant::now();
        let door = client.door();
        let tls = self.tls.as_ref().map(|tls| (tls, door.host.as_str()));
        let websocket = self.websocket.as_deref().map(|path| (door.place.as_str(), path));
        let opened = match &self.unix {
            Some(path) => Transport::open_unix(path).await,
            None => Transport::open(door.addresses.iter().copied(), tls, websocket).await,
        };
        let mut transport = opened.map_err(|error| error.to_string())?;
        let mut input = BytesMut::new();
        let keep_alive = connect.keep_alive;
        send(&mut transport, self.version, Packet::Connect(Box::new(connect))).await?;
        let packet = receive(&mut transport, &mut input, self.version).await?;
        let took = begun.elapsed();
        let connack = match packet {
            Packet::ConnAck(connack) if !connack.reason.is_error() => *connack,
            Packet::ConnAck(connack) => return Err(format!("refused: {}", connack.reason)),
            packet => return Err(format!("{} instead of CONNACK", packet.packet_type())),
        };
        let keep_alive = connack.properties.server_keep_alive.unwrap_or(keep_alive);
        let mut link = Link::new(transport, &input, Duration::from_secs(keep_alive.into()));
        if client.expects_answers {
            link.expect_answers();
        }
        Ok(Connected { link, connack, took })
    }

    async fn subscribe(&self, client: &Client, mut connected: Connected) -> Result<Connected, LoadgenError> {
        let Some(subscription) = &client.subscription else { return Ok(connected) };
        let subscribe = Packet::Subscribe(Subscribe {
            packet_id: PacketId::new(1).expect("one is not zero"),
            subscription_identifier: None,
            user_properties: Vec::new(),
            subscriptions: vec![subscription.clone()],
        });
        let asked = async {
            let (transport, mut input) = connected.link.begin_exchange();
            send(transport, self.version, subscribe).await?;
            // Messages may come before SUBACK [MQTT-3.8.4-2]: the connection's next owner counts and acknowledges them.
            let mut early = BytesMut::new();
            while take_publishes(&mut input, &mut early)? {
                read(transport, &mut input).await?;
            }
            let packet = receive(transport, &mut input, self.version).await?;
            early.extend_from_slice(&input);
            connected.link.end_exchange(&early);
            match packet {
                Packet::SubAck(suback) => check_granted(subscription, &suback.reasons),
                packet => {
                    Err(format!("subscription to {}: {} instead of SUBACK", subscription.filter, packet.packet_type()))
                }
            }
        };
        within(client, asked).await?;
        Ok(connected)
    }
}

/// Checks that the broker has granted `subscription` as requested.
pub(super) fn check_granted(subscription: &Subscription, reasons: &[ReasonCode]) -> Result<(), String> {
    let (filter, qos) = (&subscription.filter, subscription.options.qos);
    match reasons.first() {
        Some(reason) if reason.byte() == qos.bits() => Ok(()),
        Some(reason) if reason.is_error() => Err(format!("subscription to {filter}: {reason}")),
        Some(reason) => Err(format!("subscription to {filter} at QoS {qos}: QoS {} granted", reason.byte())),
        None => Err(format!("subscription to {filter}: SUBACK without a Reason Code")),
    }
}

async fn send(transport: &mut Transport, version: ProtocolVersion, packet: Packet) -> Result<(), String> {
    let mut out = WriteBuffer::new();
    packet.encode(version, &mut out);
    while out.has_remaining() {
        transport.write_buf(&mut out).await.map_err(|error| error.to_string())?;
    }
    transport.flush().await.map_err(|error| error.to_string())
}

/// Waits for the next packet.
async fn receive(transport: &mut Transport, input: &mut BytesMut, version: ProtocolVersion) -> Result<Packet, String> {
    let mut decoder = Decoder::client(version, u32::MAX);
    loop {
        if let Decoded::Packet(packet) = decoder.decode(input).map_err(|error| error.to_string())? {
            return Ok(packet);
        }
        read(transport, input).await?;
    }
}

async fn read(transport: &mut Transport, input: &mut BytesMut) -> Result<(), String> {
    match transport.read_buf(input).await.map_err(|error| error.to_string())? {
        0 => Err("closed by the broker".to_owned()),
        _ => Ok(()),
    }
}

/// Moves the PUBLISH packets at the front of `input` to `publishes`; returns whether the next packet is incomplete.
fn take_publishes(input: &mut BytesMut, publishes: &mut BytesMut) -> Result<bool, String> {
    loop {
        match Frame::split(input)? {
            Some((frame, size)) if frame.packet_type() == Some(PacketType::Publish) => {
                publishes.extend_from_slice(&input.split_to(size));
            }
            Some(_) => return Ok(false),
            None => return Ok(true),
        }
    }
}

async fn within<T>(client: &Client, work: impl Future<Output = Result<T, String>>) -> Result<T, LoadgenError> {
    let refused = |reason: &str| LoadgenError::connect(&client.door().place, format_args!("{}: {reason}", client.id));
    match tokio::time::timeout(client.answer_limit, work).await {
        Ok(result) => result.map_err(|reason| refused(&reason)),
        Err(_) => Err(refused(&format!("no answer within {} s", client.answer_limit.as_secs_f64()))),
    }
}

/// A subscription to `filter` at `qos`, retained messages included.
///
/// If another program publishes, its retained messages may be part of the load. Those of earlier runs count as foreign.
///
/// # Errors
/// `filter` is invalid.
pub(super) fn subscription(filter: &str, qos: QoS) -> Result<Subscription, LoadgenError> {
    let filter = TopicFilter::try_from(filter)
        .map_err(|error| LoadgenError::Arguments(format!("filter {filter:?}: {error}")))?;
    Ok(Subscription { filter, options: SubscriptionOptions::at(qos) })
}

pub(super) fn protocol(version: Version) -> ProtocolVersion {
    match version {
        Version::V311 => ProtocolVersion::V311,
        Version::V5 => ProtocolVersion::V5,
    }
}

/// Payload of all Wills of a run, by which the run recognizes them.
pub(super) fn will_payload(tag: u16) -> Vec<u8> {
    format!("tenbin-loadgen will {tag:04x}").into_bytes()
}

fn will(options: &WillOptions, tag: u16) -> Result<Will, LoadgenError> {
    let wrong = |why: String| LoadgenError::Arguments(format!("topic of the Will {:?}: {why}", options.topic));
    Ok(Will {
        qos: QoS::from_bits(options.qos).ok_or_else(|| wrong(format!("QoS {}", options.qos)))?,
        retain: false,
        topic: TopicName::try_from(options.topic.as_str()).map_err(|error| wrong(error.to_string()))?,
        payload: will_payload(tag).into(),
        delay_interval: None,
        properties: None,
    })
}

/// Time limit of an attempt to connect, for a client that cannot turn to another broker.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(10);
