//! Two simultaneous connections of one client.

use std::num::NonZeroU32;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, ConnectProperties, Packet, ProtocolVersion, Text, WriteBuffer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::client::PATIENCE;
use super::in_memory::{PEER, exchange};
use crate::durable::{PageOf, QueueId, QueueKind};
use crate::{Broker, Config};

/// Sends the CONNECT of a client with a lasting session.
async fn comes(broker: &Broker, maximum_packet_size: Option<NonZeroU32>) -> DuplexStream {
    let (mut stream, other_end) = duplex(4096);
    broker.serve(other_end, PEER);
    let properties = ConnectProperties {
        session_expiry_interval: Some(u32::MAX),
        maximum_packet_size,
        ..ConnectProperties::default()
    };
    let connect = Connect::new(ProtocolVersion::V5, Text::from_static("client"));
    let mut out = WriteBuffer::new();
    let connect = Connect { clean_start: false, properties, ..connect };
    Packet::Connect(Box::new(connect)).encode(ProtocolVersion::V5, &mut out);
    stream.write_all(&out.to_bytes()).await.unwrap();
    stream
}

/// Reads a packet: its type, and its bytes after the length.
pub(super) async fn packet(stream: &mut DuplexStream) -> (u8, Vec<u8>) {
    let first = stream.read_u8().await.unwrap();
    let (mut length, mut shift) = (0, 0);
    loop {
        let byte = usize::from(stream.read_u8().await.unwrap());
        length |= (byte & 0x7F) << shift;
        shift += 7;
        if byte < 0x80 {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    (first >> 4, body)
}

/// Lets other tasks run until `is_so`.
pub(super) async fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn oversized_resend_is_dropped_despite_early_takeover() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let broker = Broker::builder().config(config).store(directory.path()).start().await.unwrap();
    let durable = broker.parts.shared.storage.durable.clone().unwrap();
    let mut client = comes(&broker, None).await;
    assert_eq!(packet(&mut client).await.0, 2, "CONNACK");
    exchange(&mut client, b"\x82\x07\0\x01\0\0\x01t\x01", b"\x90\x04\0\x01\0\x01").await;
    let (mut publisher, other_end) = duplex(4096);
    broker.serve(other_end, PEER);
    exchange(&mut publisher, b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01p", &[0x20, 2, 0, 0]).await;
    let large = [&b"\x32\xad\x02\0\x01t\0\x01"[..], &[b'x'; 296]].concat();
    exchange(&mut publisher, &large, &[0x40, 2, 0, 1]).await;
    assert_eq!(packet(&mut client).await.0, 3, "PUBLISH");
    drop(client);
    let session = broker.parts.shared.sessions.registry.find(&Text::from_static("client")).unwrap();
    let is_attached = || session.outbox.sample().is_some();
    until(|| broker.connections() == 1 && !is_attached()).await;
    exchange(&mut publisher, b"\x32\x06\0\x01t\0\x02x", &[0x40, 2, 0, 2]).await;
    // Blocks the reading thread until the returned sender is dropped.
    let hold_up = || {
        let (reading, held_up) = mpsc::sync_channel::<()>(0);
        durable.reader.page_for(
            PageOf {
                queue: QueueId(u64::MAX),
                kind: QueueKind::Group,
                ranges: std::sync::Arc::default(),
                bytes: 1,
                by_reference: None,
                with_expired: false,
            },
            move |_| {
                let _ = held_up.recv();
            },
        );
        reading
    };
    // The second connection arrives while the first waits for its page and holds the in-flight messages.
    let before_under_way = hold_up();
    let small = NonZeroU32::new(100);
    let mut first = comes(&broker, small).await;
    until(|| session.try_lease().is_none()).await;
    let reading = hold_up();
    drop(before_under_way);
    until(is_attached).await;
    let claims = session.claims();
    let mut second = comes(&broker, small).await;
    until(|| session.claims() > claims).await;
    drop(reading);
    assert_eq!(packet(&mut first).await.0, 2, "CONNACK");
    assert_eq!(packet(&mut first).await, (14, vec![0x8E]), "DISCONNECT: session taken over");
    assert_eq!(packet(&mut second).await.0, 2, "CONNACK");
    let (packet_type, publish) = packet(&mut second).await;
    assert_eq!(packet_type, 3, "PUBLISH");
    second.write_all(&[0x40, 2, publish[3], publish[4]]).await.unwrap();
    exchange(&mut second, &[0xC0, 0], &[0xD0, 0]).await;
    assert!(durable.flush(Duration::from_secs(60)));
    assert_eq!(durable.spool_stats().waiting, 0);
}
