//! Checks that a run allocates nothing per message, neither for sending nor for receiving.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenbin_loadgen::run::{Audience, Broker, ConnectionOptions, Pace, Plan, Publishers, run_plan};

/// Allocations of all threads, as a driver's threads are its own.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on unchanged to `System`, which keeps the contract; counting touches no memory that the
// allocator manages.
#[allow(unsafe_code, reason = "a global allocator can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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

/// A broker for one subscriber and one publisher of MQTT 5.0 and QoS 0, which forwards bytes unchanged.
fn serve(listener: &TcpListener) -> std::io::Result<()> {
    let accept = || -> std::io::Result<TcpStream> {
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut [0; CONNECT_LEN])?;
        stream.write_all(b"\x20\x03\0\0\0")?;
        Ok(stream)
    };
    let mut subscriber = accept()?;
    subscriber.read_exact(&mut [0; SUBSCRIBE_LEN])?;
    subscriber.write_all(b"\x90\x04\0\x01\0\0")?;
    let mut publisher = accept()?;
    let mut bytes = [0; 65_536];
    loop {
        match publisher.read(&mut bytes)? {
            0 => return Ok(()),
            count => subscriber.write_all(&bytes[..count])?,
        }
    }
}

/// Number of allocations of a run with `messages` messages.
fn allocations_of(messages: u64, pace: Pace) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let publishers = Publishers { payload: 100, messages: Some(messages), pace, ..Publishers::new(1, "t") };
    let brokers = vec![Broker::new("pump", "127.0.0.1", port)];
    let plan = Plan {
        connection: ConnectionOptions::new("a"),
        ..Plan::new(7, brokers, publishers, vec![Audience::new("all", 1, "t")])
    };
    std::thread::scope(|scope| {
        // At the end the subscriber closes first, which ends the broker just as well.
        scope.spawn(|| serve(&listener));
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let outcome = run_plan(&plan).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((outcome.verdict.received, outcome.verdict.lost), (messages, 0));
        ALLOCATIONS.load(Ordering::Relaxed) - before
    })
}

#[test]
fn messages_add_no_allocations() {
    for pace in [Pace::Unlimited, Pace::Closed { window: 1000 }, Pace::Open { interval: Duration::from_micros(10) }] {
        let [few, many] = [20_000, 200_000].map(|messages| allocations_of(messages, pace));
        // Samples of the run, a hundred a second, allocate, and a longer run has more of them.
        let more = many.saturating_sub(few);
        assert!(more < 180_000 / 20, "{pace:?}: {few} and {many} allocations");
    }
}

/// Sizes of the packets that a driver with these names sends, in bytes.
const CONNECT_LEN: usize = 2 + 10 + 1 + 2 + "a-sub-0".len();
const SUBSCRIBE_LEN: usize = 2 + 2 + 1 + 2 + "t".len() + 1;
