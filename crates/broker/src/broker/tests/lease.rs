//! Brokers that may not act: before their lease begins, after it has ended, and when they are deposed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenbin_codec::Text;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::taken_over::until;
use crate::{Broker, Config, Events, Hooks, Lease, Publication};

/// Long enough for an answer that should not come.
const SILENCE: Duration = Duration::from_millis(300);

async fn start(lease: &Lease, directory: Option<&Path>) -> Broker {
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let builder = Broker::builder().config(config).lease(lease.clone());
    let builder = directory.into_iter().fold(builder, |builder, directory| builder.store(directory));
    builder.start().await.unwrap()
}

fn soon(seconds: u64) -> Duration {
    Lease::now() + Duration::from_secs(seconds)
}

struct Client(TcpStream);

impl Client {
    /// Sends CONNECT of MQTT 3.1.1. `flags`: 2 = clean session. `keep_alive`: seconds.
    async fn dial(broker: &Broker, id: u8, flags: u8, keep_alive: u8, will: &[u8]) -> Self {
        let mut client = Self(TcpStream::connect(broker.addresses()[0]).await.unwrap());
        let connect = [&[0x10, 13 + will.len() as u8], &b"\0\x04MQTT\x04"[..], &[flags, 0, keep_alive, 0, 1, id], will];
        client.send(&connect.concat()).await;
        client
    }

    async fn connect(broker: &Broker, id: u8, flags: u8) -> Self {
        let mut client = Self::dial(broker, id, flags, 0, b"").await;
        client.expect(&[0x20, 2, 0, 0]).await;
        client
    }

    /// Subscribes to `t` with QoS 1.
    async fn subscribe(&mut self) {
        self.send(b"\x82\x06\0\x01\0\x01t\x01").await;
        self.expect(&[0x90, 3, 0, 1, 1]).await;
    }

    async fn send(&mut self, packets: &[u8]) {
        self.0.write_all(packets).await.unwrap();
    }

    async fn expect(&mut self, packets: &[u8]) {
        let mut came = vec![0; packets.len()];
        timeout(Duration::from_secs(20), self.0.read_exact(&mut came)).await.expect("no answer").unwrap();
        assert_eq!(came, packets);
    }

    /// Receives [`PUBLISH`], with this first byte. Returns its Packet Identifier.
    async fn receive(&mut self, first: u8) -> u8 {
        let mut came = [0; 8];
        timeout(Duration::from_secs(20), self.0.read_exact(&mut came)).await.expect("no message").unwrap();
        let id = came[6];
        assert_eq!(came, [&[first, 6], &b"\0\x01t\0"[..], &[id], b"x"].concat()[..]);
        id
    }

    async fn expect_silence(&mut self) {
        let came = timeout(SILENCE, self.0.read_u8()).await;
        assert!(came.is_err(), "{came:?}");
    }
}

/// PUBLISH of QoS 1 to `t`.
const PUBLISH: &[u8] = b"\x32\x06\0\x01t\0\x07x";
const PUBACK: &[u8] = b"\x40\x02\0\x07";
/// As its first receiver gets it.
const DELIVERY: &[u8] = b"\x32\x06\0\x01t\0\x01x";
/// Will of QoS 1 to `t`, with the flags of CONNECT.
const WILL: &[u8] = b"\0\x01t\0\x01w";
const WILL_FLAGS: u8 = 0x0E;
const WILL_DELIVERY: &[u8] = b"\x32\x06\0\x01t\0\x01w";

#[tokio::test]
async fn c6_leader_without_lease_acknowledges_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let lease = Lease::not_begun();
    let broker = start(&lease, Some(directory.path())).await;
    let mut subscriber = Client::dial(&broker, b's', 0, 0, b"").await;
    subscriber.expect_silence().await;
    assert_eq!(broker.sessions(), 0);
    lease.extend(soon(60));
    subscriber.expect(&[0x20, 2, 0, 0]).await;
    subscriber.subscribe().await;
    let mut publisher = Client::connect(&broker, b'p', 2).await;
    // It ends by the clock, as for a process that was stopped.
    lease.extend(Lease::now() + Duration::from_millis(20));
    sleep(Duration::from_millis(30)).await;
    publisher.send(PUBLISH).await;
    publisher.expect_silence().await;
    subscriber.expect_silence().await;
    lease.extend(soon(60));
    publisher.expect(PUBACK).await;
    subscriber.expect(DELIVERY).await;
    lease.end();
    subscriber.send(b"\x40\x02\0\x01\xC0\0").await;
    let mut late = Client::dial(&broker, b'l', 2, 0, b"").await;
    late.expect_silence().await;
    subscriber.expect_silence().await;
    lease.extend_without_end();
    subscriber.expect(&[0xD0, 0]).await;
    late.expect(&[0x20, 2, 0, 0]).await;
    broker.shutdown().await;
}

#[tokio::test]
async fn will_and_session_end_wait_for_the_lease() {
    let lease = Lease::default();
    let broker = start(&lease, None).await;
    let mut subscriber = Client::connect(&broker, b's', 2).await;
    subscriber.subscribe().await;
    // MQTT 5.0: Session Expiry Interval and Will Delay Interval of one second.
    let connect = b"\x10\x1F\0\x04MQTT\x05\x0E\0\0\x05\x11\0\0\0\x01\0\x01m\x05\x18\0\0\0\x01\0\x01t\0\x01w";
    let mut mortal = Client(TcpStream::connect(broker.addresses()[0]).await.unwrap());
    mortal.send(connect).await;
    assert_eq!(mortal.0.read_u8().await.unwrap(), 0x20);
    let mut brother = Client::dial(&broker, b'b', WILL_FLAGS, 0, WILL).await;
    brother.expect(&[0x20, 2, 0, 0]).await;
    drop(mortal);
    until(|| broker.connections() == 2).await;
    lease.end();
    drop(brother);
    sleep(Duration::from_millis(1200)).await;
    subscriber.expect_silence().await;
    assert_eq!((broker.sessions(), broker.connections()), (3, 2));
    lease.extend(soon(60));
    subscriber.expect(WILL_DELIVERY).await;
    subscriber.send(b"\x40\x02\0\x01").await;
    subscriber.expect(b"\x32\x06\0\x01t\0\x02w").await;
    until(|| broker.sessions() == 1).await;
}

#[tokio::test]
async fn pause_does_not_end_clients_by_keep_alive() {
    let lease = Lease::default();
    let broker = start(&lease, None).await;
    let mut client = Client::dial(&broker, b'c', 2, 1, b"").await;
    client.expect(&[0x20, 2, 0, 0]).await;
    lease.end();
    sleep(Duration::from_millis(1800)).await;
    lease.extend(soon(60));
    sleep(Duration::from_millis(500)).await;
    client.send(&[0xC0, 0]).await;
    client.expect(&[0xD0, 0]).await;
    // The next silence ends it.
    let ended = timeout(Duration::from_secs(5), client.0.read_u8()).await.expect("it stays");
    assert!(ended.is_err());
}

#[tokio::test]
async fn connect_timeout_begins_with_the_lease() {
    let lease = Lease::not_begun();
    let config = Config::parse("listen = [\"127.0.0.1:0\"]\n[connections]\nconnect_timeout_ms = 100\n").unwrap();
    let broker = Broker::builder().config(config).lease(lease.clone()).start().await.unwrap();
    let mut client = Client::dial(&broker, b'c', 2, 0, b"").await;
    client.expect_silence().await;
    lease.extend(soon(60));
    client.expect(&[0x20, 2, 0, 0]).await;
}

#[derive(Clone, Default)]
struct Wills(Arc<AtomicUsize>);

impl Hooks for Wills {
    fn wants(&self) -> Events {
        Events::WILL_SENT
    }

    fn will_sent(&self, _: &Text, _: &Publication, _: usize) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn wills_of_the_last_run_wait_for_the_lease() {
    let directory = tempfile::tempdir().unwrap();
    let lease = Lease::default();
    let broker = start(&lease, Some(directory.path())).await;
    let mut subscriber = Client::connect(&broker, b's', 0).await;
    subscriber.subscribe().await;
    let mut mortal = Client::dial(&broker, b'm', WILL_FLAGS, 0, WILL).await;
    mortal.expect(&[0x20, 2, 0, 0]).await;
    assert!(broker.depose(BTreeMap::new()).await);

    let (lease, wills) = (Lease::not_begun(), Wills::default());
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let builder = Broker::builder().config(config).lease(lease.clone()).store(directory.path()).hooks(wills.clone());
    let broker = builder.start().await.unwrap();
    let mut subscriber = Client::dial(&broker, b's', 0, 0, b"").await;
    let mut mortal = Client::dial(&broker, b'm', WILL_FLAGS, 0, WILL).await;
    subscriber.expect_silence().await;
    assert_eq!(wills.0.load(Ordering::Relaxed), 0);
    lease.extend(soon(60));
    subscriber.expect(&[0x20, 2, 1, 0]).await;
    subscriber.expect(WILL_DELIVERY).await;
    mortal.expect(&[0x20, 2, 0, 0]).await;
    assert_eq!(wills.0.load(Ordering::Relaxed), 1);
    drop(mortal);
    subscriber.send(b"\x40\x02\0\x01").await;
    subscriber.expect(b"\x32\x06\0\x01t\0\x02w").await;
}

/// DISCONNECT 0x9C with a Server Reference.
const REFERRED: &[u8] = b"\xE0\x0B\x9C\x09\x1C\0\x06b:1883";

/// A connection of an operator who watches events.
#[cfg(feature = "admin")]
async fn watch(broker: &Broker) -> TcpStream {
    let url = broker.admin_url().unwrap();
    let mut stream = TcpStream::connect(url.trim_start_matches("http://").trim_end_matches('/')).await.unwrap();
    stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'H');
    stream
}

async fn deposed(threads: Option<usize>) {
    let directory = tempfile::tempdir().unwrap();
    let mut present = 0;
    for round in 0..3_u8 {
        let lease = Lease::not_begun();
        let mut config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
        config.admin.address = "127.0.0.1:0".to_owned();
        let builder = Broker::builder().config(config).lease(lease.clone()).store(directory.path());
        #[cfg(feature = "admin")]
        let builder = builder.admin(crate::Administration::default());
        let builder = threads.into_iter().fold(builder, |builder, threads| builder.threads(threads));
        let broker = builder.start().await.unwrap();
        lease.extend(soon(60));
        #[cfg(feature = "admin")]
        let _watcher = watch(&broker).await;
        let mut subscriber = Client::dial(&broker, b's', 0, 0, b"").await;
        subscriber.expect(&[0x20, 2, present, 0]).await;
        if present == 1 {
            let id = subscriber.receive(0x3A).await; // unacknowledged in the last round
            subscriber.send(&[0x40, 2, 0, id]).await;
        }
        subscriber.subscribe().await;
        let mut publisher = Client(TcpStream::connect(broker.addresses()[0]).await.unwrap());
        publisher.send(b"\x10\x0E\0\x04MQTT\x05\x02\0\0\0\0\x01p").await;
        assert_eq!(publisher.0.read_u8().await.unwrap(), 0x20);
        let mut connack = [0; 256];
        let length = usize::from(publisher.0.read_u8().await.unwrap());
        publisher.0.read_exact(&mut connack[..length]).await.unwrap();
        publisher.send(b"\x32\x07\0\x01t\0\x07\0x").await;
        publisher.expect(PUBACK).await;
        subscriber.receive(0x32).await;
        lease.end();
        // Not acknowledged, so that it may be lost.
        publisher.send(b"\x32\x07\0\x01t\0\x08\0y").await;
        let _waits = Client::dial(&broker, b'w', 2, 0, b"").await;
        sleep(Duration::from_millis(50)).await;
        let began = Instant::now();
        // Each client learns the port of the listener that it has used.
        let servers = [("127.0.0.1:0", "b:1883"), ("other", "b:8883")].map(|(name, to)| (name.into(), to.into()));
        assert!(broker.depose(servers.into()).await, "round {round}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        let free = tenbin_store::LockedDirectory::open(directory.path()).unwrap();
        assert!(began.elapsed() < Duration::from_secs(2));
        drop(free);
        publisher.expect(REFERRED).await;
        assert_eq!(publisher.0.read(&mut [0]).await.unwrap_or(0), 0);
        let rest = subscriber.0.read_u8().await;
        assert!(rest.is_err(), "{rest:?}");
        lease.extend_without_end();
        assert!(!lease.holds());
        present = 1;
    }
}

#[tokio::test]
async fn brokers_follow_each_other_on_one_directory() {
    deposed(None).await;
}

#[tokio::test]
async fn deposed_broker_with_threads_frees_the_directory() {
    deposed(Some(2)).await;
}

#[tokio::test]
async fn program_waits_for_the_lease_too() {
    let lease = Lease::not_begun();
    let broker = start(&lease, None).await;
    let handle = broker.handle().clone();
    let publish = move || {
        let handle = handle.clone();
        async move { handle.publish(Publication::new("t", "x").unwrap()).await }
    };
    assert!(timeout(SILENCE, publish()).await.is_err());
    lease.extend(soon(60));
    publish().await.unwrap();
    lease.end();
    let waits = tokio::spawn(publish());
    tokio::task::yield_now().await;
    assert!(broker.depose(BTreeMap::new()).await);
    assert!(waits.await.unwrap().is_err());
}
