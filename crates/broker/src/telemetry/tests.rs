use bytes::{Bytes, BytesMut};
use tenbin_codec::{MessageProperties, TopicName};

use super::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn client() -> Text {
    Text::from_static("client")
}

/// A message with these User Properties `traceparent`.
fn message(values: &[&str]) -> Publication {
    let named = |value: &&str| UserProperty::new(Text::from_static("traceparent"), Text::try_from(*value).unwrap());
    let user_properties = values.iter().map(named).collect();
    let properties = MessageProperties { user_properties, ..MessageProperties::default() };
    let properties = (!values.is_empty()).then(|| Box::new(properties));
    Publication { properties, ..Publication::new(TopicName::try_from("t").unwrap(), Bytes::from_static(b"four")) }
}

fn values(publication: &Publication) -> Vec<String> {
    let properties = publication.properties.iter().flat_map(|properties| &properties.user_properties);
    properties.map(|property| property.value.as_str().to_owned()).collect()
}

fn begin(telemetry: &Telemetry, publication: &mut Publication) -> Option<u64> {
    telemetry.begin(&client(), publication, Instant::now()).map(|span| span.id)
}

#[test]
fn only_the_first_sampled_context_is_rewritten() {
    let telemetry = Telemetry::new(0.0);
    let sampled = format!("00-{TRACE}-b7ad6b7169203331-01");
    let unsampled = sampled.replace("-01", "-00");
    let mut first = message(&[&sampled, &sampled]);
    let id = begin(&telemetry, &mut first).unwrap();
    assert_eq!(values(&first), [format!("00-{TRACE}-{id:016x}-01"), sampled.clone()]);
    for other in [&[][..], &[&unsampled[..], &sampled], &["broken", &sampled]] {
        let mut publication = message(other);
        assert_eq!(begin(&telemetry, &mut publication), None);
        assert_eq!(publication, message(other), "unchanged");
    }
}

#[test]
fn share_of_the_messages_begins_a_trace() {
    for (ratio, counts) in [(0.0, 0..=0), (0.5, 350..=650), (1.0, 1000..=1000)] {
        let telemetry = Telemetry::new(ratio);
        let count = (0..1000).filter(|_| begin(&telemetry, &mut message(&[])).is_some()).count();
        assert!(counts.contains(&count), "{ratio}: {count}");
        assert!(begin(&telemetry, &mut message(&["broken"])).is_none(), "{ratio}: it has a property");
    }
    let (telemetry, mut publication) = (Telemetry::new(1.0), message(&[]));
    let id = begin(&telemetry, &mut publication).unwrap();
    let value = &values(&publication)[0];
    assert!(value.len() == 55 && value.ends_with(&format!("-{id:016x}-01")), "{value}");
}

#[test]
fn oldest_messages_are_forgotten() {
    let telemetry = Telemetry::new(1.0);
    let template = || {
        let mut publication = message(&[]);
        begin(&telemetry, &mut publication).unwrap();
        publication.template(&mut BytesMut::new())
    };
    let (first, second) = (template(), template());
    (2..KNOWN_MAX).for_each(|_| drop(template()));
    assert!(telemetry.span_of(&first).is_some());
    template();
    assert_eq!((telemetry.span_of(&first), telemetry.span_of(&second).is_some()), (None, true));
    let known = telemetry.known();
    assert_eq!((known.messages.len(), known.order.len()), (KNOWN_MAX, KNOWN_MAX));
}

#[test]
fn retained_message_of_an_earlier_time_has_no_span() {
    let (telemetry, mut publication) = (Telemetry::new(1.0), message(&[]));
    begin(&telemetry, &mut publication).unwrap();
    let delivery = Delivery::new(publication.template(&mut BytesMut::new()), QoS::AtMostOnce, true);
    assert!(telemetry.deliver(&delivery, &client()).is_none());
    telemetry.deliver(&Delivery { retain: false, ..delivery }, &client()).unwrap().forget();
}
