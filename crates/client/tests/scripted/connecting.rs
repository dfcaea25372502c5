use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenbin_client::{
    Client, ClientErrorKind, ClientEvent, ClientOptions, DisconnectReason, OutgoingMessage, ProtocolVersion, QoS,
    ReasonCode, Reconnect, Transport,
};
use tenbin_codec::{ConnAck, Packet};
use tokio::io::BufStream;
use tokio::net::TcpStream;

use crate::script::{Server, next, next_message, topic, within};

#[tokio::test]
async fn a_refusal_names_reason_broker_and_client() {
    let server = Server::start().await;
    let mut refusal = ConnAck::new(false, ReasonCode::NotAuthorized);
    refusal.properties.reason_string = Some("not today".try_into().unwrap());
    let error = server.answer(server.options(), refusal).await.0.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::NotAuthorized));
    let text = error.to_string();
    for part in [server.address().as_str(), "c1", "0x87", "not today"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test]
async fn refusal_at_3_1_1_has_5_0_reason_code() {
    let server = Server::start().await;
    let options = server.options().version(ProtocolVersion::V311);
    let error = server.answer(options, ConnAck::new(false, ReasonCode::NotAuthorized)).await.0.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::NotAuthorized));
}

#[tokio::test]
async fn closed_port_error_names_its_address() {
    let address = Server::start().await.address(); // and closed again
    let error = within(Client::connect(ClientOptions::new(address.as_str(), "c1"))).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Unreachable(_)), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
}

#[tokio::test]
async fn invalid_address_and_options_are_errors() {
    let error = within(Client::connect(ClientOptions::new("no port", "c1"))).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Unreachable(_)), "{error}");
    let error = within(Client::connect(ClientOptions::new("b:1", "c\0"))).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Invalid(_)), "{error}");
}

#[tokio::test]
async fn mqtt_3_2_2_4_unexpected_old_session_ends_connection() {
    let server = Server::start().await;
    let error = server.answer(server.options(), ConnAck::new(true, ReasonCode::Success)).await.0.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Lost(DisconnectReason::UnknownSession)), "{error}");
}

#[tokio::test]
async fn first_packet_other_than_connack_is_an_error() {
    for bytes in [&b"\xD0\x00"[..], b"\xFF\xFF\xFF\xFF\xFF", b"\x20\x02\x00\x09", b"\x00", b""] {
        let server = Server::start().await;
        let (connected, ()) = tokio::join!(within(Client::connect(server.options())), async {
            let (mut peer, _) = server.accept().await;
            peer.send_bytes(bytes).await;
        });
        let error = connected.unwrap_err();
        assert!(matches!(error.kind(), ClientErrorKind::Lost(_)), "{bytes:?}: {error}");
    }
}

#[tokio::test]
async fn connect_packet_reflects_the_options() {
    let server = Server::start().await;
    let options = server
        .options()
        .keep_alive(Duration::from_secs(7))
        .session_expiry(Duration::from_secs(90))
        .receive_maximum(12)
        .credentials("user", "secret");
    let (connected, (_peer, connect)) = tokio::join!(Client::connect(options), server.welcome(false));
    connected.unwrap();
    assert!(connect.clean_start);
    assert_eq!(connect.keep_alive, 7);
    assert_eq!(connect.properties.session_expiry_interval, Some(90));
    assert_eq!(connect.properties.receive_maximum.map(u16::from), Some(12));
    assert_eq!(connect.user_name.unwrap(), "user");
    assert_eq!(connect.password, Some("secret".into()));
}

#[tokio::test]
async fn disconnect_ends_events_and_handles() {
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let server = Server::start().await;
        let (client, mut events, mut peer) = server.client(server.options().version(version)).await;
        let other = client.clone();
        let (done, ()) = tokio::join!(within(client.disconnect()), async {
            assert!(matches!(peer.receive().await, Packet::Disconnect(d) if d.reason == ReasonCode::Success));
            assert!(peer.try_receive().await.is_none());
            drop(peer);
        });
        done.unwrap();
        assert!(within(events.recv()).await.is_none());
        let error = within(other.disconnect()).await.unwrap_err();
        assert!(matches!(error.kind(), ClientErrorKind::Ended(None)), "{error}");
    }
}

#[tokio::test]
async fn dropping_the_last_handle_disconnects() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options()).await;
    drop(client);
    assert!(matches!(peer.receive().await, Packet::Disconnect(_)));
}

#[tokio::test]
async fn a_client_that_never_reconnects_ends_with_the_reason() {
    let server = Server::start().await;
    let (client, mut events, peer) = server.client(server.options().reconnect(Reconnect::Never)).await;
    drop(peer);
    assert!(matches!(next(&mut events).await, ClientEvent::Disconnected { .. }));
    assert!(within(events.recv()).await.is_none());
    let error = within(client.subscribe(vec![])).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Invalid(_)), "{error}");
    let error = within(client.disconnect()).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Ended(Some(_))), "{error}");
}

#[tokio::test]
async fn violation_by_broker_gets_disconnect_with_reason() {
    for (bytes, reason) in [
        (&b"\xC0\x00"[..], ReasonCode::ProtocolError), // PINGREQ
        (b"\x30\xFF\xFF\xFF\xFF\x01", ReasonCode::MalformedPacket),
        (b"\x30\x05\x00\x01#\x00x", ReasonCode::MalformedPacket),
        (b"\xF0\x00", ReasonCode::ProtocolError), // AUTH
    ] {
        let server = Server::start().await;
        let (_client, mut events, mut peer) = server.client(server.options().reconnect(Reconnect::Never)).await;
        peer.send_bytes(bytes).await;
        assert!(matches!(peer.receive().await, Packet::Disconnect(d) if d.reason == reason), "{bytes:?}");
        let event = next(&mut events).await;
        let ClientEvent::Disconnected { reason: DisconnectReason::Violation(_) } = event else { panic!("{event:?}") };
    }
}

/// A `BufStream` keeps written bytes until it is flushed, like TLS.
#[tokio::test]
async fn wrapped_streams_carry_all_packets_and_are_flushed() {
    let (server, made) = (Server::start().await, Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&made);
    let options = server.options().transport(Transport::tcp().over(move |stream| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok(BufStream::new(stream)) }
    }));
    let (client, mut events, peer) = server.client(options).await;
    drop(peer);
    let (mut peer, _) = server.welcome(false).await;
    assert!(matches!(next(&mut events).await, ClientEvent::Disconnected { .. }));
    assert!(matches!(next(&mut events).await, ClientEvent::Connected { .. }));
    assert_eq!(made.load(Ordering::Relaxed), 2);

    // One larger and one smaller than the stream's own buffer.
    for length in [100_000, 1] {
        let written = client.publish(OutgoingMessage::new(topic("t"), vec![7; length])).await.unwrap();
        assert_eq!(peer.receive_publish().await.payload.len(), length);
        within(written).await.unwrap();
        peer.publish(QoS::AtMostOnce, 0, false, &"x".repeat(length)).await;
        assert_eq!(next_message(&mut events).await.payload.len(), length);
    }
    let (done, ()) = tokio::join!(within(client.disconnect()), async {
        assert!(matches!(peer.receive().await, Packet::Disconnect(_)));
        assert!(peer.try_receive().await.is_none());
        drop(peer);
    });
    done.unwrap();
}

#[tokio::test]
async fn failed_stream_wrapper_is_reported() {
    let server = Server::start().await;
    let options = server
        .options()
        .transport(Transport::tcp().over(|_| async { Err::<TcpStream, _>(std::io::Error::other("no trust")) }));
    let error = within(Client::connect(options)).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Unreachable(_)), "{error}");
    assert!(error.to_string().contains("no trust"), "{error}");
}
