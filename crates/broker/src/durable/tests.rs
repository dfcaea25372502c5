//! Records are decoded as they were encoded, and damaged ones do not panic.

use std::num::{NonZeroU16, NonZeroU64};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tenbin_codec::{
    MessageProperties, PublishTemplate, QoS, RetainHandling, SubscriptionOptions, Text, TopicFilter, TopicName,
    UserProperty, VARINT_MAX, Will,
};

use super::record::*;
use super::wall_clock::{StoredExpiry, WallClock};
use crate::auth::{AclAction, AclRule, Effect, Terms, TopicPattern};
use crate::values::Grant;

fn text() -> impl Strategy<Value = Text> {
    "[a-zäß/ €]{0,20}".prop_map(|text| Text::try_from(text).unwrap())
}

fn qos() -> impl Strategy<Value = QoS> {
    (0_u8..3).prop_map(|bits| QoS::from_bits(bits).unwrap())
}

fn topic() -> impl Strategy<Value = TopicName> {
    "[a-zß]{1,8}(/[a-z]{0,4}){0,3}".prop_map(|topic| TopicName::try_from(&topic[..]).unwrap())
}

fn owner() -> impl Strategy<Value = Owner> {
    let owner = (prop::option::of(text()), ".{0,10}", ".{0,10}", prop::option::of(rules()));
    owner.prop_map(|(user, realm, listener, rules)| Owner {
        user,
        realm: realm.into(),
        listener: listener.into(),
        rules: rules.filter(Terms::has_rules).map(Arc::new),
    })
}

fn effect() -> impl Strategy<Value = Effect> {
    prop_oneof![Just(Effect::Allow), Just(Effect::Deny)]
}

fn rules() -> impl Strategy<Value = Terms> {
    let name = || prop::option::of(".{0,10}");
    let action = prop_oneof![Just(AclAction::Publish), Just(AclAction::Subscribe), Just(AclAction::All)];
    let rule = ((name(), name(), name()), effect(), action, "(\\+|[a-z%]{1,8})(/[a-zß]{0,8}){0,3}(/#)?");
    let rule = rule.prop_map(|((user, client_id, listener), effect, action, topic)| AclRule {
        user,
        client_id,
        listener,
        effect,
        action,
        topic: TopicPattern::new(&topic).unwrap(),
    });
    let rules = (prop::collection::vec(rule, 0..4), prop::option::of(effect()));
    rules.prop_map(|(rules, default)| Terms { rules, default, expires_at: None })
}

prop_compose! {
    /// Without an expiry, which a retained message has elsewhere.
    fn properties()(
        payload_format_indicator in any::<Option<bool>>(),
        content_type in prop::option::of(text()),
        response_topic in prop::option::of(topic()),
        correlation_data in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
        user_properties in prop::collection::vec((text(), text()), 0..4),
    ) -> Option<Box<MessageProperties>> {
        let user_property = |(name, value)| UserProperty { name, value };
        MessageProperties {
            payload_format_indicator,
            message_expiry_interval: None,
            content_type,
            response_topic: response_topic.map(|topic| topic.text().clone()),
            correlation_data: correlation_data.map(Bytes::from),
            user_properties: user_properties.into_iter().map(user_property).collect(),
        }
        .boxed()
    }
}

fn payload() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

proptest! {
    #[test]
    fn session_record_round_trips(
        (number, owner, expiry, ended) in (1_u64.., owner(), any::<u32>(), any::<u64>()),
        address in any::<Option<std::net::Ipv6Addr>>(),
    ) {
        let record = SessionRecord { number: NonZeroU64::new(number).unwrap(), owner, expiry, ended, address };
        prop_assert_eq!(SessionRecord::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn subscription_record_round_trips(
        number in 1_u64..,
        filter in "(\\$share/g/)?[a-z+]{1}(/[a-zß]{1,8}){0,3}(/#)?",
        qos in qos(),
        (no_local, retain_as_published, handling) in (any::<bool>(), any::<bool>(), 0..3_usize),
        identifier in prop::option::of(1..=268_435_455_u32),
        weight in 1_u16..,
    ) {
        let number = NonZeroU64::new(number).unwrap();
        let filter = TopicFilter::try_from(&filter[..]).unwrap();
        let key = decode_subscription_key(&subscription_key(number, &filter));
        prop_assert_eq!(key, Ok((number.get(), filter)));
        let retain_handling = [RetainHandling::Always, RetainHandling::IfNew, RetainHandling::Never][handling];
        let options = SubscriptionOptions { qos, no_local, retain_as_published, retain_handling };
        let grant = Grant { options, identifier, weight: NonZeroU16::new(weight).unwrap() };
        prop_assert_eq!(decode_grant(&encode_grant(&grant)), Ok(grant));
    }

    #[test]
    fn retained_record_round_trips(
        (topic, qos, properties, payload) in (topic(), qos(), properties(), payload()),
        (time, interval) in any::<(u64, u32)>(),
    ) {
        let expiry = StoredExpiry { time, interval };
        let template = PublishTemplate::new(&topic, properties.as_deref(), &payload, &mut BytesMut::new());
        let record = RetainedRecord::decode(&RetainedRecord::encode(&template, qos, expiry).unwrap()).unwrap();
        let publish = record.publish;
        prop_assert!(publish.retain);
        prop_assert_eq!((publish.topic, publish.qos, publish.properties), (topic, qos, properties));
        prop_assert_eq!((publish.payload, record.expiry), (payload, expiry));
    }

    #[test]
    fn will_record_round_trips(
        (owner, due, qos, retain, topic) in (owner(), any::<u64>(), qos(), any::<bool>(), topic()),
        (payload, delay_interval, properties) in (payload(), prop::option::of(1_u32..), properties()),
        message_expiry_interval in any::<Option<u32>>(),
    ) {
        let properties = MessageProperties { message_expiry_interval, ..properties.map_or_else(Default::default, |properties| *properties) };
        let will = Will { qos, retain, topic, payload, delay_interval, properties: properties.boxed() };
        let record = WillRecord { owner, due, will };
        prop_assert_eq!(WillRecord::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn speed_record_round_trips(nanos in any::<u64>(), kept in any::<u64>()) {
        let record = SpeedRecord { processing_time: Duration::from_nanos(nanos), kept };
        prop_assert_eq!(SpeedRecord::decode(&record.encode()), Ok(record));
    }

    /// Decoding damaged bytes gives an error or another record, and does not panic.
    #[test]
    fn decoding_damaged_records_does_not_panic(
        owner in owner(),
        noise in prop::collection::vec(any::<u8>(), 0..80),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let will = Will {
            qos: QoS::AtLeastOnce,
            retain: true,
            topic: TopicName::try_from("a/b").unwrap(),
            payload: Bytes::from_static(b"payload"),
            delay_interval: Some(7),
            properties: None,
        };
        let template = PublishTemplate::new(&will.topic, None, &will.payload, &mut BytesMut::new());
        let number = NonZeroU64::MIN;
        let grant = Grant { options: SubscriptionOptions::default(), identifier: Some(3), weight: NonZeroU16::MIN };
        let whole = [
            SessionRecord { number, owner: owner.clone(), expiry: 1, ended: 2, address: None }.encode(),
            WillRecord { owner, due: 1, will }.encode(),
            RetainedRecord::encode(&template, QoS::ExactlyOnce, StoredExpiry { time: 5, interval: 6 }).unwrap(),
            encode_grant(&grant),
            subscription_key(number, &TopicFilter::try_from("a/#").unwrap()),
            noise,
        ];
        for mut record in whole {
            for decode in DECODERS {
                let _ = decode(&record[..cut.index(record.len() + 1)]);
            }
            for (at, byte) in &damage {
                if !record.is_empty() {
                    let at = at.index(record.len());
                    record[at] = *byte;
                }
            }
            for decode in DECODERS {
                let _ = decode(&record);
            }
        }
    }
}

const DECODERS: [fn(&[u8]) -> bool; 6] = [
    |record| SessionRecord::decode(record).is_ok(),
    |record| WillRecord::decode(record).is_ok(),
    |record| RetainedRecord::decode(record).is_ok(),
    |record| SpeedRecord::decode(record).is_ok(),
    |record| decode_grant(record).is_ok(),
    |record| decode_subscription_key(record).is_ok(),
];

#[test]
fn record_of_a_later_version_or_wrong_length_is_refused() {
    let record = SpeedRecord { processing_time: Duration::from_secs(1), kept: 1 }.encode();
    let refusals = [[&[2], &record[1..]].concat(), [&record[..], &[0]].concat(), record[..5].to_vec()];
    let said = refusals.map(|record| SpeedRecord::decode(&record).unwrap_err().to_string());
    assert_eq!(said, ["version 2 is unknown", "it is too long", "it is too short"]);
}

#[test]
fn retained_message_too_large_for_mqtt_5_is_not_stored() {
    let topic = TopicName::try_from("a/b").unwrap();
    // Remaining Length counts topic and payload in MQTT 3.1.1; MQTT 5.0 adds at least the length of the properties.
    for (payload_len, is_kept) in [(VARINT_MAX - 5, false), (100, true)] {
        let payload = Bytes::from(vec![0; payload_len as usize]);
        let template = PublishTemplate::new(&topic, None, &payload, &mut BytesMut::new());
        let expiry = WallClock::now().to_stored_expiry(None);
        assert_eq!(RetainedRecord::encode(&template, QoS::AtMostOnce, expiry).is_some(), is_kept);
    }
}

/// A retained message's record with 20 seconds left, and when they began.
fn expiring(clock: WallClock) -> (Vec<u8>, Instant) {
    let start = clock.to_instant(1).unwrap();
    let topic = TopicName::try_from("a/b").unwrap();
    let template = PublishTemplate::new(&topic, None, &Bytes::from_static(b"hi"), &mut BytesMut::new());
    let expiry = clock.to_stored_expiry(Some(start + Duration::from_secs(20)));
    (RetainedRecord::encode(&template, QoS::AtLeastOnce, expiry).unwrap(), start)
}

#[test]
fn mqtt_3_3_2_6_clock_set_back_does_not_raise_retained_expiry() {
    let clock = WallClock::now();
    let (record, start) = expiring(clock);
    for set_back in [0, 1, 86_400].map(Duration::from_secs) {
        let expiry = RetainedRecord::decode(&record).unwrap().expiry;
        let expires_at = clock.set_back(set_back).expires_at(expiry);
        assert_eq!(expires_at, Some(start + Duration::from_secs(20)), "{set_back:?}");
    }
}

#[test]
fn retained_record_of_the_older_version_is_read() {
    let clock = WallClock::now();
    let (record, start) = expiring(clock);
    let older = [&[1], &record[1..9], &record[13..]].concat();
    let (older, newer) = (RetainedRecord::decode(&older).unwrap(), RetainedRecord::decode(&record).unwrap());
    assert_eq!((older.publish, older.expiry.time), (newer.publish, newer.expiry.time));
    assert_eq!(clock.expires_at(older.expiry), Some(start + Duration::from_secs(20)));
    let later = [&[3], &record[1..]].concat();
    assert_eq!(RetainedRecord::decode(&later).unwrap_err().to_string(), "version 3 is unknown");
}

#[test]
fn session_expiry_is_known_once_its_connection_has_ended() {
    let owner = Owner { user: None, realm: "".into(), listener: "l".into(), rules: None };
    let expires = |expiry, ended| {
        SessionRecord { number: NonZeroU64::MIN, owner: owner.clone(), expiry, ended, address: None }.expires()
    };
    assert_eq!([expires(60, 5000), expires(60, 0), expires(u32::MAX, 5000)], [65_000, 0, 0]);
}
