//! Decoding copies no text, no binary data and no payload, and encoding shares a large payload.

mod receiver;

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use tenbin_codec::{
    Auth, AuthProperties, ConnAck, Connect, Decoded, MessageProperties, Packet, PacketId, PingBody, PingReq,
    ProtocolVersion, Publish, PublishHeader, PublishTemplate, QoS, ReasonCode, Subscribe, Subscription,
    SubscriptionOptions, Text, TopicFilter, TopicName, UserProperty, Will, WriteBuffer,
};

use receiver::{Sender, encode, receiver_of};

#[test]
fn connect_is_slices_of_the_input() {
    let mut connect = Connect::new(ProtocolVersion::V5, text("client"));
    connect.user_name = Some(text("user"));
    connect.password = Some(binary(b"password").into());
    connect.properties.user_properties = vec![user_property()];
    connect.properties.authentication_method = Some(text("method"));
    connect.properties.authentication_data = Some(binary(b"data").into());
    connect.will = Some(Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: name("will/topic"),
        payload: binary(b"will payload"),
        delay_interval: Some(1),
        properties: Some(message_properties()),
    });
    let (packet, input) = decode(Sender::Client, Packet::Connect(Box::new(connect)));
    let Packet::Connect(connect) = packet else { panic!("{packet:?}") };
    let will = connect.will.as_ref().unwrap();
    let mut parts = vec![
        connect.client_id.as_bytes(),
        connect.user_name.as_ref().unwrap().as_bytes(),
        connect.password.as_ref().unwrap().expose(),
        connect.properties.authentication_method.as_ref().unwrap().as_bytes(),
        connect.properties.authentication_data.as_ref().unwrap().expose(),
        will.topic.as_bytes(),
        &will.payload,
    ];
    parts.extend(parts_of_users(&connect.properties.user_properties));
    parts.extend(parts_of_message(will.properties.as_ref().unwrap()));
    assert_slices(&parts, &input);

    let detached = will.detach();
    assert_eq!(detached, *will);
    let mut parts = vec![detached.topic.as_bytes(), &detached.payload];
    parts.extend(parts_of_message(detached.properties.as_ref().unwrap()));
    assert!(parts.iter().all(|part| !lies_in(part, &input)));
}

#[test]
fn publish_is_slices_of_the_input() {
    let publish = Publish {
        qos: QoS::AtLeastOnce,
        packet_id: PacketId::new(1),
        properties: Some(message_properties()),
        ..Publish::new(name("topic/name"), binary(b"payload"))
    };
    for sender in [Sender::Client, Sender::Server] {
        let (packet, input) = decode(sender, Packet::Publish(publish.clone()));
        let Packet::Publish(publish) = packet else { panic!("{packet:?}") };
        let mut parts = vec![publish.topic.as_bytes(), &publish.payload[..]];
        parts.extend(parts_of_message(publish.properties.as_ref().unwrap()));
        assert_slices(&parts, &input);
    }
}

#[test]
fn extended_pingreq_is_slices_of_the_input() {
    let body = PingBody { user_properties: vec![user_property()], payload: binary(b"{\"msgsInQueue\":1}") };
    let (packet, input) = decode(Sender::Client, Packet::PingReq(PingReq { body: Some(Box::new(body)) }));
    let Packet::PingReq(PingReq { body: Some(body) }) = packet else { panic!("{packet:?}") };
    let mut parts = parts_of_users(&body.user_properties);
    parts.push(&body.payload);
    assert_slices(&parts, &input);
}

#[test]
fn connack_is_slices_of_the_input() {
    let mut connack = ConnAck::new(false, ReasonCode::Success);
    connack.properties.assigned_client_identifier = Some(text("assigned"));
    connack.properties.reason_string = Some(text("reason"));
    connack.properties.user_properties = vec![user_property()];
    connack.properties.response_information = Some(text("response"));
    connack.properties.server_reference = Some(text("other:1883"));
    connack.properties.authentication_method = Some(text("method"));
    connack.properties.authentication_data = Some(binary(b"data").into());
    let (packet, input) = decode(Sender::Server, Packet::ConnAck(Box::new(connack)));
    let Packet::ConnAck(connack) = packet else { panic!("{packet:?}") };
    let properties = &connack.properties;
    let texts = [
        &properties.assigned_client_identifier,
        &properties.reason_string,
        &properties.response_information,
        &properties.server_reference,
        &properties.authentication_method,
    ];
    let mut parts = texts.map(|text| text.as_ref().unwrap().as_bytes()).to_vec();
    parts.push(properties.authentication_data.as_ref().unwrap().expose());
    parts.extend(parts_of_users(&properties.user_properties));
    assert_slices(&parts, &input);
}

#[test]
fn auth_is_slices_of_the_input() {
    let properties = AuthProperties {
        authentication_method: Some(text("method")),
        authentication_data: Some(binary(b"data").into()),
        reason_string: Some(text("reason")),
        user_properties: vec![user_property()],
    };
    let auth = Auth { reason: ReasonCode::ContinueAuthentication, properties };
    let (packet, input) = decode(Sender::Client, Packet::Auth(Box::new(auth)));
    let Packet::Auth(auth) = packet else { panic!("{packet:?}") };
    let mut parts = vec![
        auth.properties.authentication_method.as_ref().unwrap().as_bytes(),
        auth.properties.authentication_data.as_ref().unwrap().expose(),
        auth.properties.reason_string.as_ref().unwrap().as_bytes(),
    ];
    parts.extend(parts_of_users(&auth.properties.user_properties));
    assert_slices(&parts, &input);
}

#[test]
fn filters_of_subscribe_are_slices_of_the_input() {
    let subscription = |filter| Subscription {
        filter: TopicFilter::try_from(filter).unwrap(),
        options: SubscriptionOptions::at(QoS::AtLeastOnce),
    };
    let subscribe = Subscribe {
        packet_id: PacketId::new(1).unwrap(),
        subscription_identifier: None,
        user_properties: vec![user_property()],
        subscriptions: vec![subscription("a/+"), subscription("$share/workers/jobs/#")],
    };
    let (packet, input) = decode(Sender::Client, Packet::Subscribe(subscribe));
    let Packet::Subscribe(subscribe) = packet else { panic!("{packet:?}") };
    let shared = subscribe.subscriptions[1].filter.shared().unwrap();
    let mut parts = subscribe.subscriptions.iter().map(|each| each.filter.as_bytes()).collect::<Vec<_>>();
    parts.extend([shared.share_name.text().as_bytes(), shared.filter.as_bytes()]);
    parts.extend(parts_of_users(&subscribe.user_properties));
    assert_slices(&parts, &input);
}

#[test]
fn a_large_payload_goes_from_input_to_output_without_a_copy() {
    let payload = Bytes::from(vec![7; WriteBuffer::SHARE_FROM]);
    let (packet, input) = decode(Sender::Client, Packet::Publish(Publish::new(name("large"), payload)));
    let Packet::Publish(publish) = &packet else { panic!("{packet:?}") };

    let mut out = WriteBuffer::new();
    packet.encode(ProtocolVersion::V5, &mut out);
    PublishTemplate::new(&publish.topic, None, &publish.payload, &mut BytesMut::new()).encode(
        &PublishHeader::default(),
        ProtocolVersion::V5,
        &mut out,
    );
    for _ in 0..2 {
        out.advance(out.chunk().len()); // the head
        assert_slices(&[out.chunk()], &input);
        out.advance(out.chunk().len());
    }
    assert!(out.is_empty());
}

#[test]
fn detached_parts_are_no_slices_of_the_input() {
    let payload = Bytes::from(vec![7; WriteBuffer::SHARE_FROM]);
    let (packet, input) = decode(Sender::Client, Packet::Publish(Publish::new(name("large"), payload)));
    let Packet::Publish(publish) = packet else { panic!("{packet:?}") };
    let template = PublishTemplate::new(&publish.topic, None, &publish.payload, &mut BytesMut::new());
    assert!(!lies_in(publish.topic.detach().as_bytes(), &input));
    assert!(!lies_in(template.topic(), &input));
    assert!(lies_in(template.payload(), &input));
    assert!(!lies_in(template.detach().payload(), &input));
}

/// Decodes a packet as its receiver does. Also returns the memory range of the input.
fn decode(sender: Sender, packet: Packet) -> (Packet, Range<*const u8>) {
    let mut input = BytesMut::from(&encode(&packet, ProtocolVersion::V5)[..]);
    let range = input.as_ptr_range();
    let decoded = receiver_of(sender, ProtocolVersion::V5).decode(&mut input);
    assert_eq!(decoded, Ok(Decoded::Packet(packet)));
    let Ok(Decoded::Packet(packet)) = decoded else { unreachable!() };
    (packet, range)
}

fn assert_slices(parts: &[&[u8]], input: &Range<*const u8>) {
    for part in parts {
        assert!(!part.is_empty());
        assert!(lies_in(part, input), "{part:?} was copied");
    }
}

fn lies_in(part: &[u8], input: &Range<*const u8>) -> bool {
    let part = part.as_ptr_range();
    input.start <= part.start && part.end <= input.end
}

fn parts_of_message(properties: &MessageProperties) -> Vec<&[u8]> {
    let mut parts = vec![
        properties.content_type.as_ref().unwrap().as_bytes(),
        properties.response_topic.as_ref().unwrap().as_bytes(),
        properties.correlation_data.as_ref().unwrap(),
    ];
    parts.extend(parts_of_users(&properties.user_properties));
    parts
}

fn parts_of_users(properties: &[UserProperty]) -> Vec<&[u8]> {
    properties.iter().flat_map(|property| [property.name.as_bytes(), property.value.as_bytes()]).collect()
}

fn message_properties() -> Box<MessageProperties> {
    Box::new(MessageProperties {
        content_type: Some(text("text/plain")),
        response_topic: Some(text("answers")),
        correlation_data: Some(binary(b"correlation")),
        user_properties: vec![user_property(), user_property()],
        ..MessageProperties::default()
    })
}

fn user_property() -> UserProperty {
    UserProperty::new(text("name"), text("value"))
}

fn name(name: &'static str) -> TopicName {
    TopicName::try_from(name).unwrap()
}

fn text(text: &'static str) -> Text {
    Text::from_static(text)
}

fn binary(bytes: &'static [u8]) -> Bytes {
    Bytes::from_static(bytes)
}
