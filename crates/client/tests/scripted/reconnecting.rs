use std::time::{Duration, Instant};

use tenbin_client::{
    Client, ClientErrorKind, ClientEvent, DisconnectReason, Events, OutgoingMessage, ProtocolVersion, QoS, ReasonCode,
};
use tenbin_codec::{ConnAck, Disconnect, Packet};

use crate::script::{Server, ack, next, topic, within};
use crate::subscribing::{answer_subscribe, subscribe, subscription};

const MINUTE: Duration = Duration::from_secs(60);

fn message(text: &'static str, qos: QoS) -> OutgoingMessage {
    OutgoingMessage::new(topic("t"), text).at(qos)
}

async fn reconnected(events: &mut Events) -> bool {
    assert!(matches!(next(events).await, ClientEvent::Disconnected { .. }));
    match next(events).await {
        ClientEvent::Connected { session_present } => session_present,
        event => panic!("not connected: {event:?}"),
    }
}

#[tokio::test]
async fn mqtt_4_4_0_1_resumed_session_gets_all_messages_with_dup() {
    let server = Server::start().await;
    let (client, mut events, mut peer) = server.client(server.options().session_expiry(MINUTE)).await;
    subscribe(&client, &mut peer, "a").await;
    let first = client.publish(message("1", QoS::AtLeastOnce)).await.unwrap();
    let second = client.publish(message("2", QoS::ExactlyOnce)).await.unwrap();
    let first_id = peer.receive_publish().await.packet_id;
    let second_id = peer.receive_publish().await.packet_id.unwrap();
    peer.send(Packet::PubRec(ack(second_id.get()))).await;
    assert!(matches!(peer.receive().await, Packet::PubRel(_)));
    drop(peer);

    let (mut peer, connect) = server.welcome(true).await;
    assert!(!connect.clean_start, "it goes on with the session");
    assert_eq!(peer.receive().await, Packet::PubRel(ack(second_id.get())));
    let again = peer.receive_publish().await;
    assert_eq!((again.dup, again.packet_id, &again.payload[..]), (true, first_id, &b"1"[..]));
    peer.send(Packet::PubAck(ack(first_id.unwrap().get()))).await;
    peer.send(Packet::PubComp(ack(second_id.get()))).await;
    assert_eq!(within(first).await.unwrap(), ReasonCode::Success);
    assert_eq!(within(second).await.unwrap(), ReasonCode::Success);
    assert!(reconnected(&mut events).await);
    // The broker has the subscription, so the next packet is the next request.
    client.publish(message("next", QoS::AtMostOnce)).await.unwrap();
    assert_eq!(&peer.receive_publish().await.payload[..], b"next");
}

#[tokio::test]
async fn session_lost_by_broker_is_restored() {
    let server = Server::start().await;
    let (client, mut events, mut peer) = server.client(server.options().session_expiry(MINUTE)).await;
    subscribe(&client, &mut peer, "a").await;
    subscribe(&client, &mut peer, "b").await;
    subscribe(&client, &mut peer, "a").await; // Replaces the first one.
    let texts = ["1", "2", "3", "4"];
    let mut tickets = Vec::new();
    for text in texts {
        let qos = if text == "2" { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        tickets.push(client.publish(message(text, qos)).await.unwrap());
    }
    let mut ids = Vec::new();
    for _ in texts {
        ids.push(peer.receive_publish().await.packet_id.unwrap().get());
    }
    peer.send(Packet::PubRec(ack(ids[1]))).await;
    assert!(matches!(peer.receive().await, Packet::PubRel(_)));
    drop(peer);

    let (mut peer, _) = server.welcome(false).await;
    let granted = vec![ReasonCode::NotAuthorized, ReasonCode::GrantedQoS1];
    assert_eq!(answer_subscribe(&mut peer, granted).await, ["a", "b"]);
    for text in ["1", "3", "4"] {
        let again = peer.receive_publish().await;
        assert_eq!((again.dup, &again.payload[..]), (false, text.as_bytes()), "anew, in order");
        peer.send(Packet::PubAck(ack(again.packet_id.unwrap().get()))).await;
    }
    for ticket in tickets {
        // The broker already had the second message; sending it again would duplicate it.
        assert_eq!(within(ticket).await.unwrap(), ReasonCode::Success);
    }
    assert!(!reconnected(&mut events).await);
    let event = next(&mut events).await;
    let ClientEvent::SubscriptionLost { filter, reason } = event else { panic!("{event:?}") };
    assert_eq!((filter.text(), reason), (&"a".try_into().unwrap(), ReasonCode::NotAuthorized));

    drop(peer);
    let (mut peer, _) = server.welcome(false).await;
    assert_eq!(answer_subscribe(&mut peer, vec![ReasonCode::GrantedQoS1]).await, ["b"]);
}

#[tokio::test]
async fn without_session_expiry_every_connection_starts_clean() {
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let server = Server::start().await;
        let (client, _events, mut peer) = server.client(server.options().version(version)).await;
        subscribe(&client, &mut peer, "a").await;
        drop(peer);
        let (mut peer, connect) = server.welcome(false).await;
        assert!(connect.clean_start);
        assert_eq!(answer_subscribe(&mut peer, vec![ReasonCode::GrantedQoS1]).await, ["a"]);
    }
}

#[tokio::test]
async fn unanswered_requests_are_repeated() {
    for session_present in [true, false] {
        let server = Server::start().await;
        let (client, _events, mut peer) = server.client(server.options().session_expiry(MINUTE)).await;
        let asking = client.clone();
        let subscribing = tokio::spawn(async move { asking.subscribe(vec![subscription("a", QoS::AtMostOnce)]).await });
        assert!(matches!(peer.receive().await, Packet::Subscribe(_)));
        drop(peer);
        let (mut peer, _) = server.welcome(session_present).await;
        assert_eq!(answer_subscribe(&mut peer, vec![ReasonCode::Success]).await, ["a"]);
        assert_eq!(within(subscribing).await.unwrap().unwrap(), [ReasonCode::Success]);
    }
}

#[tokio::test]
async fn requests_wait_for_next_connection_despite_refusals() {
    let server = Server::start().await;
    let (client, mut events, peer) = server.client(server.options().session_expiry(MINUTE)).await;
    drop(peer);
    assert!(matches!(next(&mut events).await, ClientEvent::Disconnected { .. }));
    let ticket = client.publish(message("later", QoS::AtLeastOnce)).await.unwrap();
    let (mut peer, _) = server.accept().await;
    peer.send(Packet::ConnAck(Box::new(ConnAck::new(false, ReasonCode::ServerBusy)))).await;
    let (mut peer, _) = server.welcome(true).await;
    let published = peer.receive_publish().await;
    assert_eq!((published.dup, &published.payload[..]), (false, &b"later"[..]));
    peer.send(Packet::PubAck(ack(published.packet_id.unwrap().get()))).await;
    within(ticket).await.unwrap();
    assert!(matches!(next(&mut events).await, ClientEvent::Connected { session_present: true }));
}

/// The session survives refused connections: messages sent before are sent again with DUP.
#[tokio::test]
async fn refused_connection_keeps_the_session() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options().session_expiry(MINUTE)).await;
    let ticket = client.publish(message("1", QoS::AtLeastOnce)).await.unwrap();
    let id = peer.receive_publish().await.packet_id;
    drop(peer);
    let (mut peer, _) = server.accept().await;
    peer.send(Packet::ConnAck(Box::new(ConnAck::new(false, ReasonCode::ServerBusy)))).await;
    let (mut peer, _) = server.welcome(true).await;
    let again = peer.receive_publish().await;
    assert_eq!((again.dup, again.packet_id), (true, id));
    peer.send(Packet::PubAck(ack(id.unwrap().get()))).await;
    within(ticket).await.unwrap();
}

#[tokio::test]
async fn a_message_too_large_for_the_resumed_session_fails_its_ticket() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options().session_expiry(MINUTE)).await;
    let large = OutgoingMessage::new(topic("t"), vec![0; 500]).at(QoS::AtLeastOnce);
    let large = client.publish(large).await.unwrap();
    let small = client.publish(message("small", QoS::AtLeastOnce)).await.unwrap();
    peer.receive_publish().await;
    peer.receive_publish().await;
    drop(peer);
    let (mut peer, _) = server.accept().await;
    let mut connack = ConnAck::new(true, ReasonCode::Success);
    connack.properties.maximum_packet_size = 100.try_into().ok();
    peer.send(Packet::ConnAck(Box::new(connack))).await;
    let again = peer.receive_publish().await;
    assert_eq!(&again.payload[..], b"small");
    peer.send(Packet::PubAck(ack(again.packet_id.unwrap().get()))).await;
    within(small).await.unwrap();
    assert_eq!(within(large).await.unwrap_err().reason(), Some(ReasonCode::PacketTooLarge));
}

#[tokio::test]
async fn reason_is_reported_and_taken_over_client_stays_away() {
    let server = Server::start().await;
    let (client, mut events, mut peer) = server.client(server.options()).await;
    peer.send(Packet::Disconnect(Disconnect::new(ReasonCode::ServerShuttingDown))).await;
    drop(peer);
    let (mut peer, _) = server.welcome(false).await;
    let event = next(&mut events).await;
    let ClientEvent::Disconnected { reason } = event else { panic!("{event:?}") };
    assert_eq!(reason.reason(), Some(ReasonCode::ServerShuttingDown));
    assert!(matches!(next(&mut events).await, ClientEvent::Connected { .. }));

    peer.send(Packet::Disconnect(Disconnect::new(ReasonCode::SessionTakenOver))).await;
    assert!(matches!(next(&mut events).await, ClientEvent::Disconnected { .. }));
    assert!(within(events.recv()).await.is_none(), "ended");
    let error = within(client.publish(message("x", QoS::AtMostOnce))).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SessionTakenOver));
}

#[tokio::test]
async fn assigned_client_id_is_kept() {
    let server = Server::start().await;
    let options = tenbin_client::ClientOptions::new(server.address(), "").session_expiry(MINUTE);
    let (connected, ()) = tokio::join!(Client::connect(options), async {
        let (mut peer, connect) = server.accept().await;
        assert!(connect.client_id.is_empty());
        let mut connack = ConnAck::new(false, ReasonCode::Success);
        connack.properties.assigned_client_identifier = Some("given".try_into().unwrap());
        peer.send(Packet::ConnAck(Box::new(connack))).await;
    });
    let _client = connected.unwrap();
    let (_peer, connect) = server.accept().await;
    assert_eq!(connect.client_id, "given");
}

#[tokio::test]
async fn offline_disconnect_ends_at_once_and_fails_waiting_requests() {
    let server = Server::start().await;
    let (client, mut events, peer) = server.client(server.options().reconnect(Default::default())).await;
    drop((server, peer));
    assert!(matches!(next(&mut events).await, ClientEvent::Disconnected { .. }));
    let ticket = client.publish(message("x", QoS::AtLeastOnce)).await.unwrap();
    let error = within(client.disconnect()).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Lost(_)), "{error}");
    let error = within(ticket).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Ended(Some(_))), "{error}");
    assert!(within(events.recv()).await.is_none());
}

#[tokio::test]
async fn cut_connection_sends_no_disconnect_and_resumes_session() {
    let server = Server::start().await;
    let (client, mut events, mut peer) = server.client(server.options().session_expiry(MINUTE)).await;
    let ticket = client.publish(message("1", QoS::AtLeastOnce)).await.unwrap();
    let id = peer.receive_publish().await.packet_id;
    let away = Duration::from_millis(300);
    let cut_at = Instant::now();
    client.cut(away).await.unwrap();
    assert_eq!(peer.try_receive().await, None, "no DISCONNECT");
    assert!(matches!(next(&mut events).await, ClientEvent::Disconnected { reason: DisconnectReason::Cut }));
    client.cut(MINUTE).await.unwrap(); // There is no connection.

    let (mut peer, connect) = server.welcome(true).await;
    assert!(cut_at.elapsed() >= away);
    assert!(!connect.clean_start);
    let again = peer.receive_publish().await;
    assert_eq!((again.dup, again.packet_id), (true, id));
    peer.send(Packet::PubAck(ack(id.unwrap().get()))).await;
    within(ticket).await.unwrap();
    assert!(matches!(next(&mut events).await, ClientEvent::Connected { session_present: true }));
}
