//! The 27 properties of MQTT 5.0: their packets, repetitions and values.

mod receiver;

use tenbin_codec::{
    AuthProperties, Connect, DecodeError, Packet, PacketType, PropertyId, ProtocolVersion::V5, ReasonCode, Secret, Text,
};

use receiver::{decode, packet};

/// Place of a list of properties: a packet, or the Will in CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Packet(PacketType),
    Will,
}

const PLACES: [Place; 15] = [
    Place::Packet(PacketType::Connect),
    Place::Will,
    Place::Packet(PacketType::ConnAck),
    Place::Packet(PacketType::Publish),
    Place::Packet(PacketType::PubAck),
    Place::Packet(PacketType::PubRec),
    Place::Packet(PacketType::PubRel),
    Place::Packet(PacketType::PubComp),
    Place::Packet(PacketType::Subscribe),
    Place::Packet(PacketType::SubAck),
    Place::Packet(PacketType::Unsubscribe),
    Place::Packet(PacketType::UnsubAck),
    Place::Packet(PacketType::PingReq),
    Place::Packet(PacketType::Disconnect),
    Place::Packet(PacketType::Auth),
];

impl Place {
    /// Table 2-4 of the standard; PINGREQ is the extended one.
    fn allows(self, id: PropertyId) -> bool {
        use PacketType::*;
        let packets: &[PacketType] = match id {
            PropertyId::PayloadFormatIndicator
            | PropertyId::MessageExpiryInterval
            | PropertyId::ContentType
            | PropertyId::ResponseTopic
            | PropertyId::CorrelationData => {
                return matches!(self, Self::Will | Self::Packet(Publish));
            }
            PropertyId::WillDelayInterval => return self == Self::Will,
            PropertyId::UserProperty => return true,
            PropertyId::SubscriptionIdentifier => &[Publish, Subscribe],
            PropertyId::SessionExpiryInterval => &[Connect, ConnAck, Disconnect],
            PropertyId::AuthenticationMethod | PropertyId::AuthenticationData => &[Connect, ConnAck, Auth],
            PropertyId::RequestProblemInformation | PropertyId::RequestResponseInformation => &[Connect],
            PropertyId::ServerReference => &[ConnAck, Disconnect],
            PropertyId::ReasonString => &[ConnAck, PubAck, PubRec, PubRel, PubComp, SubAck, UnsubAck, Disconnect, Auth],
            PropertyId::ReceiveMaximum | PropertyId::TopicAliasMaximum | PropertyId::MaximumPacketSize => {
                &[Connect, ConnAck]
            }
            PropertyId::TopicAlias => &[Publish],
            PropertyId::AssignedClientIdentifier
            | PropertyId::ServerKeepAlive
            | PropertyId::ResponseInformation
            | PropertyId::MaximumQoS
            | PropertyId::RetainAvailable
            | PropertyId::WildcardSubscriptionAvailable
            | PropertyId::SubscriptionIdentifierAvailable
            | PropertyId::SharedSubscriptionAvailable => &[ConnAck],
        };
        matches!(self, Self::Packet(kind) if packets.contains(&kind))
    }

    /// A packet that is legal apart from `list`, which follows its length.
    fn packet(self, list: &[u8]) -> Vec<u8> {
        let around: (u8, &[u8], &[u8]) = match self {
            Self::Will => (0x10, b"\0\x04MQTT\x05\x06\0\0\0\0\0", b"\0\x01w\0\0"),
            Self::Packet(kind) => match kind {
                PacketType::Connect => (0x10, b"\0\x04MQTT\x05\x02\0\0", b"\0\0"),
                PacketType::ConnAck => (0x20, &[0, 0], &[]),
                PacketType::Publish => (0x30, b"\0\x01t", b"payload"),
                PacketType::PubAck => (0x40, &[0, 1, 0], &[]),
                PacketType::PubRec => (0x50, &[0, 1, 0], &[]),
                PacketType::PubRel => (0x62, &[0, 1, 0], &[]),
                PacketType::PubComp => (0x70, &[0, 1, 0], &[]),
                PacketType::Subscribe => (0x82, &[0, 1], b"\0\x01f\0"),
                PacketType::SubAck => (0x90, &[0, 1], &[0]),
                PacketType::Unsubscribe => (0xA2, &[0, 1], b"\0\x01f"),
                PacketType::UnsubAck => (0xB0, &[0, 1], &[0]),
                PacketType::PingReq => (0xC0, &[], b"{}"),
                PacketType::Disconnect => (0xE0, &[0], &[]),
                PacketType::Auth => (0xF0, &[0x18], &[]),
                PacketType::PingResp => unreachable!("has no properties"),
            },
        };
        let (first, before, after) = around;
        packet(first, &[before, list, after].concat())
    }

    fn with_properties(self, properties: &[u8]) -> Result<Packet, DecodeError> {
        decode(V5, &self.packet(&[&[properties.len() as u8], properties].concat()))
    }
}

/// Identifier and a legal value.
fn property(id: PropertyId) -> Vec<u8> {
    let value: &[u8] = match id {
        PropertyId::PayloadFormatIndicator
        | PropertyId::RequestProblemInformation
        | PropertyId::RequestResponseInformation
        | PropertyId::MaximumQoS
        | PropertyId::RetainAvailable
        | PropertyId::WildcardSubscriptionAvailable
        | PropertyId::SubscriptionIdentifierAvailable
        | PropertyId::SharedSubscriptionAvailable => &[1],
        PropertyId::ServerKeepAlive
        | PropertyId::ReceiveMaximum
        | PropertyId::TopicAliasMaximum
        | PropertyId::TopicAlias => &[0, 9],
        PropertyId::MessageExpiryInterval
        | PropertyId::SessionExpiryInterval
        | PropertyId::WillDelayInterval
        | PropertyId::MaximumPacketSize => &[0, 0, 0, 9],
        PropertyId::SubscriptionIdentifier => &[0x80, 0x01],
        PropertyId::UserProperty => b"\0\x01n\0\x01v",
        PropertyId::ContentType
        | PropertyId::ResponseTopic
        | PropertyId::CorrelationData
        | PropertyId::AssignedClientIdentifier
        | PropertyId::AuthenticationMethod
        | PropertyId::AuthenticationData
        | PropertyId::ResponseInformation
        | PropertyId::ServerReference
        | PropertyId::ReasonString => b"\0\x03abc",
    };
    [&[id.value()], value].concat()
}

#[test]
fn mqtt_2_2_2_properties_are_legal_exactly_as_in_table_2_4() {
    for place in PLACES {
        for id in PropertyId::ALL {
            let mut list = property(id);
            if id == PropertyId::AuthenticationData && place.allows(id) {
                list.extend(property(PropertyId::AuthenticationMethod));
            }
            let result = place.with_properties(&list);
            if place.allows(id) {
                assert!(result.is_ok(), "{id} in {place:?}: {result:?}");
            } else {
                // docs/decisions/0004
                let (error, reason) = match place {
                    Place::Packet(PacketType::Subscribe | PacketType::Unsubscribe | PacketType::PingReq) => {
                        (DecodeError::PropertyNotAllowed(id.value().into()), ReasonCode::MalformedPacket)
                    }
                    _ => (DecodeError::PropertyMisplaced(id), ReasonCode::ProtocolError),
                };
                assert_eq!(result, Err(error), "{id} in {place:?}");
                assert_eq!(error.reason(), reason);
            }
        }
    }
}

#[test]
fn mqtt_2_2_2_unknown_properties_are_malformed() {
    let known = PropertyId::ALL.map(PropertyId::value);
    for place in PLACES {
        for id in (0..0x80u8).filter(|id| !known.contains(id)) {
            let result = place.with_properties(&[id, 0, 0, 0, 0]);
            assert_eq!(result, Err(DecodeError::PropertyNotAllowed(id.into())), "{id:#04x} in {place:?}");
        }
        // An identifier is a Variable Byte Integer; 0x81 0x01 is 129.
        assert_eq!(place.with_properties(&[0x81, 0x01]), Err(DecodeError::PropertyNotAllowed(129)));
        assert_eq!(place.with_properties(&[0xA6, 0x00, 0, 0, 0, 0]), Err(DecodeError::Varint));
    }
}

#[test]
fn mqtt_2_2_2_repeated_property_is_a_protocol_error() {
    for place in PLACES {
        for id in PropertyId::ALL.into_iter().filter(|&id| place.allows(id)) {
            let twice = [property(id), property(id)].concat();
            let result = place.with_properties(&twice);
            let in_publish = place == Place::Packet(PacketType::Publish);
            if id == PropertyId::UserProperty || (id == PropertyId::SubscriptionIdentifier && in_publish) {
                assert!(result.is_ok(), "{id} in {place:?}: {result:?}");
            } else {
                assert_eq!(result, Err(DecodeError::PropertyTwice(id)), "{id} in {place:?}");
                assert_eq!(result.unwrap_err().reason(), ReasonCode::ProtocolError);
            }
        }
    }
}

#[test]
fn mqtt_2_2_2_illegal_values_are_a_protocol_error() {
    let zero = |id, width| (id, vec![0; width]);
    let two = |id| (id, vec![2]);
    for (id, value) in [
        zero(PropertyId::ReceiveMaximum, 2),
        zero(PropertyId::MaximumPacketSize, 4),
        zero(PropertyId::TopicAlias, 2), // [MQTT-3.3.2-8]
        zero(PropertyId::SubscriptionIdentifier, 1),
        two(PropertyId::PayloadFormatIndicator),
        two(PropertyId::RequestProblemInformation),
        two(PropertyId::RequestResponseInformation),
        two(PropertyId::MaximumQoS), // [MQTT-3.2.2-9]
        two(PropertyId::RetainAvailable),
        two(PropertyId::WildcardSubscriptionAvailable),
        two(PropertyId::SubscriptionIdentifierAvailable),
        two(PropertyId::SharedSubscriptionAvailable),
        (PropertyId::PayloadFormatIndicator, vec![0xFF]),
        (PropertyId::MaximumQoS, vec![0xFF]),
        (PropertyId::ResponseTopic, b"\0\x02a#".to_vec()), // [MQTT-3.3.2-14]
        (PropertyId::ResponseTopic, b"\0\x01+".to_vec()),
        (PropertyId::ResponseTopic, b"\0\0".to_vec()),
    ] {
        for place in PLACES.into_iter().filter(|place| place.allows(id)) {
            let result = place.with_properties(&[&[id.value()], &value[..]].concat());
            assert_eq!(result, Err(DecodeError::PropertyValue(id)), "{id} {value:?} in {place:?}");
            let reason = match id {
                PropertyId::TopicAlias => ReasonCode::TopicAliasInvalid, // [MQTT-3.3.2-8]
                _ => ReasonCode::ProtocolError,
            };
            assert_eq!(result.unwrap_err().reason(), reason);
        }
    }
}

#[test]
fn mqtt_2_2_2_unusual_legal_values_are_accepted() {
    for (id, value) in [
        (PropertyId::SessionExpiryInterval, vec![0xFF; 4]),
        (PropertyId::SessionExpiryInterval, vec![0; 4]),
        (PropertyId::TopicAliasMaximum, vec![0; 2]),
        (PropertyId::ServerKeepAlive, vec![0; 2]),
        (PropertyId::ReceiveMaximum, vec![0xFF; 2]),
        (PropertyId::SubscriptionIdentifier, vec![0xFF, 0xFF, 0xFF, 0x7F]),
        (PropertyId::CorrelationData, vec![0, 2, 0, 0xFF]),
        (PropertyId::ContentType, vec![0, 0]),
        (PropertyId::UserProperty, vec![0, 0, 0, 0]),
        (PropertyId::MaximumQoS, vec![0]),
    ] {
        for place in PLACES.into_iter().filter(|place| place.allows(id)) {
            let result = place.with_properties(&[&[id.value()], &value[..]].concat());
            assert!(result.is_ok(), "{id} {value:?} in {place:?}: {result:?}");
        }
    }
}

#[test]
fn mqtt_2_2_2_a_property_length_past_the_end_is_malformed() {
    for place in PLACES {
        // Longer than the rest, an incomplete length, and a length of five bytes.
        for list in [&[0x7F][..], &[0xFF, 0xFF, 0xFF, 0x7F], &[0xFF, 0xFF, 0xFF, 0xFF, 0x01]] {
            let error = decode(V5, &place.packet(list)).unwrap_err();
            assert!(matches!(error, DecodeError::Truncated | DecodeError::Varint), "{place:?} {list:?}: {error}");
            assert_eq!(error.reason(), ReasonCode::MalformedPacket);
        }
    }
}

#[test]
fn mqtt_2_2_2_a_value_past_the_property_length_is_malformed() {
    for place in PLACES {
        for id in PropertyId::ALL.into_iter().filter(|&id| place.allows(id)) {
            let whole = property(id);
            for cut in 1..whole.len() {
                // Bytes behind the list do not belong to the property.
                let result = place.with_properties(&whole[..cut]);
                assert_eq!(result, Err(DecodeError::Truncated), "{id} of {cut} bytes in {place:?}");
            }
        }
    }
}

#[test]
fn mqtt_1_5_4_and_1_5_7_1_illegal_property_strings_are_refused() {
    for (text, error) in [
        (&b"\0\x02\xC0\x80"[..], DecodeError::InvalidUtf8),
        (b"\0\x03\xED\xA0\x80", DecodeError::InvalidUtf8),
        (b"\0\x01\0", DecodeError::NulCharacter),
    ] {
        for id in [PropertyId::ReasonString, PropertyId::ContentType, PropertyId::AuthenticationMethod] {
            for place in PLACES.into_iter().filter(|place| place.allows(id)) {
                assert_eq!(place.with_properties(&[&[id.value()], text].concat()), Err(error), "{id} in {place:?}");
            }
        }
        for place in PLACES {
            let (name, value) = ([b"\x26", text, b"\0\x01v"].concat(), [b"\x26\0\x01n", text].concat());
            assert_eq!(place.with_properties(&name), Err(error), "{place:?}");
            assert_eq!(place.with_properties(&value), Err(error), "{place:?}");
        }
    }
}

#[test]
fn mqtt_3_1_2_11_10_authentication_data_needs_a_method() {
    let connect = Place::Packet(PacketType::Connect);
    let data = property(PropertyId::AuthenticationData);
    assert_eq!(connect.with_properties(&data), Err(DecodeError::AuthenticationDataAlone));
    assert_eq!(DecodeError::AuthenticationDataAlone.reason(), ReasonCode::ProtocolError);
}

#[test]
fn packets_do_not_show_their_secrets() {
    let secret = || Some(Secret::from("hidden"));
    let mut connect = Connect::new(V5, Text::from_static("c"));
    connect.password = secret();
    connect.properties.authentication_data = secret();
    let auth = AuthProperties { authentication_data: secret(), ..AuthProperties::default() };
    let shown = format!("{connect:?} {auth:?}");
    assert_eq!(shown.matches("authentication_data: Some(***)").count(), 2, "{shown}");
    assert!(shown.contains("password: Some(***)") && !shown.contains("hidden"), "{shown}");
}
