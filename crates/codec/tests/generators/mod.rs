//! Generators of every control packet, of both senders and both versions.

use std::num::{NonZeroU16, NonZeroU32};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tenbin_codec::{
    Ack, AckProperties, Auth, AuthProperties, ConnAck, ConnAckProperties, Connect, ConnectProperties, Disconnect,
    DisconnectProperties, MessageProperties, Packet, PacketId, PacketType, PingBody, PingReq, ProtocolVersion, Publish,
    QoS, ReasonCode, RetainHandling, Secret, SubAck, Subscribe, Subscription, SubscriptionOptions, Text, TopicFilter,
    TopicName, UnsubAck, Unsubscribe, UserProperty, VARINT_MAX, Will, WriteBuffer,
};

use crate::receiver::Sender;

pub(crate) fn sender() -> impl Strategy<Value = Sender> {
    select(vec![Sender::Client, Sender::Server])
}

pub(crate) fn version() -> impl Strategy<Value = ProtocolVersion> {
    select(vec![ProtocolVersion::V311, ProtocolVersion::V5])
}

/// Any packet that `sender` may send at `version`.
pub(crate) fn packet(sender: Sender, version: ProtocolVersion) -> BoxedStrategy<Packet> {
    let is_v5 = version.is_v5();
    let mut kinds = vec![
        publish(sender, is_v5).prop_map(Packet::Publish).boxed(),
        ack(PacketType::PubAck, is_v5).prop_map(Packet::PubAck).boxed(),
        ack(PacketType::PubRec, is_v5).prop_map(Packet::PubRec).boxed(),
        ack(PacketType::PubRel, is_v5).prop_map(Packet::PubRel).boxed(),
        ack(PacketType::PubComp, is_v5).prop_map(Packet::PubComp).boxed(),
    ];
    if is_v5 {
        kinds.push(auth().prop_map(|auth| Packet::Auth(Box::new(auth))).boxed());
    }
    match sender {
        Sender::Client => kinds.extend([
            connect(version).prop_map(|connect| Packet::Connect(Box::new(connect))).boxed(),
            subscribe(is_v5).prop_map(Packet::Subscribe).boxed(),
            unsubscribe(is_v5).prop_map(Packet::Unsubscribe).boxed(),
            ping(is_v5).prop_map(Packet::PingReq).boxed(),
            disconnect(is_v5).prop_map(Packet::Disconnect).boxed(),
        ]),
        Sender::Server => {
            kinds.extend([
                connack(version).prop_map(|connack| Packet::ConnAck(Box::new(connack))).boxed(),
                suback(is_v5).prop_map(Packet::SubAck).boxed(),
                unsuback(is_v5).prop_map(Packet::UnsubAck).boxed(),
                Just(Packet::PingResp).boxed(),
            ]);
            if is_v5 {
                kinds.push(disconnect(true).prop_map(Packet::Disconnect).boxed());
            }
        }
    }
    proptest::strategy::Union::new(kinds).boxed()
}

fn connect(version: ProtocolVersion) -> impl Strategy<Value = Connect> {
    let is_v5 = version.is_v5();
    let logins = (option::of(user_name()), option::of(binary()));
    let flags = any::<(bool, bool)>();
    (flags, any::<u16>(), text(), option::of(will(is_v5)), logins, connect_properties()).prop_map(
        move |((is_bridge, clean_start), keep_alive, client_id, will, (user_name, password), properties)| Connect {
            version,
            is_bridge,
            clean_start,
            keep_alive,
            client_id,
            will,
            password: password.filter(|_| is_v5 || user_name.is_some()).map(Secret::from),
            user_name,
            properties: if is_v5 { properties } else { ConnectProperties::default() },
        },
    )
}

fn connect_properties() -> impl Strategy<Value = ConnectProperties> {
    (
        option::of(any::<u32>()),
        option::of(any::<NonZeroU16>()),
        option::of(any::<NonZeroU32>()),
        option::of(any::<u16>()),
        option::of(any::<bool>()),
        option::of(any::<bool>()),
        user_properties(),
        option::of((text(), option::of(binary()))),
    )
        .prop_map(|(expiry, receive, size, aliases, response, problem, user_properties, authentication)| {
            let (method, data) = authentication.unzip();
            ConnectProperties {
                session_expiry_interval: expiry,
                receive_maximum: receive,
                maximum_packet_size: size,
                topic_alias_maximum: aliases,
                request_response_information: response,
                request_problem_information: problem,
                user_properties,
                authentication_method: method,
                authentication_data: data.flatten().map(Secret::from),
            }
        })
}

fn will(is_v5: bool) -> impl Strategy<Value = Will> {
    (qos(), any::<bool>(), topic_name(), binary(), option::of(any::<u32>()), message_properties()).prop_map(
        move |(qos, retain, topic, payload, delay, properties)| Will {
            qos,
            retain,
            topic,
            payload,
            delay_interval: delay.filter(|_| is_v5),
            properties: properties.boxed().filter(|_| is_v5),
        },
    )
}

fn connack(version: ProtocolVersion) -> impl Strategy<Value = ConnAck> {
    let reason = match version {
        ProtocolVersion::V5 => reason(PacketType::ConnAck).boxed(),
        ProtocolVersion::V31 | ProtocolVersion::V311 => {
            (0u8..=5).prop_map(|code| ReasonCode::from_v311_connect_return_code(code).unwrap()).boxed()
        }
    };
    (any::<bool>(), reason, connack_properties()).prop_map(move |(session_present, reason, properties)| ConnAck {
        session_present,
        reason,
        properties: if version.is_v5() { properties } else { ConnAckProperties::default() },
    })
}

fn connack_properties() -> impl Strategy<Value = ConnAckProperties> {
    let limits = (
        option::of(any::<u32>()),
        option::of(any::<NonZeroU16>()),
        option::of(select(vec![QoS::AtMostOnce, QoS::AtLeastOnce])),
        option::of(any::<NonZeroU32>()),
        option::of(any::<u16>()),
        option::of(any::<u16>()),
    );
    let available = [(); 4].map(|()| option::of(any::<bool>()));
    let texts = [(); 5].map(|()| option::of(text()));
    (limits, available, texts, option::of(binary()), user_properties()).prop_map(
        |(limits, available, texts, authentication_data, user_properties)| {
            let (expiry, receive, maximum_qos, size, aliases, keep_alive) = limits;
            let [retain, wildcard, subscription_id, shared] = available;
            let [client_id, reason_string, response, server, method] = texts;
            ConnAckProperties {
                session_expiry_interval: expiry,
                receive_maximum: receive,
                maximum_qos,
                retain_available: retain,
                maximum_packet_size: size,
                assigned_client_identifier: client_id,
                topic_alias_maximum: aliases,
                reason_string,
                user_properties,
                wildcard_subscription_available: wildcard,
                subscription_identifier_available: subscription_id,
                shared_subscription_available: shared,
                server_keep_alive: keep_alive,
                response_information: response,
                server_reference: server,
                authentication_method: method,
                authentication_data: authentication_data.map(Secret::from),
            }
        },
    )
}

fn publish(sender: Sender, is_v5: bool) -> impl Strategy<Value = Publish> {
    let ids = if sender == Sender::Server { 0..4 } else { 0..1 };
    (
        (any::<bool>(), qos(), any::<bool>(), packet_id()),
        topic_name(),
        option::of((any::<NonZeroU16>(), any::<bool>())),
        vec(subscription_identifier(), ids),
        message_properties(),
        payload(),
    )
        .prop_map(move |((dup, qos, retain, packet_id), topic, alias, ids, properties, payload)| {
            let alias = alias.filter(|_| is_v5);
            Publish {
                dup: dup && qos.is_acknowledged(),
                qos,
                retain,
                topic: if alias.is_some_and(|(_, alone)| alone) { TopicName::ALIASED } else { topic },
                packet_id: qos.is_acknowledged().then_some(packet_id),
                topic_alias: alias.map(|(alias, _)| alias),
                subscription_identifiers: if is_v5 { ids } else { Vec::new() },
                properties: properties.boxed().filter(|_| is_v5),
                payload,
            }
        })
}

fn message_properties() -> impl Strategy<Value = MessageProperties> {
    (
        option::of(any::<bool>()),
        option::of(any::<u32>()),
        option::of(text()),
        option::of(topic_name()),
        option::of(binary()),
        user_properties(),
    )
        .prop_map(|(is_text, expiry, content_type, response_topic, correlation_data, user_properties)| {
            MessageProperties {
                payload_format_indicator: is_text,
                message_expiry_interval: expiry,
                content_type,
                response_topic: response_topic.map(|topic| topic.text().clone()),
                correlation_data,
                user_properties,
            }
        })
}

fn ack(kind: PacketType, is_v5: bool) -> impl Strategy<Value = Ack> {
    (packet_id(), reason(kind), ack_properties()).prop_map(move |(packet_id, reason, properties)| {
        if !is_v5 {
            return Ack::new(packet_id, ReasonCode::Success);
        }
        let properties = (properties != AckProperties::default()).then(|| Box::new(properties));
        Ack { packet_id, reason, properties }
    })
}

fn ack_properties() -> impl Strategy<Value = AckProperties> {
    (option::of(text()), user_properties())
        .prop_map(|(reason_string, user_properties)| AckProperties { reason_string, user_properties })
}

fn subscribe(is_v5: bool) -> impl Strategy<Value = Subscribe> {
    (packet_id(), option::of(subscription_identifier()), user_properties(), vec(subscription(is_v5), 1..5)).prop_map(
        move |(packet_id, id, user_properties, subscriptions)| Subscribe {
            packet_id,
            subscription_identifier: id.filter(|_| is_v5),
            user_properties: if is_v5 { user_properties } else { Vec::new() },
            subscriptions,
        },
    )
}

fn subscription(is_v5: bool) -> impl Strategy<Value = Subscription> {
    let handling = select(vec![RetainHandling::Always, RetainHandling::IfNew, RetainHandling::Never]);
    (topic_filter(), qos(), any::<bool>(), any::<bool>(), handling).prop_map(
        move |(filter, qos, no_local, retain_as_published, retain_handling)| {
            let no_local = no_local && !filter.is_shared();
            let options = SubscriptionOptions { qos, no_local, retain_as_published, retain_handling };
            Subscription { filter, options: if is_v5 { options } else { SubscriptionOptions::at(qos) } }
        },
    )
}

fn suback(is_v5: bool) -> impl Strategy<Value = SubAck> {
    let reason = reason(PacketType::SubAck)
        .prop_map(move |reason| if !is_v5 && reason.is_error() { ReasonCode::UnspecifiedError } else { reason });
    (packet_id(), ack_properties(), vec(reason, 1..5)).prop_map(move |(packet_id, properties, reasons)| SubAck {
        packet_id,
        properties: if is_v5 { properties } else { AckProperties::default() },
        reasons,
    })
}

fn unsubscribe(is_v5: bool) -> impl Strategy<Value = Unsubscribe> {
    (packet_id(), user_properties(), vec(topic_filter(), 1..5)).prop_map(
        move |(packet_id, user_properties, filters)| Unsubscribe {
            packet_id,
            user_properties: if is_v5 { user_properties } else { Vec::new() },
            filters,
        },
    )
}

fn unsuback(is_v5: bool) -> impl Strategy<Value = UnsubAck> {
    (packet_id(), ack_properties(), vec(reason(PacketType::UnsubAck), 1..5)).prop_map(
        move |(packet_id, properties, reasons)| {
            if is_v5 {
                UnsubAck { packet_id, properties, reasons }
            } else {
                UnsubAck { packet_id, properties: AckProperties::default(), reasons: Vec::new() }
            }
        },
    )
}

fn ping(is_v5: bool) -> impl Strategy<Value = PingReq> {
    option::of((user_properties(), payload())).prop_map(move |body| PingReq {
        body: body.filter(|_| is_v5).map(|(user_properties, payload)| Box::new(PingBody { user_properties, payload })),
    })
}

fn disconnect(is_v5: bool) -> impl Strategy<Value = Disconnect> {
    (
        reason(PacketType::Disconnect),
        option::of(any::<u32>()),
        option::of(text()),
        user_properties(),
        option::of(text()),
    )
        .prop_map(move |(reason, session_expiry_interval, reason_string, user_properties, server_reference)| {
            if !is_v5 {
                return Disconnect::new(ReasonCode::Success);
            }
            let properties =
                DisconnectProperties { session_expiry_interval, reason_string, user_properties, server_reference };
            let properties = (properties != DisconnectProperties::default()).then(|| Box::new(properties));
            Disconnect { reason, properties }
        })
}

fn auth() -> impl Strategy<Value = Auth> {
    (reason(PacketType::Auth), option::of(text()), option::of(binary()), option::of(text()), user_properties())
        .prop_map(|(reason, authentication_method, data, reason_string, user_properties)| {
            let authentication_data = data.map(Secret::from);
            let properties =
                AuthProperties { authentication_method, authentication_data, reason_string, user_properties };
            Auth { reason, properties }
        })
}

fn reason(kind: PacketType) -> impl Strategy<Value = ReasonCode> {
    select(ReasonCode::ALL.into_iter().filter(|code| code.is_valid_in(kind)).collect::<Vec<_>>())
}

fn qos() -> impl Strategy<Value = QoS> {
    select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

fn packet_id() -> impl Strategy<Value = PacketId> {
    any::<NonZeroU16>().prop_map(PacketId::from)
}

/// Identifiers of every width.
fn subscription_identifier() -> impl Strategy<Value = u32> {
    prop_oneof![1u32..0x80, 0x80u32..0x4000, 0x4000u32..0x20_0000, 0x20_0000u32..=VARINT_MAX]
}

fn user_properties() -> impl Strategy<Value = Vec<UserProperty>> {
    vec((text(), text()).prop_map(|(name, value)| UserProperty::new(name, value)), 0..3)
}

fn topic_name() -> impl Strategy<Value = TopicName> {
    characters(1..12).prop_map(|name| TopicName::try_from(name.replace(['+', '#'], "/").as_str()).unwrap())
}

fn topic_filter() -> impl Strategy<Value = TopicFilter> {
    let level = prop_oneof![
        3 => characters(0..5).prop_map(|level| level.replace(['+', '#', '/'], "x")),
        1 => Just("+".to_owned()),
    ];
    (option::of("[a-z]{1,8}"), vec(level, 1..5), any::<bool>()).prop_map(|(share_name, mut levels, all_below)| {
        if all_below || levels.concat().is_empty() {
            levels.push("#".to_owned());
        }
        let filter = levels.join("/");
        let filter = share_name.map_or(filter.clone(), |name| format!("$share/{name}/{filter}"));
        TopicFilter::try_from(filter.as_str()).unwrap()
    })
}

/// User names without control characters, which are refused there.
fn user_name() -> impl Strategy<Value = Text> {
    characters(0..12).prop_map(|text| Text::try_from(text.replace(char::is_control, "")).unwrap())
}

fn text() -> impl Strategy<Value = Text> {
    characters(0..12).prop_map(|text| Text::try_from(text).unwrap())
}

/// Characters of one to four bytes, without U+0000.
fn characters(count: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    let character = prop_oneof![4 => prop::char::range('/', 'z'), 1 => any::<char>()];
    vec(character, count).prop_map(|text| text.into_iter().map(|c| if c == '\0' { '0' } else { c }).collect())
}

fn binary() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..20).prop_map(Bytes::from)
}

/// Sizes around the one from which a payload is shared.
fn payload() -> impl Strategy<Value = Bytes> {
    let large = (WriteBuffer::SHARE_FROM - 2..WriteBuffer::SHARE_FROM + 2).prop_map(|len| Bytes::from(vec![7; len]));
    prop_oneof![15 => binary(), 1 => large]
}
