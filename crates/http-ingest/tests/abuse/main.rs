//! Peers that are slow, silent or greedy: memory and time stay bounded, and others are served.
//!
//! The tests run one after the other, since they measure the memory of their process. `--nocapture` shows the figures.
#![allow(clippy::print_stdout, reason = "figures of a test")]

#[allow(dead_code, reason = "shared with the other tests")]
#[path = "../ingest/broker.rs"]
mod broker;
#[allow(dead_code, reason = "shared with the other tests")]
#[path = "../ingest/http.rs"]
mod http;

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use broker::Tested;
use http::Http;
use tenbin_http_ingest::Settings;

const MIB: usize = 1 << 20;

static ALONE: Mutex<()> = Mutex::new(());

/// Lets no other test run until the guard is dropped.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn impatient() -> Tested {
    let settings = Settings { request_time: Duration::from_secs(5), ..Settings::default() };
    Tested::start("listen = [\"127.0.0.1:0\"]", settings)
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") * 1024
}

#[track_caller]
fn grew_at_most(before: usize, maximum: usize) {
    let grown = resident().saturating_sub(before);
    println!("resident memory grew by {} KiB", grown / 1024);
    assert!(grown <= maximum, "resident memory grew by {} KiB", grown / 1024);
}

#[test]
fn thousand_silent_connections_cost_little() {
    let _alone = alone();
    tenbin_broker::raise_descriptor_limit().expect("raised");
    let tested = impatient();
    assert_eq!(tested.http().post("/topics/a", "", b"x").status, 204);
    let before = resident();
    let mut silent: Vec<_> = (0..1000).map(|_| tested.http()).collect();
    assert_eq!(tested.http().post("/topics/a", "", b"x").status, 204);
    grew_at_most(before, 24 * MIB);
    silent.iter_mut().for_each(Http::wait_for_close);
}

#[test]
fn thousand_idle_clients_cost_little() {
    let _alone = alone();
    tenbin_broker::raise_descriptor_limit().expect("raised");
    let settings = Settings { request_time: broker::PATIENCE, ..Settings::default() };
    let tested = Tested::start("listen = [\"127.0.0.1:0\"]", settings);
    assert_eq!(tested.http().post("/topics/a", "", b"x").status, 204);
    let before = resident();
    let mut idle: Vec<_> = (0..1000).map(|_| tested.http()).collect();
    for http in &mut idle {
        assert_eq!(http.post("/topics/a", "", b"x").status, 204);
    }
    grew_at_most(before, 48 * MIB);
    assert_eq!(tested.broker.sessions(), 1000);
}

#[test]
fn dripped_head_is_cut_off() {
    let _alone = alone();
    let tested = impatient();
    let mut drips: Vec<_> = (0..20).map(|_| tested.http()).collect();
    let begun = Instant::now();
    let head = b"POST /topics/a HTTP/1.1\r\nHost: b\r\nX-Slow: ".iter().chain(std::iter::repeat(&b'x'));
    for byte in head {
        drips.retain_mut(|http| http.stream.write_all(&[*byte]).is_ok());
        assert_eq!(tested.http().post("/topics/a", "", b"x").status, 204);
        if drips.is_empty() {
            break;
        }
        assert!(begun.elapsed() < broker::PATIENCE, "{} are open", drips.len());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn unfinished_bodies_share_bounded_memory() {
    let _alone = alone();
    let settings = Settings { address_bytes_maximum: 16 * MIB, ..Settings::default() };
    let tested = Tested::start("listen = [\"127.0.0.1:0\"]", settings);
    assert_eq!(tested.http().post("/topics/a", "", &vec![b'x'; MIB]).status, 204);
    let before = resident();
    let part = vec![b'x'; 3 * MIB];
    let mut open: Vec<Http> = (0..32).map(|_| tested.http()).collect();
    for http in &mut open {
        http.send("POST /topics/a HTTP/1.1\r\nHost: b\r\nContent-Length: 4000000\r\n\r\n");
        // A refused connection may be closed before all of it is sent.
        let _ = http.stream.write_all(&part);
        http.stream.set_nonblocking(true).expect("a socket");
    }
    // At most five of them fit.
    let is_waiting =
        |http: &Http| matches!(http.stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
    let deadline = Instant::now() + broker::PATIENCE;
    while open.iter().filter(|http| is_waiting(http)).count() > 5 {
        assert!(Instant::now() < deadline, "too few are refused");
        std::thread::yield_now();
    }
    grew_at_most(before, 64 * MIB);
    assert_eq!(tested.http().post("/topics/a", "", b"x").status, 204, "small ones have room");
    drop(open);
    let deadline = Instant::now() + broker::PATIENCE;
    while tested.http().post("/topics/a", "", &part).status != 204 {
        assert!(Instant::now() < deadline, "the memory is not free again");
    }
}

#[test]
fn endless_body_is_refused_at_its_bound() {
    let _alone = alone();
    let tested = Tested::open();
    let before = resident();
    let mut http = tested.http();
    http.send("POST /topics/a HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = [&b"10000\r\n"[..], &[b'x'; 0x10000], b"\r\n"].concat();
    while http.stream.write_all(&chunk).is_ok() {}
    grew_at_most(before, 32 * MIB);
    assert_eq!(tested.http().post("/topics/a", "", b"x").status, 204);
}

/// A chunk takes more memory than its byte, unless it is copied.
#[test]
fn body_of_tiny_chunks_takes_no_more_memory() {
    let _alone = alone();
    let tested = Tested::open();
    let before = resident();
    let mut http = tested.http();
    http.send("POST /topics/a HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n");
    http.send(b"1\r\nx\r\n".repeat(MIB));
    grew_at_most(before, 32 * MIB);
    http.send("0\r\n\r\n");
    assert_eq!(http.receive().status, 204);
}

#[test]
fn pipelines_that_are_not_read_are_cut_off() {
    let _alone = alone();
    let tested = impatient();
    let body = vec![b'x'; 3 * MIB];
    assert_eq!(tested.http().post("/topics/big?retain=true", "", &body).status, 204);
    assert_eq!(tested.http().get("/topics/big").status, 200);
    let before = resident();
    let requests = "GET /topics/big HTTP/1.1\r\nHost: b\r\n\r\n".repeat(100);
    let mut readers: Vec<_> = (0..8).map(|_| tested.http()).collect();
    readers.iter_mut().for_each(|http| http.send(&requests));
    let mut writers: Vec<_> = (0..8).map(|_| tested.http()).collect();
    let request = "POST /topics/a?qos=0 HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\n\r\nx".repeat(1000);
    std::thread::scope(|scope| {
        for http in &mut writers {
            let request = &request;
            // The server stops reading, and closes the connection in the end.
            scope.spawn(move || while http.stream.write_all(request.as_bytes()).is_ok() {});
        }
        for _ in 0..50 {
            assert_eq!(tested.http().post("/topics/a", "", b"x").status, 204);
        }
    });
    grew_at_most(before, 96 * MIB);
    // A close is seen by a write, as the answers are not read.
    let deadline = Instant::now() + broker::PATIENCE;
    while readers.iter_mut().any(|http| http.stream.write_all(b"\r\n").is_ok()) {
        assert!(Instant::now() < deadline, "the connections are open");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn slowly_read_answer_is_cut_off() {
    let _alone = alone();
    let tested = impatient();
    let body = vec![b'x'; 4 * MIB - 1024];
    assert_eq!(tested.http().post("/topics/big?retain=true", "", &body).status, 204);
    let mut http = tested.http();
    // Else the buffers of the system may have room for all of it.
    socket2::SockRef::from(&http.stream).set_recv_buffer_size(16 * 1024).expect("set");
    http.send("GET /topics/big HTTP/1.1\r\nHost: b\r\n\r\n");
    let (begun, mut total, mut buffer) = (Instant::now(), 0, [0; 1024]);
    while let Ok(count @ 1..) = http.stream.read(&mut buffer) {
        total += count;
        assert!(begun.elapsed() < broker::PATIENCE && total < body.len(), "the answer was sent: {total} bytes");
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("cut off after {:?} and {total} bytes", begun.elapsed());
}
