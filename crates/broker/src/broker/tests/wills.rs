//! Wills in the store.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::Text;
use tenbin_session::SessionExpiry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::runtime::{self, Runtime};

use super::in_memory::{PEER, exchange};
use crate::lifecycle::{self, Beginning};
use crate::{Broker, Config};

const CONNACK_NEW: &[u8] = &[0x20, 2, 0, 0];
const CONNACK_PRESENT: &[u8] = &[0x20, 2, 1, 0];

fn runtime() -> Runtime {
    runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Starts a broker without background tasks: published Wills stay in the store until a flush.
async fn start(directory: &Path) -> Broker {
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let mut broker = Broker::builder().config(config).store(directory).start().await.unwrap();
    broker.jobs.shutdown().await;
    broker
}

/// Connects a client with a lasting session.
async fn heir(broker: &Broker, connack: &[u8]) -> DuplexStream {
    let (mut stream, other_end) = duplex(1024);
    broker.serve(other_end, PEER);
    exchange(&mut stream, b"\x10\x0d\0\x04MQTT\x04\0\0\0\0\x01h", connack).await;
    stream
}

/// Connects a client with a clean session and a Will of QoS 1.
async fn mortal(broker: &Broker, payload: u8) -> DuplexStream {
    let (mut stream, other_end) = duplex(1024);
    broker.serve(other_end, PEER);
    let mut connect = b"\x10\x13\0\x04MQTT\x04\x0e\0\0\0\x01m\0\x01t\0\x01".to_vec();
    connect.push(payload);
    exchange(&mut stream, &connect, CONNACK_NEW).await;
    stream
}

/// Ends a connection and waits for its end.
async fn cut(broker: &Broker, stream: DuplexStream) {
    let connections = broker.connections();
    drop(stream);
    while broker.connections() == connections {
        tokio::task::yield_now().await;
    }
}

#[test]
fn will_stays_on_disk_until_its_message_is_durable() {
    let directory = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let broker = start(directory.path()).await;
        let durable = broker.parts.shared.storage.durable.clone().unwrap();
        // Without a receiver that stores it, the Will waits for no commit.
        let stream = mortal(&broker, b'0').await;
        assert_eq!(durable.wills_on_disk(), 1);
        cut(&broker, stream).await;
        durable.wait_for_state();
        assert_eq!(durable.wills_on_disk(), 0);
        exchange(&mut heir(&broker, CONNACK_NEW).await, b"\x82\x06\0\x01\0\x01t\x01", &[0x90, 3, 0, 1, 1]).await;
        for (number, payload) in [(1, b'1'), (2, b'2')] {
            let stream = mortal(&broker, payload).await;
            cut(&broker, stream).await;
            durable.wait_for_state();
            assert_eq!(durable.wills_on_disk(), number, "a crash may have taken the message");
        }
        assert!(durable.flush(Duration::from_secs(60)));
        assert_eq!(durable.wills_on_disk(), 0);
    });
}

#[test]
fn published_will_precedes_next_will_after_restart() {
    let directory = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let broker = start(directory.path()).await;
        exchange(&mut heir(&broker, CONNACK_NEW).await, b"\x82\x06\0\x01\0\x01t\x01", &[0x90, 3, 0, 1, 1]).await;
        let stream = mortal(&broker, b'1').await;
        cut(&broker, stream).await;
        std::mem::forget(mortal(&broker, b'2').await);
        assert_eq!(broker.parts.shared.storage.durable.as_ref().unwrap().wills_on_disk(), 2);
    });
    runtime().block_on(async {
        let broker = start(directory.path()).await;
        let mut heir = heir(&broker, CONNACK_PRESENT).await;
        let mut came = Vec::new();
        for _ in 0..3 {
            let mut publish = [0; 8];
            heir.read_exact(&mut publish).await.unwrap();
            came.push(publish[7]);
        }
        assert_eq!(came, *b"112", "twice is better than never");
        assert!(broker.parts.shared.storage.durable.as_ref().unwrap().flush(Duration::from_secs(60)));
        assert_eq!(broker.parts.shared.storage.durable.as_ref().unwrap().wills_on_disk(), 0);
    });
}

/// A refused CONNECT has removed the stored delayed Will. The delay ends at the same time.
#[test]
fn will_is_stored_again_after_refused_connect() {
    let directory = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let mut broker = start(directory.path()).await;
        broker.long_ends.abort_all(); // no task publishes it
        let (shared, now) = (Arc::clone(&broker.parts.shared), Instant::now());
        let durable = shared.storage.durable.clone().unwrap();
        let (mut stream, other_end) = duplex(1024);
        broker.serve(other_end, PEER);
        let connect = b"\x10\x1f\0\x04MQTT\x05\x0e\0\0\x05\x11\0\0\x02\x58\0\x01m\x05\x18\0\0\x02\x58\0\x01t\0\x01x";
        stream.write_all(connect).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), 0x20);
        cut(&broker, stream).await;
        assert_eq!(durable.wills_on_disk(), 1);

        let mut lease = shared.sessions.registry.find(&Text::from_static("m")).unwrap().try_lease().unwrap();
        lease.state.will.as_mut().unwrap().due = now;
        let beginning = Beginning {
            clean_start: false,
            must_be_new: false,
            expiry: SessionExpiry::Never,
            will: None,
            arrived_at: now - HOUR,
        };
        lease.state.left_at = None;
        let begun = lifecycle::begin(&shared, &mut lease, &beginning, now).await;
        durable.wait_for_state();
        assert_eq!(durable.wills_on_disk(), 0, "a client that is back takes it away");
        lifecycle::refuse(&shared, lease, begun.interrupted, now).await;
        durable.wait_for_state();
        assert_eq!(durable.wills_on_disk(), 1);
    });
}

const HOUR: Duration = Duration::from_secs(3600);
