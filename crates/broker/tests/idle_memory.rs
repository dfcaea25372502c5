//! Memory that the broker allocates for an idle connection.
//!
//! ```text
//! cargo test -p tenbin-broker --test idle_memory -- --nocapture      # each allocation with its caller
//! ```

#![allow(clippy::print_stdout, reason = "tells where the bytes are")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use tenbin_broker::{Broker, Config};

/// Maximum bytes of an idle connection, with a small margin. Tables that grow rarely do not count: about 70 bytes in
/// the registry.
const BYTES_MAX: usize = 2_680;

thread_local! {
    /// Allocated bytes of this thread, the only one of broker and clients. `const` and without destructor, hence usable
    /// inside the allocator.
    static LIVE: Cell<usize> = const { Cell::new(0) };
    /// Whether allocations are recorded.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
    /// Live allocations by address, with size and backtrace.
    static PIECES: RefCell<BTreeMap<usize, (usize, Backtrace)>> = const { RefCell::new(BTreeMap::new()) };
}

struct Counting;

/// Runs `work`, which may allocate, if allocations are recorded.
fn if_watched(work: impl FnOnce(&mut BTreeMap<usize, (usize, Backtrace)>)) {
    if IS_WATCHED.replace(false) {
        PIECES.with_borrow_mut(work);
        IS_WATCHED.set(true);
    }
}

// SAFETY: every call is forwarded unchanged to `System`, which keeps the contract; counting touches no memory that the
// allocator manages.
#[allow(unsafe_code, reason = "a global allocator can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get().wrapping_add(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for `System`.
        let pointer = unsafe { System.alloc(layout) };
        if_watched(|pieces| drop(pieces.insert(pointer.addr(), (layout.size(), Backtrace::force_capture()))));
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().wrapping_sub(layout.size()));
        if_watched(|pieces| drop(pieces.remove(&pointer.addr())));
        // SAFETY: `pointer` came from `System` by way of `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[tokio::test]
async fn idle_connection_stays_within_its_byte_limit() {
    let config = Config::parse("listen = [\"127.0.0.1:0\"]\n").expect("a configuration");
    let broker = Broker::builder().config(config).start().await.expect("a free port");
    let address = broker.addresses()[0];
    let mut streams = Vec::with_capacity(1000);
    let mut grown = Vec::with_capacity(1000);
    for number in 0..200 {
        let before = LIVE.get();
        let stream = connect(address, number).await;
        grown.push(LIVE.get().wrapping_sub(before));
        streams.push(stream);
    }
    IS_WATCHED.set(true);
    streams.push(connect(address, 200).await);
    IS_WATCHED.set(false);
    for (size, trace) in PIECES.take().values() {
        println!("{size:>6}  {}", who_asked(&trace.to_string()));
    }
    // The median, because the first connection includes the thread's own memory and some include a table that grew.
    grown.sort_unstable();
    let bytes = grown[grown.len() / 2];
    println!("{bytes:>6}  in all");
    assert!(bytes > 1000 && bytes <= BYTES_MAX, "an idle connection takes {bytes} bytes, more than {BYTES_MAX}");
    assert_eq!(broker.connections(), streams.len());
}

/// Connects and pings like an idle client, and waits until the broker is idle. Allocates nothing itself.
async fn connect(address: SocketAddr, number: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_nonblocking(true).expect("a socket");
    // Version 5, Clean Start, 60 s Keep Alive, no properties, and a Client Identifier of 11 characters.
    stream.write_all(b"\x10\x18\0\x04MQTT\x05\x02\0\x3C\0\0\x0B").expect("room for a packet");
    write!(stream, "idle-{number:06}").expect("room for a packet");
    let connack = answer(&mut stream).await;
    assert_eq!((connack[0], connack[3]), (0x20, 0), "accepted");
    stream.write_all(b"\xC0\0").expect("room for a packet");
    assert_eq!(answer(&mut stream).await, b"\xD0\0");
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    stream
}

/// Reads the next packet, which is small.
async fn answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut packet = [0; 256];
    loop {
        match stream.read(&mut packet) {
            Ok(count) => return packet[..count].to_vec(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        tokio::task::yield_now().await;
    }
}

/// Returns the innermost function in a backtrace that belongs to this project or tokio.
fn who_asked(trace: &str) -> &str {
    let frames = trace.lines().filter_map(|line| Some(line.trim().split_once(": ")?.1));
    let mut foreign = frames.filter(|frame| ["tenbin_", "tokio::"].iter().any(|name| frame.contains(name)));
    foreign.next().unwrap_or("?")
}
