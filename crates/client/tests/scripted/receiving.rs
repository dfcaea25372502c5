use std::cell::Cell;
use std::pin::pin;
use std::time::{Duration, Instant};

use tenbin_client::{AcknowledgeMode, ClientEvent, LoadReporter, OutgoingMessage, QoS, TryRecvError};
use tenbin_codec::Packet;

use crate::script::{PATIENCE, Server, ack, next, next_message, topic, within};

#[tokio::test]
async fn on_receipt_the_client_acknowledges() {
    let server = Server::start().await;
    let (_client, mut events, mut peer) = server.client(server.options()).await;
    assert!(matches!(events.try_recv(), Err(TryRecvError::Empty)));
    peer.publish(QoS::AtMostOnce, 0, false, "0").await;
    peer.publish(QoS::AtLeastOnce, 1, false, "1").await;
    peer.publish(QoS::ExactlyOnce, 2, false, "2").await;
    assert_eq!(peer.receive().await, Packet::PubAck(ack(1)));
    assert_eq!(peer.receive().await, Packet::PubRec(ack(2)));
    peer.publish(QoS::ExactlyOnce, 2, true, "2").await; // A known message: acknowledged again, but not delivered again.
    assert_eq!(peer.receive().await, Packet::PubRec(ack(2)));
    peer.send(Packet::PubRel(ack(2))).await;
    assert_eq!(peer.receive().await, Packet::PubComp(ack(2)));
    peer.publish(QoS::AtMostOnce, 0, false, "end").await;
    for expected in ["0", "1", "2", "end"] {
        let message = next_message(&mut events).await;
        assert_eq!(&message.payload[..], expected.as_bytes());
        assert_eq!(message.topic, topic("t"));
    }
}

#[tokio::test]
async fn resent_message_has_dup() {
    let server = Server::start().await;
    let (_client, mut events, mut peer) = server.client(server.options()).await;
    for (id, dup) in [(1, false), (2, true)] {
        peer.publish(QoS::AtLeastOnce, id, dup, "x").await;
        assert_eq!(next_message(&mut events).await.dup, dup);
    }
}

#[tokio::test]
async fn in_manual_mode_the_application_acknowledges_once() {
    let server = Server::start().await;
    let options = server.options().acknowledge(AcknowledgeMode::Manual).receive_maximum(2);
    let (client, mut events, mut peer) = server.client(options).await;
    peer.publish(QoS::AtLeastOnce, 1, false, "1").await;
    peer.publish(QoS::ExactlyOnce, 2, false, "2").await;
    let (first, second) = (next_message(&mut events).await, next_message(&mut events).await);
    // An acknowledgement on receipt would come before this packet.
    client.publish(OutgoingMessage::new(topic("mark"), "")).await.unwrap().await.unwrap();
    assert_eq!(peer.receive_publish().await.topic, topic("mark"));

    client.acknowledge(&first);
    client.acknowledge(&first.clone());
    assert_eq!(peer.receive().await, Packet::PubAck(ack(1)));
    client.acknowledge(&second);
    assert_eq!(peer.receive().await, Packet::PubRec(ack(2)));
    peer.send(Packet::PubRel(ack(2))).await;
    assert_eq!(peer.receive().await, Packet::PubComp(ack(2)));

    peer.publish(QoS::AtMostOnce, 0, false, "0").await;
    client.acknowledge(&next_message(&mut events).await); // There is nothing to acknowledge.
    client.publish(OutgoingMessage::new(topic("mark"), "")).await.unwrap().await.unwrap();
    assert_eq!(peer.receive_publish().await.topic, topic("mark"));
}

#[tokio::test]
async fn acknowledgements_before_disconnect_are_sent_first() {
    let server = Server::start().await;
    let (client, mut events, mut peer) = server.client(server.options().acknowledge(AcknowledgeMode::Manual)).await;
    peer.publish(QoS::AtLeastOnce, 1, false, "1").await;
    client.acknowledge(&next_message(&mut events).await);
    let leaving = tokio::spawn(client.disconnect());
    assert_eq!(peer.receive().await, Packet::PubAck(ack(1)));
    assert!(matches!(peer.receive().await, Packet::Disconnect(_)));
    drop(peer);
    within(leaving).await.unwrap().unwrap();
}

/// If the broker sends an unacknowledged message again, the client must not acknowledge it for the application.
#[tokio::test]
async fn a_qos_2_message_sent_again_waits_for_the_application() {
    let server = Server::start().await;
    let options = server.options().acknowledge(AcknowledgeMode::Manual).session_expiry(Duration::from_secs(60));
    let (client, mut events, mut peer) = server.client(options).await;
    peer.publish(QoS::ExactlyOnce, 7, false, "2").await;
    let message = next_message(&mut events).await;
    drop(peer);
    let (mut peer, _) = server.welcome(true).await;
    assert!(matches!(next(&mut events).await, ClientEvent::Disconnected { .. }));
    assert!(matches!(next(&mut events).await, ClientEvent::Connected { session_present: true }));
    peer.publish(QoS::ExactlyOnce, 7, true, "2").await;
    peer.publish(QoS::AtMostOnce, 0, false, "mark").await;
    assert_eq!(&next_message(&mut events).await.payload[..], b"mark");
    client.acknowledge(&message);
    assert_eq!(peer.receive().await, Packet::PubRec(ack(7)));
}

#[tokio::test]
async fn late_qos_1_acknowledgement_is_not_sent_on_next_connection() {
    let server = Server::start().await;
    let options = server.options().acknowledge(AcknowledgeMode::Manual).session_expiry(Duration::from_secs(60));
    let (client, mut events, mut peer) = server.client(options).await;
    peer.publish(QoS::AtLeastOnce, 7, false, "1").await;
    let first = next_message(&mut events).await;
    drop(peer);
    let (mut peer, _) = server.welcome(true).await;
    assert!(matches!(next(&mut events).await, ClientEvent::Disconnected { .. }));
    assert!(matches!(next(&mut events).await, ClientEvent::Connected { .. }));
    peer.publish(QoS::AtLeastOnce, 8, false, "other").await;
    let other = next_message(&mut events).await;
    client.acknowledge(&first);
    client.acknowledge(&other);
    assert_eq!(peer.receive().await, Packet::PubAck(ack(8)));
}

/// The application takes no events: the client stops reading, the socket fills, and the broker cannot write.
///
/// No message may be lost, and the client must survive although the answer to its ping is unread.
#[tokio::test]
async fn slow_application_stops_reading_and_loses_nothing() {
    let server = Server::start().await;
    let reporter = LoadReporter::new(Duration::from_millis(20));
    let options = server.options().queue(4).keep_alive(Duration::from_secs(2)).load_reporter(reporter.clone());
    let (_client, mut events, mut peer) = server.client(options).await;
    let payload = "x".repeat(64 * 1024);
    let sent = Cell::new(0_u64);
    let mut sending = pin!(async {
        loop {
            peer.publish(QoS::AtMostOnce, 0, false, &payload).await;
            sent.set(sent.get() + 1);
        }
    });
    let until = Instant::now() + PATIENCE / 2; // a single write may wait for PATIENCE
    loop {
        let before = sent.get();
        // Longer than Keep Alive: a client that expects PINGRESP would have given up.
        let _ = tokio::time::timeout(Duration::from_secs(5), &mut sending).await;
        assert!(sent.get() < 10_000, "the broker is held back");
        // The messages in the queue, and the one in the client's hand. A busy machine may take longer until then.
        let held = (events.len(), reporter.snapshot().messages_in_queue);
        if sent.get() == before && held == (4, 5) {
            break;
        }
        assert!(Instant::now() < until, "{} sent, {held:?} held", sent.get());
    }
    assert!(sent.get() > 4, "the sockets hold some");
    for _ in 0..sent.get() {
        assert_eq!(next_message(&mut events).await.payload.len(), payload.len());
        reporter.started();
    }
}

#[tokio::test]
async fn an_application_that_dropped_its_events_still_publishes() {
    let server = Server::start().await;
    let (client, events, mut peer) = server.client(server.options().queue(1)).await;
    drop(events);
    for id in 1..=3 {
        peer.publish(QoS::AtLeastOnce, id, false, "unwanted").await;
        assert_eq!(peer.receive().await, Packet::PubAck(ack(id)));
    }
    let message = OutgoingMessage::new(topic("t"), "x").at(QoS::AtLeastOnce);
    let ticket = client.publish(message).await.unwrap();
    let id = peer.receive_publish().await.packet_id.unwrap();
    peer.send(Packet::PubAck(ack(id.get()))).await;
    within(ticket).await.unwrap();
}

#[tokio::test]
async fn mqtt_4_6_0_2_to_4_acks_keep_message_order() {
    let server = Server::start().await;
    let (client, mut events, mut peer) = server.client(server.options()).await;
    let ids = [5, 3, 9, 1, 7];
    for id in ids {
        peer.publish(QoS::AtLeastOnce, id, false, "x").await;
    }
    for id in ids {
        assert_eq!(peer.receive().await, Packet::PubAck(ack(id)));
        next_message(&mut events).await;
    }
    for id in ids {
        peer.publish(QoS::ExactlyOnce, id, false, "x").await;
    }
    for id in ids {
        assert_eq!(peer.receive().await, Packet::PubRec(ack(id)));
        next_message(&mut events).await;
    }

    let mut sent = Vec::new();
    for _ in 0..5 {
        let message = OutgoingMessage::new(topic("t"), "x").at(QoS::ExactlyOnce);
        drop(client.publish(message).await.unwrap());
        sent.push(peer.receive_publish().await.packet_id.unwrap().get());
    }
    sent.rotate_left(2);
    for &id in &sent {
        peer.send(Packet::PubRec(ack(id))).await;
    }
    for &id in &sent {
        assert_eq!(peer.receive().await, Packet::PubRel(ack(id)));
    }
}
