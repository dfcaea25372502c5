//! Against servers that this file makes, which fail as no real server does on demand.

mod real;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const DEADLINE: Duration = Duration::from_secs(1);

fn record(epoch: u64, leader: &str) -> StoredRecord {
    let follower = Some("b".to_owned());
    StoredRecord {
        epoch,
        leader: leader.to_owned(),
        follower,
        joiner: None,
        nonce: epoch << 40 | 7,
        leader_directory: 1 << 63,
        copy_directory: 0,
    }
}

fn client(endpoints: &[&str]) -> Etcd {
    let endpoints: Vec<_> = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
    Etcd::new(&endpoints, None, "test", DEADLINE).expect("valid endpoints")
}

/// Behaviour of a server at each request.
#[derive(Debug, Clone, Copy)]
enum Fake {
    /// Sends this status and body.
    Answers(&'static str, &'static str),
    /// Closes the connection.
    Closes,
    /// Keeps the connection, and is silent.
    Freezes,
}

/// Starts a server. Returns its URL and the number of its requests.
async fn fake(kind: Fake) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a client");
            tokio::spawn(serve(stream, kind, Arc::clone(&counter)));
        }
    });
    (url, requests)
}

async fn serve(mut stream: TcpStream, kind: Fake, requests: Arc<AtomicUsize>) {
    let mut unread = Vec::new();
    while stream.read_buf(&mut unread).await.is_ok_and(|read| read > 0) {
        // Requests end with the object that is their body.
        if !unread.ends_with(b"}") {
            continue;
        }
        unread.clear();
        requests.fetch_add(1, Ordering::SeqCst);
        match kind {
            Fake::Answers(status, body) => {
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.expect("the client reads");
            }
            Fake::Closes => return,
            Fake::Freezes => {}
        }
    }
}

/// URL of a port at which nothing listens.
fn nothing() -> String {
    let [port] = crate::cluster::etcd_server::free_ports().expect("a port");
    format!("http://127.0.0.1:{port}")
}

#[tokio::test]
async fn swap_without_answer_is_sent_to_no_other_server() {
    for kind in [Fake::Closes, Fake::Freezes, Fake::Answers("503 Unavailable", "{\"error\":\"no leader\"}")] {
        let ((first, asked), (second, others)) = (fake(kind).await, fake(DONE).await);
        let etcd = client(&[&first, &second]);
        assert!(matches!(etcd.swap(1, &record(2, "a")).await, Swapped::Unknown(_)), "{kind:?}");
        assert_eq!((asked.load(Ordering::SeqCst), others.load(Ordering::SeqCst)), (1, 0), "{kind:?}");
        // A further swap prefers the other server.
        assert_eq!(etcd.swap(1, &record(2, "a")).await, Swapped::Done);
    }
}

#[tokio::test]
async fn swap_passes_over_servers_that_refuse_connections() {
    let (second, asked) = fake(DONE).await;
    assert_eq!(client(&[&nothing(), &second]).swap(1, &record(2, "a")).await, Swapped::Done);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert!(matches!(client(&[&nothing()]).swap(1, &record(2, "a")).await, Swapped::Unknown(_)));
}

#[tokio::test]
async fn read_asks_another_server_when_one_is_silent() {
    let ((first, _), (second, asked)) = (fake(Fake::Freezes).await, fake(EMPTY).await);
    let etcd = client(&[&first, &second]);
    let begin = Instant::now();
    assert_eq!(etcd.read().await, Read::Absent);
    assert!(begin.elapsed() >= NEXT_AFTER);
    // The server that has answered is asked first from now on, over the same connection.
    assert_eq!(etcd.read().await, Read::Absent);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert!(matches!(client(&[&first]).read().await, Read::Unreachable(text) if text.ends_with("no answer in time")));
}

#[tokio::test]
async fn strange_answers_are_no_records() {
    let long = "{\"header\":{},\"kvs\":[]}".to_owned() + &" ".repeat(100 << 10);
    let long: &'static str = Box::leak(long.into_boxed_str());
    for (status, body) in [
        ("200 OK", "{}"),
        ("200 OK", "<html>"),
        ("404 Not Found", "{\"header\":{}}"),
        ("200 OK", long),
        // Only the epoch, an epoch that differs from the record's, and no JSON.
        ("200 OK", r#"{"header":{},"kvs":[{"key":"dGVuYmluL3Rlc3QvZXBvY2g=","value":"Mg=="}]}"#),
        (
            "200 OK",
            r#"{"header":{},"kvs":[{"key":"dGVuYmluL3Rlc3QvZXBvY2g=","value":"Mg=="},{"key":"dGVuYmluL3Rlc3QvcmVjb3Jk","value":"eyJlcG9jaCI6MSwibGVhZGVyIjoiYSIsIm5vbmNlIjoxfQ=="}]}"#,
        ),
        (
            "200 OK",
            r#"{"header":{},"kvs":[{"key":"dGVuYmluL3Rlc3QvZXBvY2g=","value":"Mg=="},{"key":"dGVuYmluL3Rlc3QvcmVjb3Jk","value":"eHk="}]}"#,
        ),
    ] {
        let (url, _) = fake(Fake::Answers(status, body)).await;
        assert!(matches!(client(&[&url]).read().await, Read::Unreachable(_)), "{status} {body:.100}");
    }
}

#[test]
fn endpoints_are_http_urls_with_a_port() {
    for right in ["http://127.0.0.1:2379", "http://etcd-1:2379/", "http://[::1]:2379"] {
        assert!(Etcd::new(&[right.to_owned()], None, "test", DEADLINE).is_ok(), "{right}");
    }
    for wrong in
        ["", "127.0.0.1:2379", "http://host", "http://:1", "http://host:99999", "https://host:1", "http://h/p:1"]
    {
        assert!(Etcd::new(&[wrong.to_owned()], None, "test", DEADLINE).is_err(), "{wrong}");
    }
    assert!(Etcd::new(&[], None, "test", DEADLINE).is_err());
}

const DONE: Fake = Fake::Answers("200 OK", "{\"header\":{},\"succeeded\":true}");
const EMPTY: Fake = Fake::Answers("200 OK", "{\"header\":{}}");
