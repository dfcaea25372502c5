//! A message needs no separate allocation between sockets: buffers of a burst are reused for the next one.
//!
//! The remaining allocations are blocks of encoded packets, each shared by many messages.

#![allow(clippy::print_stdout, reason = "tells what it has counted")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use tenbin_broker::{Broker, Config};

thread_local! {
    /// Allocations of this thread, the only one of broker and clients. `const` and without destructor, hence usable
    /// inside the allocator.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded unchanged to `System`, which keeps the contract; counting touches no memory that the
// allocator manages.
#[allow(unsafe_code, reason = "a global allocator can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` by way of `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Without timed work: `$SYS`, and the recorded decisions for `tenbin explain`.
const CONFIG: &str = "listen = [\"127.0.0.1:0\"]\n[sys]\ninterval_seconds = 0\n[explain]\ndecisions_maximum = 0\n\
                      pause_ms = 60000\n";
/// Messages that are published in one write.
const BURST: usize = 20;
const BURSTS: usize = 500;
/// Bytes of a PUBLISH at QoS 0: a topic of one character, no properties, 100 bytes of payload. QoS 1 has two bytes
/// more.
const PACKET: usize = 106;

#[tokio::test]
async fn qos_0_bursts_allocate_almost_nothing() {
    for filter in ["t", "$share/g/t"] {
        let taken = allocations(0, filter, BURST).await;
        assert!(taken < BURST * BURSTS / 500, "{filter}: {taken} times for {} messages", BURST * BURSTS);
    }
}

#[tokio::test]
async fn qos_1_messages_share_encoding_blocks() {
    for filter in ["t", "$share/g/t"] {
        let taken = allocations(1, filter, BURST).await;
        assert!(taken < BURST * BURSTS / 50, "{filter}: {taken} times for {} messages", BURST * BURSTS);
    }
}

#[tokio::test]
async fn single_messages_allocate_almost_nothing() {
    for (qos, filter) in [(0, "t"), (1, "t"), (0, "$share/g/t"), (1, "$share/g/t")] {
        let taken = allocations(qos, filter, 1).await;
        assert!(taken < BURSTS / 50, "QoS {qos}, {filter}: {taken} times for {BURSTS} messages");
    }
}

/// Counts the allocations while bursts of `burst` messages go from one client to another.
async fn allocations(qos: u8, filter: &str, burst: usize) -> usize {
    let config = Config::parse(CONFIG).expect("a configuration");
    let broker = Broker::builder().config(config).start().await.expect("a free port");
    let address = broker.addresses()[0];
    let (mut publisher, mut subscriber) = (connect(address, b'p').await, connect(address, b's').await);
    let mut subscribe = vec![0x82, (6 + filter.len()) as u8, 0, 1, 0, 0, filter.len() as u8];
    subscribe.extend_from_slice(filter.as_bytes());
    subscribe.push(qos);
    subscriber.write_all(&subscribe).expect("room for a packet");
    read(&mut subscriber, 6).await;
    let mut before = 0;
    for round in 0..2 * BURSTS {
        if round == BURSTS {
            before = ALLOCATIONS.get();
        }
        send_burst(&mut publisher, &mut subscriber, qos, burst).await;
    }
    let taken = ALLOCATIONS.get() - before;
    println!("QoS {qos}, {filter}, {burst} at a time: {taken} times for {} messages", burst * BURSTS);
    taken
}

/// Sends one burst and waits for it. Allocates nothing itself.
async fn send_burst(publisher: &mut TcpStream, subscriber: &mut TcpStream, qos: u8, burst: usize) {
    let (mut packets, mut acks) = ([0; BURST * (PACKET + 2)], [0; BURST * 4]);
    let size = PACKET + 2 * usize::from(qos);
    for (index, (packet, ack)) in packets.chunks_mut(size).zip(acks.chunks_mut(4)).enumerate().take(burst) {
        packet[..5].copy_from_slice(&[0x30 | qos << 1, (size - 2) as u8, 0, 1, b't']);
        if qos == 1 {
            packet[6] = index as u8 + 1; // Packet Identifier
        }
        ack.copy_from_slice(&[0x40, 2, 0, index as u8 + 1]);
    }
    publisher.write_all(&packets[..burst * size]).expect("room for a burst");
    let received = read(subscriber, burst * size).await;
    assert_eq!(received[..2], packets[..2], "the same, but for its Packet Identifier");
    if qos == 1 {
        for (packet, ack) in received.chunks(size).zip(acks.chunks_mut(4)).take(burst) {
            ack[2..].copy_from_slice(&packet[5..7]);
        }
        subscriber.write_all(&acks[..burst * 4]).expect("room for acknowledgements");
        read_acks(publisher, burst).await;
    }
}

async fn connect(address: SocketAddr, name: u8) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_nonblocking(true).expect("a socket");
    // Version 5, Clean Start, no Keep Alive, no properties, and a Client Identifier of one character.
    stream.write_all(b"\x10\x0E\0\x04MQTT\x05\x02\0\0\0\0\x01").expect("room for a packet");
    stream.write_all(&[name]).expect("room for a packet");
    let mut first = [0; 4];
    read_into(&mut stream, &mut first).await;
    assert_eq!((first[0], first[3]), (0x20, 0), "accepted");
    let mut rest = [0; 128];
    read_into(&mut stream, &mut rest[..usize::from(first[1]) - 2]).await;
    stream
}

async fn read(stream: &mut TcpStream, count: usize) -> [u8; BURST * (PACKET + 2)] {
    let mut bytes = [0; BURST * (PACKET + 2)];
    read_into(stream, &mut bytes[..count]).await;
    bytes
}

/// Reads PUBACKs without a Reason Code, since each message has a subscriber.
async fn read_acks(stream: &mut TcpStream, count: usize) {
    let mut acks = [0; BURST * 4];
    read_into(stream, &mut acks[..count * 4]).await;
    assert!(acks[..count * 4].chunks(4).all(|ack| ack[..2] == [0x40, 2]), "{acks:?}");
}

async fn read_into(stream: &mut TcpStream, bytes: &mut [u8]) {
    let mut have = 0;
    while have < bytes.len() {
        match stream.read(&mut bytes[have..]) {
            Ok(0) => panic!("the broker has closed the connection"),
            Ok(count) => have += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        tokio::task::yield_now().await;
    }
}
