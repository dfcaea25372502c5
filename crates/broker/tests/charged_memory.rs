//! Compares the memory that the broker allocates for clients with the bound of their account.
//!
//! ```text
//! cargo test -p tenbin-broker --test charged_memory -- --nocapture
//! ```

#![allow(clippy::print_stdout, reason = "tells what was measured")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use bytes::{Bytes, BytesMut};
use tenbin_broker::{Broker, Config};
use tenbin_codec::{
    Connect, Decoded, Decoder, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe, Subscription,
    SubscriptionOptions, Text, TopicFilter, TopicName, Will, WriteBuffer,
};

/// Bound of the one address of all clients.
const BYTES_MAX: usize = 4 << 20;
/// Bound of session state: nine sixteenths. Cached routes have an eighth, and partial packets a quarter.
const LASTING_MAX: usize = BYTES_MAX / 16 * 9;
/// Additional bytes for each session.
const ALLOWANCE: usize = 4096;
/// Additional bytes for subscriptions of each connected client.
const CLIENT_ALLOWANCE: usize = 64 << 10;

thread_local! {
    /// Allocated bytes of this thread, the only one of broker and clients. `const` and without destructor, hence usable
    /// inside the allocator.
    static LIVE: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded unchanged to `System`, which keeps the contract; counting touches no memory that the
// allocator manages.
#[allow(unsafe_code, reason = "a global allocator can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get().wrapping_add(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().wrapping_sub(layout.size()));
        // SAFETY: `pointer` came from `System` by way of `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A broker, and its allocated bytes before the attack.
struct Stage {
    broker: Broker,
    before: usize,
}

impl Stage {
    async fn new(more: &str) -> Self {
        let config = format!(
            "listen = [\"127.0.0.1:0\"]\n[connections]\npacket_bytes_maximum = {}\n[limits]\nloopback_address_bytes_maximum = {BYTES_MAX}\n{more}\n",
            BYTES_MAX / 4
        );
        let config = Config::parse(&config).expect("a configuration");
        let broker = Broker::builder().config(config).start().await.expect("a free port");
        // Memory that the first connection leaves behind is not part of the attack.
        drop(Client::connect(broker.addresses()[0], Connect::new(ProtocolVersion::V5, text("first"))).await);
        settle().await;
        let before = LIVE.get();
        Self { broker, before }
    }

    async fn client(&self, connect: Connect) -> (Client, ReasonCode) {
        Client::connect(self.broker.addresses()[0], connect).await
    }

    /// Checks that the broker has grown to about its bound: not far beyond, and not far below, which would mean
    /// excessive charges.
    async fn check(&self, what: &str, bound: usize, sessions: usize) {
        settle().await;
        let grown = LIVE.get().wrapping_sub(self.before);
        let bound = bound + sessions * ALLOWANCE;
        println!("{what}: {grown} bytes, bound {bound}");
        assert!(grown <= bound + bound / 8, "{what}: {grown} bytes, more than {bound}");
        assert!(grown >= bound / 4 * 3, "{what}: {grown} bytes, far below {bound}");
    }
}

/// Lets the broker finish its work.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A client that uses little memory itself.
struct Client {
    stream: TcpStream,
}

impl Client {
    async fn connect(address: SocketAddr, connect: Connect) -> (Self, ReasonCode) {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nonblocking(true).expect("a socket");
        let mut client = Self { stream };
        client.send(&Packet::Connect(Box::new(connect))).await;
        match client.receive().await {
            Packet::ConnAck(connack) => (client, connack.reason),
            other => panic!("{other:?} instead of CONNACK"),
        }
    }

    async fn send(&mut self, packet: &Packet) {
        let mut out = WriteBuffer::new();
        packet.encode(ProtocolVersion::V5, &mut out);
        self.send_bytes(&out.to_bytes()).await;
    }

    async fn send_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn receive(&mut self) -> Packet {
        let mut decoder = Decoder::client(ProtocolVersion::V5, u32::MAX);
        let mut input = BytesMut::new();
        let mut part = [0; 512];
        loop {
            if let Decoded::Packet(packet) = decoder.decode(&mut input).expect("a legal packet") {
                assert!(input.is_empty(), "one packet at a time");
                return packet;
            }
            match self.stream.read(&mut part) {
                Ok(0) => panic!("closed"),
                Ok(count) => input.extend_from_slice(&part[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            tokio::task::yield_now().await;
        }
    }

    /// Whether the broker grants a subscription.
    async fn subscribe(&mut self, filter: &str) -> bool {
        let filter = TopicFilter::try_from(filter).expect("a filter");
        let subscription = Subscription { filter, options: SubscriptionOptions::default() };
        let subscribe = Subscribe {
            packet_id: PacketId::new(1).expect("not 0"),
            subscription_identifier: None,
            user_properties: Vec::new(),
            subscriptions: vec![subscription],
        };
        self.send(&Packet::Subscribe(subscribe)).await;
        match self.receive().await {
            Packet::SubAck(suback) => match suback.reasons[..] {
                [ReasonCode::Success] => true,
                [ReasonCode::QuotaExceeded] => false,
                ref other => panic!("{other:?}"),
            },
            other => panic!("{other:?} instead of SUBACK"),
        }
    }
}

fn text(text: &str) -> Text {
    Text::try_from(text.to_owned()).expect("a text")
}

/// Returns a CONNECT with a lasting session.
fn lasting(id: &str) -> Connect {
    let mut connect = Connect::new(ProtocolVersion::V5, text(id));
    connect.properties.session_expiry_interval = Some(3600);
    connect
}

#[tokio::test]
async fn short_filters_cost_no_more_than_the_bound() {
    let stage = Stage::new("").await;
    let clients = subscribed(&stage, |client, filter| format!("site/{client}/line/{filter:08}")).await;
    stage.check("exact filters of 20 bytes", LASTING_MAX + clients.len() * CLIENT_ALLOWANCE, clients.len()).await;
}

#[tokio::test]
async fn share_groups_cost_no_more_than_the_bound() {
    let stage = Stage::new("").await;
    let clients = subscribed(&stage, |client, filter| format!("$share/group-{filter:05}/site/{client}/jobs")).await;
    stage.check("share groups of one member", LASTING_MAX + clients.len() * CLIENT_ALLOWANCE, clients.len()).await;
}

/// Ten clients, each of which subscribes to as many filters as the broker grants, at most 10,000.
async fn subscribed(stage: &Stage, name: impl Fn(usize, usize) -> String) -> Vec<Client> {
    let mut clients = Vec::new();
    for number in 0..10 {
        let (mut client, reason) = stage.client(Connect::new(ProtocolVersion::V5, text(&number.to_string()))).await;
        assert_eq!(reason, ReasonCode::Success);
        let mut granted = 0;
        while granted < 10_000 && client.subscribe(&name(number, granted)).await {
            granted += 1;
        }
        clients.push(client);
    }
    clients
}

#[tokio::test]
async fn filters_of_many_levels_cost_no_more_than_the_bound() {
    let stage = Stage::new("").await;
    let mut clients = Vec::new();
    let (mut granted, mut refused) = (0, 0);
    for number in 0..10 {
        let (mut client, reason) = stage.client(Connect::new(ProtocolVersion::V5, text(&number.to_string()))).await;
        assert_eq!(reason, ReasonCode::Success);
        for filter in 0..100 {
            // No two filters have a level in common.
            let is_granted = client.subscribe(&format!("{number}-{filter}{}/+", "/a".repeat(125))).await;
            granted += usize::from(is_granted);
            refused += usize::from(!is_granted);
        }
        clients.push(client);
    }
    println!("{granted} granted, {refused} refused");
    assert!(granted > 0 && refused > 0);
    let bound = LASTING_MAX + clients.len() * CLIENT_ALLOWANCE;
    stage.check("filters of 127 levels", bound, clients.len()).await;
}

#[tokio::test]
async fn sessions_with_long_ids_cost_no_more_than_the_bound() {
    let stage = Stage::new("[sessions]\nclient_id_bytes_maximum = 65535").await;
    let mut sessions = 0;
    for number in 0..400 {
        let (_, reason) = stage.client(lasting(&format!("{number:060000}"))).await;
        match reason {
            ReasonCode::Success => sessions += 1,
            reason => assert_eq!(reason, ReasonCode::QuotaExceeded),
        }
    }
    println!("{sessions} sessions");
    assert!(sessions < 400);
    stage.check("sessions with ids of 60,000 bytes", LASTING_MAX, sessions).await;
    // A client with a session can still return to it.
    assert_eq!(stage.client(lasting(&format!("{:060000}", 0))).await.1, ReasonCode::Success);
}

#[tokio::test]
async fn wills_cost_no_more_than_the_bound() {
    let stage = Stage::new("").await;
    let (mut clients, mut refused) = (Vec::new(), 0);
    for number in 0..200 {
        let mut connect = lasting(&number.to_string());
        connect.will = Some(Will {
            qos: QoS::AtMostOnce,
            retain: false,
            topic: TopicName::try_from("will").expect("a topic"),
            payload: Bytes::from(vec![0; 60_000]),
            delay_interval: Some(600),
            properties: None,
        });
        let (client, reason) = stage.client(connect).await;
        match reason {
            // Half of the clients disconnect, and their Wills are delayed.
            ReasonCode::Success if number % 2 == 0 => clients.push(Some(client)),
            ReasonCode::Success => clients.push(None),
            reason => {
                assert_eq!(reason, ReasonCode::QuotaExceeded);
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    stage.check("Wills of 60,000 bytes", LASTING_MAX, clients.len()).await;
}

#[tokio::test]
async fn routes_cost_no_more_than_the_bound() {
    let stage = Stage::new("").await;
    let mut clients = Vec::new();
    for number in 0..120 {
        let (mut client, _) = stage.client(Connect::new(ProtocolVersion::V5, text(&number.to_string()))).await;
        for topic in 0..256 {
            let topic = TopicName::try_from(&format!("{number}/{topic:0>200}")[..]).expect("a topic");
            client.send(&Packet::Publish(Publish::new(topic, Bytes::new()))).await;
        }
        client.send(&Packet::PingReq(Default::default())).await;
        client.receive().await;
        clients.push(client);
    }
    stage.check("routes of 200 bytes", BYTES_MAX / 8, clients.len()).await;
}

#[tokio::test]
async fn plain_sessions_fit_their_allowance() {
    let stage = Stage::new("").await;
    let before = stage.before;
    for number in 0..3000 {
        let (mut client, reason) = stage.client(lasting(&format!("session-{number}"))).await;
        assert_eq!(reason, ReasonCode::Success, "session {number}");
        assert!(client.subscribe(&format!("devices/{number}/commands")).await);
    }
    settle().await;
    let each = LIVE.get().wrapping_sub(before) / 3000;
    println!("{each} bytes a session");
    assert!(each <= ALLOWANCE, "{each} bytes a session, more than its allowance");
}

#[tokio::test]
async fn partial_packets_cost_no_more_than_the_bound() {
    let stage = Stage::new("").await;
    let mut clients = Vec::new();
    for number in 0..40 {
        let connect = Connect { keep_alive: 0, ..Connect::new(ProtocolVersion::V5, text(&number.to_string())) };
        let (mut client, reason) = stage.client(connect).await;
        assert_eq!(reason, ReasonCode::Success);
        // The first half of a PUBLISH of 256 KiB, as far as the broker reads it.
        client.send_bytes(b"\x30\x80\x80\x10\x00\x01t\x00").await;
        let half = vec![0; 128 * 1024];
        for part in half.chunks(16 * 1024) {
            tokio::task::yield_now().await;
            if client.stream.write(part).is_err() {
                break; // the broker has stopped reading
            }
        }
        clients.push(client);
    }
    stage.check("halves of packets of 256 KiB", BYTES_MAX / 4, clients.len()).await;
}
