use std::time::Duration;

use bytes::Bytes;
use tenbin_client::{
    ClientErrorKind, MessageProperties, OutgoingMessage, ProtocolVersion, QoS, ReasonCode, TryPublishError,
};
use tenbin_codec::{Ack, ConnAck, Packet, WriteBuffer};

use crate::script::{Server, ack, next_message, topic, within};

fn message(text: &'static str, qos: QoS) -> OutgoingMessage {
    OutgoingMessage::new(topic("t"), text).at(qos)
}

#[tokio::test]
async fn tickets_resolve_at_the_last_acknowledgement_of_each_qos() {
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let server = Server::start().await;
        let (client, _events, mut peer) = server.client(server.options().version(version)).await;

        let ticket = client.publish(message("0", QoS::AtMostOnce)).await.unwrap();
        assert_eq!(within(ticket).await.unwrap(), ReasonCode::Success);
        let received = peer.receive_publish().await;
        assert_eq!((received.qos, &received.payload[..]), (QoS::AtMostOnce, &b"0"[..]));

        let ticket = client.publish(message("1", QoS::AtLeastOnce)).await.unwrap();
        let received = peer.receive_publish().await;
        assert_eq!((received.qos, received.dup), (QoS::AtLeastOnce, false));
        let reason = if version.is_v5() { ReasonCode::NoMatchingSubscribers } else { ReasonCode::Success };
        peer.send(Packet::PubAck(Ack::new(received.packet_id.unwrap(), reason))).await;
        assert_eq!(within(ticket.wait()).await.unwrap(), reason);

        let ticket = client.publish(message("2", QoS::ExactlyOnce)).await.unwrap();
        let id = peer.receive_publish().await.packet_id.unwrap();
        peer.send(Packet::PubRec(ack(id.get()))).await;
        assert_eq!(peer.receive().await, Packet::PubRel(ack(id.get())));
        peer.send(Packet::PubComp(ack(id.get()))).await;
        assert_eq!(within(ticket).await.unwrap(), ReasonCode::Success);
    }
}

#[tokio::test]
async fn a_refused_message_gives_the_brokers_reason() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options()).await;
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let ticket = client.publish(message("x", qos)).await.unwrap();
        let refusal = Ack::new(peer.receive_publish().await.packet_id.unwrap(), ReasonCode::QuotaExceeded);
        peer.send(if qos == QoS::AtLeastOnce { Packet::PubAck(refusal) } else { Packet::PubRec(refusal) }).await;
        assert_eq!(within(ticket).await.unwrap(), ReasonCode::QuotaExceeded);
    }
}

#[tokio::test]
async fn mqtt_3_2_2_11_unsupported_messages_are_not_sent() {
    let server = Server::start().await;
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.maximum_qos = Some(QoS::AtLeastOnce);
    connack.properties.retain_available = Some(false);
    connack.properties.maximum_packet_size = 100.try_into().ok();
    let (connected, _peer) = server.answer(server.options(), connack).await;
    let (client, _events) = connected.unwrap();
    let retained = OutgoingMessage { retain: true, ..message("x", QoS::AtMostOnce) };
    let large = OutgoingMessage::new(topic("t"), vec![0; 100]);
    for (message, reason) in [
        (message("x", QoS::ExactlyOnce), ReasonCode::QoSNotSupported),
        (retained, ReasonCode::RetainNotSupported),
        (large.clone(), ReasonCode::PacketTooLarge),
        (large.at(QoS::AtLeastOnce), ReasonCode::PacketTooLarge),
    ] {
        let error = within(client.publish(message).await.unwrap()).await.unwrap_err();
        assert!(matches!(error.kind(), ClientErrorKind::NotTaken(_)), "{error}");
        assert_eq!(error.reason(), Some(reason));
    }
}

#[tokio::test]
async fn invalid_messages_are_the_callers_error() {
    let server = Server::start().await;
    let (client, _events, _peer) = server.client(server.options()).await;
    let with = |properties| OutgoingMessage { properties: Some(Box::new(properties)), ..message("x", QoS::AtMostOnce) };
    for message in [
        OutgoingMessage::new(tenbin_client::TopicName::ALIASED, "x"),
        with(MessageProperties { correlation_data: Some(vec![0; 65_536].into()), ..Default::default() }),
        with(MessageProperties { response_topic: Some("a/#".try_into().unwrap()), ..Default::default() }),
    ] {
        let error = client.publish(message.clone()).await.unwrap_err();
        assert!(matches!(error.kind(), ClientErrorKind::Invalid(_)), "{error}");
        assert!(matches!(client.try_publish(message), Err(TryPublishError::Failed(_))));
    }
}

#[tokio::test]
async fn receive_maximum_blocks_and_full_queue_is_reported() {
    let server = Server::start().await;
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.receive_maximum = 1.try_into().ok();
    let (connected, mut peer) = server.answer(server.options().queue(2), connack).await;
    let (client, _events) = connected.unwrap();
    // One in flight, one without quota, two in the queue: further messages find no room, in any schedule of the task.
    let mut tickets = Vec::new();
    let full = loop {
        match client.try_publish(message("x", QoS::AtLeastOnce)) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) if tickets.len() == 4 => break error,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert!(matches!(full, TryPublishError::Full(message) if &message.payload[..] == b"x"));
    for ticket in tickets {
        let id = peer.receive_publish().await.packet_id.unwrap();
        peer.send(Packet::PubAck(ack(id.get()))).await;
        assert_eq!(within(ticket).await.unwrap(), ReasonCode::Success);
    }
}

#[tokio::test]
async fn expiry_interval_applies_and_is_sent() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options()).await;
    let with_expiry = |seconds| {
        let properties = MessageProperties { message_expiry_interval: Some(seconds), ..Default::default() };
        OutgoingMessage { properties: properties.boxed(), ..message("x", QoS::AtMostOnce) }
    };
    let error = within(client.publish(with_expiry(0)).await.unwrap()).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Expired), "{error}");
    within(client.publish(with_expiry(1000)).await.unwrap()).await.unwrap();
    let properties = peer.receive_publish().await.properties.unwrap();
    assert!((900..=1000).contains(&properties.message_expiry_interval.unwrap()));
}

#[tokio::test]
async fn many_messages_of_all_sizes_arrive_whole_and_in_order() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options().queue(16)).await;
    let sizes = [0, 1, 100, 4095, 4096, 70_000, 300_000];
    let count = 200;
    let sender = tokio::spawn(async move {
        let mut last = None;
        for number in 0..count {
            let payload = Bytes::from(vec![number as u8; sizes[number % sizes.len()]]);
            last = Some(client.publish(OutgoingMessage::new(topic("t"), payload)).await.unwrap());
        }
        last.unwrap().await.unwrap();
        client.disconnect().await
    });
    for number in 0..count {
        let payload = peer.receive_publish().await.payload;
        assert_eq!(payload.len(), sizes[number % sizes.len()]);
        assert!(payload.iter().all(|&byte| byte == number as u8));
    }
    assert!(matches!(peer.receive().await, Packet::Disconnect(_)));
    drop(peer);
    within(sender).await.unwrap().unwrap();
}

/// More messages than the task takes, sends or writes at once, in both directions.
#[tokio::test]
async fn none_of_a_burst_is_lost() {
    let server = Server::start().await;
    let (client, mut events, mut peer) = server.client(server.options().queue(5000)).await;
    let count = 5000_u32;
    let mut tickets = Vec::new();
    for number in 0..count {
        let message = OutgoingMessage::new(topic("t"), number.to_be_bytes().to_vec());
        tickets.push(client.try_publish(message).unwrap());
    }
    for number in 0..count {
        assert_eq!(peer.receive_publish().await.payload, &number.to_be_bytes()[..]);
    }
    for ticket in tickets {
        assert_eq!(within(ticket).await.unwrap(), ReasonCode::Success);
    }
    for number in 0..count {
        peer.publish(QoS::AtMostOnce, 0, false, &number.to_string()).await;
    }
    for number in 0..count {
        assert_eq!(next_message(&mut events).await.payload, number.to_string());
    }
}

#[tokio::test]
async fn disconnect_sends_queue_and_awaits_acknowledgements() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options()).await;
    let ticket = client.publish(message("last", QoS::AtLeastOnce)).await.unwrap();
    let leaving = tokio::spawn(client.disconnect());
    let id = peer.receive_publish().await.packet_id.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    peer.send(Packet::PubAck(ack(id.get()))).await;
    assert!(matches!(peer.receive().await, Packet::Disconnect(_)));
    drop(peer);
    assert_eq!(within(ticket).await.unwrap(), ReasonCode::Success);
    within(leaving).await.unwrap().unwrap();
}

#[tokio::test]
async fn unacknowledged_message_delays_disconnect_at_most_5_s() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options()).await;
    let ticket = client.publish(message("x", QoS::AtLeastOnce)).await.unwrap();
    peer.receive_publish().await;
    let error = within(client.disconnect()).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::NoAnswer), "{error}");
    let error = within(ticket).await.unwrap_err();
    assert!(matches!(error.kind(), ClientErrorKind::Ended(None)), "{error}");
    assert!(matches!(peer.receive().await, Packet::Disconnect(_)));
}

#[tokio::test]
async fn wrong_acknowledgement_is_violation_and_message_is_resent() {
    let server = Server::start().await;
    let (client, _events, mut peer) = server.client(server.options().session_expiry(Duration::from_secs(60))).await;
    let ticket = client.publish(message("x", QoS::AtLeastOnce)).await.unwrap();
    let id = peer.receive_publish().await.packet_id.unwrap();
    let mut out = WriteBuffer::new();
    let suback =
        tenbin_codec::SubAck { packet_id: id, properties: Default::default(), reasons: vec![ReasonCode::Success] };
    Packet::SubAck(suback).encode(ProtocolVersion::V5, &mut out);
    peer.send_bytes(&out.to_bytes()).await;
    assert!(matches!(peer.receive().await, Packet::Disconnect(d) if d.reason == ReasonCode::ProtocolError));
    let (mut peer, _) = server.welcome(true).await;
    let again = peer.receive_publish().await;
    assert_eq!((again.dup, again.packet_id), (true, Some(id)));
    peer.send(Packet::PubAck(ack(id.get()))).await;
    assert_eq!(within(ticket).await.unwrap(), ReasonCode::Success);
}

#[tokio::test]
async fn mqtt_3_3_4_8_exhausted_quota_blocks_only_qos_1_and_2() {
    let server = Server::start().await;
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.receive_maximum = 1.try_into().ok();
    let (connected, mut peer) = server.answer(server.options(), connack).await;
    let (client, _events) = connected.unwrap();
    let open = client.publish(message("open", QoS::ExactlyOnce)).await.unwrap();
    let id = peer.receive_publish().await.packet_id.unwrap().get();
    let waits = client.publish(message("waits", QoS::AtLeastOnce)).await.unwrap();

    let filter = tenbin_codec::TopicFilter::try_from("f").unwrap();
    let unsubscribing = client.clone();
    let unsubscribing = tokio::spawn(async move { unsubscribing.unsubscribe(vec![filter]).await });
    assert!(matches!(peer.receive().await, Packet::Unsubscribe(_)));
    peer.publish(QoS::ExactlyOnce, 9, false, "theirs").await;
    assert_eq!(peer.receive().await, Packet::PubRec(ack(9)));
    peer.send(Packet::PubRel(ack(9))).await;
    assert_eq!(peer.receive().await, Packet::PubComp(ack(9)));
    peer.send(Packet::PubRec(ack(id))).await;
    assert_eq!(peer.receive().await, Packet::PubRel(ack(id)));
    peer.send(Packet::PubComp(ack(id))).await;
    within(open).await.unwrap();
    let next = peer.receive_publish().await;
    assert_eq!(&next.payload[..], b"waits");
    peer.send(Packet::PubAck(ack(next.packet_id.unwrap().get()))).await;
    within(waits).await.unwrap();
    unsubscribing.abort();
}
