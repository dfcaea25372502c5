//! Requests per processor second of the server: HTTP with keep-alive, HTTP with a connection per request, and MQTT QoS 1.
//!
//! ```sh
//! cargo bench -p tenbin-http-ingest --bench ingest
//! ```
//!
//! Broker and server are a separate process, and its processor time counts. The three take turns, with 20 clients each
//! that publish 255 bytes and wait for the acknowledgement.
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tenbin_broker::{Broker, Config};
use tenbin_client::{Client, ClientOptions, OutgoingMessage, QoS, TopicName};
use tenbin_http_ingest::{Server, Settings, Upstream};

const CLIENTS: usize = 20;
const PAYLOAD: [u8; 255] = [b'x'; 255];
const TIME: Duration = Duration::from_secs(4);
const ROUNDS: usize = 3;
/// Argument with which the bench starts itself as the server.
const SERVE: &str = "serve";

type Mode = (&'static str, fn(usize, [SocketAddr; 2], Instant) -> u64);

const MODES: [Mode; 3] = [
    ("MQTT QoS 1", publish_by_mqtt),
    ("HTTP, keep-alive", publish_by_one_connection),
    ("HTTP, a connection per request", publish_by_many_connections),
];

fn main() {
    if std::env::args().any(|argument| argument == SERVE) {
        return serve();
    }
    let (mut server, addresses) = start();
    println!("requests per processor second of the server ({CLIENTS} clients, 255 bytes, QoS 1), and per second");
    for round in 1..=ROUNDS {
        let mut first = None;
        for (name, publish) in MODES {
            let (before, begun) = (processor_time(server.id()), Instant::now());
            let end = begun + TIME;
            let count: u64 = thread::scope(|scope| {
                let clients: Vec<_> =
                    (0..CLIENTS).map(|number| scope.spawn(move || publish(number, addresses, end))).collect();
                clients.into_iter().map(|client| client.join().expect("published")).sum()
            });
            let used = processor_time(server.id()) - before;
            let rate = count as f64 / used;
            let ratio = rate / *first.get_or_insert(rate);
            let each = count as f64 / begun.elapsed().as_secs_f64();
            println!("{round}  {name:32}{rate:>10.0}{each:>10.0}   {ratio:.2} of MQTT");
        }
    }
    drop(server.stdin.take()); // Ends it.
    server.wait().expect("it ends");
}

/// Starts the server process; its addresses of MQTT and HTTP.
fn start() -> (Child, [SocketAddr; 2]) {
    let program = std::env::current_exe().expect("a path");
    let mut command = Command::new(program);
    let mut server = command.arg(SERVE).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines();
    let addresses = [(); 2].map(|()| lines.next().expect("a line").expect("text").parse().expect("an address"));
    (server, addresses)
}

/// Serves until the end of standard input.
fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let config = Config::parse("listen = [\"127.0.0.1:0\"]").expect("legal");
        let broker = Broker::builder().config(config).threads(2).start().await.expect("a free port");
        let broker = Arc::new(broker);
        let serving = Arc::downgrade(&broker);
        let upstream = Upstream::memory(move |stream, client| {
            if let Some(broker) = serving.upgrade() {
                broker.serve(stream, client);
            }
        });
        let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let settings = Settings { threads: 2, ..Settings::default() };
        let server = Server::start(socket, settings, upstream).expect("started");
        println!("{}\n{}", broker.addresses()[0], server.address());
        let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
    });
}

/// Processor time of a process, in seconds.
fn processor_time(id: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("Linux");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    ticks as f64 / 100.0
}

fn publish_by_mqtt(number: usize, [broker, _]: [SocketAddr; 2], end: Instant) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let options = ClientOptions::new(broker.to_string(), format!("client-{number}"));
        let (client, _events) = Client::connect(options).await.expect("connected");
        let topic = TopicName::try_from(format!("bench/{number}").as_str()).expect("legal");
        let mut count = 0;
        while Instant::now() < end {
            let message = OutgoingMessage::new(topic.clone(), &PAYLOAD[..]).at(QoS::AtLeastOnce);
            let reason = client.publish(message).await.expect("connected").await.expect("acknowledged");
            assert!(!reason.is_error(), "{reason}");
            count += 1;
        }
        count
    })
}

fn publish_by_one_connection(number: usize, [_, http]: [SocketAddr; 2], end: Instant) -> u64 {
    let request = request(number, "");
    let mut stream = connect(http);
    let mut count = 0;
    while Instant::now() < end {
        exchange(&mut stream, &request);
        count += 1;
    }
    count
}

fn publish_by_many_connections(number: usize, [_, http]: [SocketAddr; 2], end: Instant) -> u64 {
    let request = request(number, "Connection: close\r\n");
    let mut count = 0;
    while Instant::now() < end {
        exchange(&mut connect(http), &request);
        count += 1;
    }
    count
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    stream
}

fn request(number: usize, headers: &str) -> Vec<u8> {
    let length = PAYLOAD.len();
    let head =
        format!("POST /topics/bench/{number}?qos=1 HTTP/1.1\r\nHost: b\r\n{headers}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), &PAYLOAD].concat()
}

fn exchange(stream: &mut TcpStream, request: &[u8]) {
    stream.write_all(request).expect("sent");
    let (mut answer, mut length) = ([0; 1024], 0);
    while !answer[..length].ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut answer[length..]).expect("an answer");
        assert!(count > 0, "closed");
        length += count;
    }
    assert!(answer.starts_with(b"HTTP/1.1 204 "), "{}", String::from_utf8_lossy(&answer[..length]));
}
