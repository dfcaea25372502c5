use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::support::{DelayProxy, PATIENCE};

const DELAY: Duration = Duration::from_millis(20);
const JITTER: Duration = Duration::from_millis(10);

/// A server that answers with the same bytes.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it listens");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    address
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a socket of ours");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    stream
}

#[test]
fn proxy_delays_both_directions() {
    let proxy = DelayProxy::start(echo(), DELAY, JITTER);
    let mut client = connect(proxy.address());
    let mut least = Duration::MAX;
    for number in 0..10 {
        let sent = Instant::now();
        client.write_all(&[number]).expect("it reads");
        let mut answer = [0];
        client.read_exact(&mut answer).expect("it answers");
        assert_eq!(answer, [number]);
        assert!(sent.elapsed() >= 2 * DELAY, "{:?}", sent.elapsed());
        least = least.min(sent.elapsed());
    }
    assert!(least < 10 * DELAY, "{least:?}");
}

#[test]
fn proxy_keeps_order_and_passes_the_end_on() {
    let proxy = DelayProxy::start(echo(), DELAY, JITTER);
    let client = connect(proxy.address());
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|number| (number % 251) as u8).collect();
    let begun = Instant::now();
    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            for chunk in bytes.chunks(10_000) {
                (&client).write_all(chunk).expect("it reads");
            }
            client.shutdown(Shutdown::Write).expect("it is open");
        });
        let mut received = Vec::new();
        (&client).read_to_end(&mut received).expect("it ends");
        received
    });
    assert!(received == bytes, "{} of {} bytes", received.len(), bytes.len());
    assert!(begun.elapsed() < PATIENCE / 2, "200 chunks are on their way at the same time");
}

#[test]
fn proxy_without_target_closes() {
    let gone = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let proxy = DelayProxy::start(gone, DELAY, JITTER);
    assert_eq!(connect(proxy.address()).read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn connections_end_with_the_proxy() {
    let proxy = DelayProxy::start(echo(), DELAY, JITTER);
    let mut client = connect(proxy.address());
    client.write_all(&[1]).expect("it reads");
    client.read_exact(&mut [0]).expect("it answers");
    drop(proxy);
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
}
