use std::net::{Shutdown, SocketAddr};

use tokio::io::AsyncReadExt as _;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
/// Wait without progress after which a socket counts as full.
const FULL_AFTER: Duration = Duration::from_secs(1);

/// A relay with one listener, and a leader that the test plays.
struct Relayed {
    relay: Relay,
    address: SocketAddr,
    leader: TcpListener,
    /// Length of the PROXY header before each stream.
    header_bytes: usize,
    leads: watch::Sender<Option<String>>,
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a port")
}

impl Relayed {
    async fn start() -> Self {
        let (at, leader) = (listener().await, listener().await);
        let (address, leads_at) = (at.local_addr().expect("an address"), leader.local_addr().expect("an address"));
        let (leads, leader_address) = watch::channel(Some(leads_at.to_string()));
        let (_, copy) = watch::channel(None);
        let relay = Relay::start(vec![("tcp".into(), at)], Vec::new(), leader_address, copy, None, &Handle::current());
        let header_bytes = write_relay_header(address, address, "tcp", false).len();
        Self { relay, address, leader, header_bytes, leads }
    }

    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the relay listens")
    }

    /// The leader's end of the next stream, behind its header.
    async fn next(&self) -> (TcpStream, Vec<u8>) {
        let (mut stream, _) = timeout(PATIENCE, self.leader.accept()).await.expect("in time").expect("a stream");
        let mut header = vec![0; self.header_bytes];
        stream.read_exact(&mut header).await.expect("a header");
        (stream, header)
    }

    async fn pair(&self) -> (TcpStream, TcpStream) {
        (self.client().await, self.next().await.0)
    }

    /// Waits until `count` clients are connected.
    async fn open(&self, count: u64) {
        let wait = async {
            while self.relay.figures().open != count {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, wait).await.expect("in time");
    }
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.expect("the other side reads");
}

async fn receive(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    timeout(PATIENCE, stream.read_exact(&mut bytes)).await.expect("in time").expect("all bytes");
    bytes
}

async fn ends(stream: &mut TcpStream) -> bool {
    let read = timeout(PATIENCE, stream.read(&mut [0])).await.expect("in time");
    read.map_or(true, |read| read == 0)
}

#[tokio::test]
async fn stream_begins_with_the_clients_address() {
    let relayed = Relayed::start().await;
    let mut client = relayed.client().await;
    let (mut leader, header) = relayed.next().await;
    let own = client.local_addr().expect("an address");
    assert_eq!(header, write_relay_header(own, relayed.address, "tcp", false));
    send(&mut client, b"up").await;
    assert_eq!(receive(&mut leader, 2).await, b"up");
    send(&mut leader, b"down").await;
    assert_eq!(receive(&mut client, 4).await, b"down");
    drop(client);
    assert!(ends(&mut leader).await);
    drop(leader);
    relayed.open(0).await;
    assert_eq!(relayed.relay.figures(), RelayFigures { total: 1, bytes: 6, ..RelayFigures::default() });
}

#[tokio::test]
async fn half_closed_streams_go_on_the_other_way() {
    let relayed = Relayed::start().await;
    for client_first in [true, false] {
        let (client, leader) = relayed.pair().await;
        let (mut first, mut second) = if client_first { (client, leader) } else { (leader, client) };
        send(&mut first, b"last").await;
        first.shutdown().await.expect("it is open");
        assert_eq!(receive(&mut second, 4).await, b"last");
        assert!(ends(&mut second).await);
        send(&mut second, b"answer").await;
        assert_eq!(receive(&mut first, 6).await, b"answer");
        second.shutdown().await.expect("it is open");
        assert!(ends(&mut first).await);
        relayed.open(0).await;
    }
}

#[tokio::test]
async fn slow_reader_holds_its_sender_back_and_loses_nothing() {
    let relayed = Relayed::start().await;
    let (mut client, mut leader) = relayed.pair().await;
    let (mut fast, mut fast_leader) = relayed.pair().await;
    let block: Vec<u8> = (0..1_000_003_u32).map(|number| (number % 251) as u8).collect();
    let mut sent = 0;
    // The sender has to wait while nothing is read: no memory grows.
    while let Ok(written) = timeout(FULL_AFTER, client.write(&block[sent % block.len()..])).await {
        sent += written.expect("the relay reads");
        assert!(sent < 100 << 20, "the sender never waits");
    }
    send(&mut fast, b"other streams go on").await;
    receive(&mut fast_leader, 19).await;
    client.shutdown().await.expect("it is open");
    let mut received = 0;
    while received < sent {
        let bytes = receive(&mut leader, (sent - received).min(40_000)).await;
        for byte in bytes {
            assert_eq!(byte, block[received % block.len()]);
            received += 1;
        }
    }
    assert!(ends(&mut leader).await);
}

#[tokio::test]
async fn both_ways_are_full_and_go_on() {
    let relayed = Relayed::start().await;
    let (client, leader) = relayed.pair().await;
    const BYTES: usize = 20 << 20;
    let ends = [client, leader].map(|stream| {
        let (mut read, mut write) = stream.into_split();
        let writes = tokio::spawn(async move { write.write_all(&vec![7; BYTES]).await.map(|()| write) });
        tokio::spawn(async move {
            sleep(Duration::from_millis(300)).await;
            let mut bytes = vec![0; BYTES];
            read.read_exact(&mut bytes).await.expect("all bytes");
            writes.await.expect("no panic").expect("all bytes");
        })
    });
    for end in ends {
        timeout(PATIENCE, end).await.expect("in time").expect("no panic");
    }
    assert_eq!(relayed.relay.figures().bytes, 2 * BYTES as u64);
}

#[tokio::test]
async fn thousand_idle_clients_are_served() {
    tenbin_broker::raise_descriptor_limit().expect("4,000 descriptors");
    let relayed = Relayed::start().await;
    let mut pairs = Vec::new();
    for _ in 0..1000 {
        pairs.push(relayed.pair().await);
    }
    relayed.open(1000).await;
    for (number, (client, leader)) in pairs.iter_mut().enumerate() {
        let number = number.to_be_bytes();
        send(client, &number).await;
        assert_eq!(receive(leader, number.len()).await, number);
    }
    drop(pairs);
    relayed.open(0).await;
}

#[tokio::test]
async fn task_of_an_idle_client_is_small() {
    let relayed = Relayed::start().await;
    let (_client, leader) = relayed.pair().await;
    let bytes = size_of_val(&Arc::clone(&relayed.relay.shared).serve("tcp".into(), leader));
    assert!(bytes <= 656, "{bytes} bytes");
}

#[tokio::test]
async fn client_waits_for_a_leader_and_is_closed_without_one() {
    let relayed = Relayed::start().await;
    let now = relayed.leads.send_replace(None);
    relayed
        .relay
        .shared
        .target
        .subscribe()
        .wait_for(|target| *target == Target::Unknown)
        .await
        .expect("the relay runs");
    let mut early = relayed.client().await;
    send(&mut early, b"hello").await;
    sleep(Duration::from_millis(100)).await;
    // The address comes first, and the leader listens a moment later.
    let down = listener().await.local_addr().expect("an address");
    relayed.leads.send_replace(Some(down.to_string()));
    sleep(Duration::from_millis(100)).await;
    relayed.leads.send_replace(now);
    assert_eq!(receive(&mut relayed.next().await.0, 5).await, b"hello");
    relayed.leads.send_replace(None);
    relayed
        .relay
        .shared
        .target
        .subscribe()
        .wait_for(|target| *target == Target::Unknown)
        .await
        .expect("the relay runs");
    let begin = Instant::now();
    let mut late = relayed.client().await;
    assert!(ends(&mut late).await);
    assert!(begin.elapsed() >= Relay::LEADER_WITHIN);
    assert_eq!(relayed.relay.figures().refused, 1);
}

#[tokio::test]
async fn streams_end_when_another_node_leads() {
    let relayed = Relayed::start().await;
    let (mut client, mut leader) = relayed.pair().await;
    relayed.leads.send_replace(None);
    send(&mut client, b"1").await;
    receive(&mut leader, 1).await;
    let other = listener().await;
    relayed.leads.send_replace(Some(other.local_addr().expect("an address").to_string()));
    assert!(ends(&mut client).await);
    assert!(ends(&mut leader).await);
}

#[tokio::test]
async fn stop_ends_streams_and_keeps_the_sockets() {
    let relayed = Relayed::start().await;
    let (mut client, _leader) = relayed.pair().await;
    let Relayed { relay, address, .. } = relayed;
    let mut listeners = relay.stop().await;
    assert!(ends(&mut client).await);
    let mut late = TcpStream::connect(address).await.expect("the socket is open");
    let (name, listener) = listeners.pop().expect("one listener");
    assert_eq!(&*name, "tcp");
    let (mut accepted, _) = listener.accept().await.expect("the client that waited");
    send(&mut accepted, b"served").await;
    assert_eq!(receive(&mut late, 6).await, b"served");
}

#[tokio::test]
async fn reset_by_the_leader_ends_the_client() {
    let relayed = Relayed::start().await;
    let (mut client, leader) = relayed.pair().await;
    send(&mut client, b"unread").await;
    let leader = leader.into_std().expect("a socket");
    // Closing with unread bytes resets the connection.
    leader.peek(&mut [0]).ok();
    sleep(Duration::from_millis(50)).await;
    leader.shutdown(Shutdown::Write).expect("it is open");
    drop(leader);
    assert!(ends(&mut client).await);
    drop(client);
    relayed.open(0).await;
}
