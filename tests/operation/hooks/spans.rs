//! Spans for a collector of OpenTelemetry.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenbin_broker::ConfigCheck;
use tenbin_codec::{
    Ack, Connect, MessageProperties, Packet, PacketType, PingBody, PingReq, ProtocolVersion, Publish, QoS, ReasonCode,
    UserProperty,
};

use crate::hooks::stage::Stage;
use crate::support::{PATIENCE, RawClient, WebAnswer, WebServer, at_qos, lasting, message, retained, share, text};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A stand-in for a collector, and a broker that sends it spans.
struct Traced {
    collector: WebServer,
    stage: Stage,
}

impl Traced {
    fn start(keys: &str) -> Self {
        let collector = WebServer::start(|_| WebAnswer::new(200, "{}"));
        let otlp = format!("[telemetry]\notlp = 'http://{}/'\n{keys}", collector.address());
        Self { stage: Stage::start(&otlp, |builder| builder), collector }
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Span> {
        let requests = self.collector.requests().into_iter();
        let spans = |body: &str| -> Vec<Value> {
            let content: Value = serde_json::from_str(body).expect("JSON");
            let resource = &content["resourceSpans"][0];
            assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "tenbin");
            resource["scopeSpans"][0]["spans"].as_array().expect("spans").clone()
        };
        let spans = requests.flat_map(|request| {
            assert_eq!((&request.path[..], request.header("content-type")), ("/v1/traces", Some("application/json")));
            spans(&request.body)
        });
        spans.map(Span).collect()
    }

    /// Waits for a span.
    fn wait_for(&self, is_wanted: impl Fn(&Span) -> bool) -> Span {
        let begin = Instant::now();
        loop {
            let spans = self.spans();
            if let Some(span) = spans.iter().find(|span| is_wanted(span)) {
                return span.clone();
            }
            assert!(begin.elapsed() < PATIENCE, "not among {spans:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the span with this name of the client, and the parent, in the form of a `traceparent`.
    fn span(&self, name: &str, client: &str, parent: &str) -> Span {
        self.wait_for(|span| span.is(name, client) && span.parent() == parent[3..52])
    }
}

#[derive(Debug, Clone)]
struct Span(Value);

impl Span {
    fn is(&self, name: &str, client: &str) -> bool {
        self.0["name"] == name && self.text("messaging.client.id") == client
    }

    fn field(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    fn parent(&self) -> String {
        format!("{}-{}", self.field("traceId"), self.field("parentSpanId"))
    }

    /// The `traceparent` of messages below this span.
    fn context(&self) -> String {
        format!("00-{}-{}-01", self.field("traceId"), self.field("spanId"))
    }

    fn attribute(&self, key: &str) -> Option<&Value> {
        let attributes = self.0["attributes"].as_array().expect("attributes");
        attributes.iter().find(|attribute| attribute["key"] == key).map(|attribute| &attribute["value"])
    }

    /// The value of an attribute, or nothing.
    fn text(&self, key: &str) -> &str {
        self.attribute(key).and_then(|value| value["stringValue"].as_str()).unwrap_or_default()
    }

    fn number(&self, key: &str) -> u64 {
        self.attribute(key).and_then(|value| value["intValue"].as_str()?.parse().ok()).expect(key)
    }

    fn begin(&self) -> u64 {
        self.field("startTimeUnixNano").parse().expect("nanoseconds")
    }

    fn end(&self) -> u64 {
        self.field("endTimeUnixNano").parse().expect("nanoseconds")
    }

    fn events(&self) -> Vec<&str> {
        self.0["events"].as_array().into_iter().flatten().filter_map(|event| event["name"].as_str()).collect()
    }

    fn error(&self) -> Option<&str> {
        self.0["status"]["message"].as_str().filter(|_| self.0["status"]["code"] == 2)
    }
}

/// The context of a client's own span, with these flags.
fn context(span: u64, flags: &str) -> String {
    format!("00-{TRACE}-{span:016x}-{flags}")
}

/// `publish` with a User Property `traceparent`.
fn traced(publish: Publish, context: &str) -> Publish {
    let user_properties =
        vec![UserProperty::new(text("a"), text("b")), UserProperty::new(text("traceparent"), text(context))];
    let properties = MessageProperties { user_properties, ..MessageProperties::default() };
    Publish { properties: properties.boxed(), ..publish }
}

/// The `traceparent` that a receiver has got.
fn received(publish: &Publish) -> &str {
    let properties = publish.properties.iter().flat_map(|properties| &properties.user_properties);
    let mut contexts = properties.filter(|property| property.name.as_str() == "traceparent");
    let context = contexts.next().expect("a context").value.as_str();
    assert_eq!((context.len(), contexts.next()), (55, None));
    context
}

/// Tells the broker the load of a worker.
fn report(worker: &mut RawClient, queued: u32, milliseconds: u32) {
    let payload = json!({ "msgsInQueue": queued, "processingTimePerMsg": milliseconds }).to_string().into();
    let body = PingBody { payload, ..PingBody::default() };
    worker.send(&Packet::PingReq(PingReq { body: Some(Box::new(body)) }));
    worker.wait_for(PacketType::PingResp);
}

#[test]
fn spans_name_the_chosen_member_and_the_reason() {
    let traced_broker = Traced::start("");
    let mut workers = ["one", "other"].map(|name| (name, traced_broker.stage.connect(name)));
    for (_, worker) in &mut workers {
        worker.subscribe(&share("workers", "work/#"), QoS::AtLeastOnce);
    }
    let mut watcher = traced_broker.stage.connect("watcher");
    watcher.subscribe("work/#", QoS::AtMostOnce);
    let mut older = traced_broker.stage.connect_with(Connect::new(ProtocolVersion::V311, text("older")));
    older.subscribe("work/#", QoS::ExactlyOnce);
    let mut publisher = traced_broker.stage.connect("publisher");

    for number in 0..8_usize {
        // Each worker is the slow one in turn: it has 5,000 s of work.
        let (fast, slow) = (number / 2 % 2, 1 - number / 2 % 2);
        report(&mut workers[slow].1, 50, 100_000);
        report(&mut workers[fast].1, 0, 1);
        let sent = context(1 + number as u64, "01");
        publisher.publish_with(traced(at_qos("work/1", "12345", QoS::ExactlyOnce), &sent));
        let (member, worker) = &mut workers[fast];
        let got = worker.receive_message();
        let publish = traced_broker.span("publish", "publisher", &sent);
        let deliver = traced_broker.span("deliver", member, &publish.context());
        assert_eq!(received(&got), publish.context());
        assert_eq!(received(&watcher.receive_message()), publish.context());
        assert_eq!(older.receive_message().properties, None);
        for (span, kind) in [(&publish, 4), (&deliver, 5)] {
            assert_eq!(span.0["kind"], kind);
            assert_eq!(span.text("tenbin.group"), "$share/workers/work/#");
            assert_eq!((span.text("tenbin.member"), span.text("tenbin.reason")), (*member, "least_wait"));
            let wait = span.attribute("tenbin.predicted_wait_ms").and_then(|wait| wait["doubleValue"].as_f64());
            assert!(wait.is_some_and(|wait| wait < 5e6), "{span:?}");
            assert_eq!(span.text("messaging.system"), "mqtt");
            assert_eq!(span.text("messaging.destination.name"), "work/1");
            assert_eq!(span.number("messaging.message.body.size"), 5);
            assert!(span.error().is_none() && span.begin() <= span.end());
        }
        assert_eq!((publish.number("tenbin.receivers"), deliver.events()), (3, vec!["chosen", "sent"]));
        assert!(publish.begin() <= deliver.begin() && deliver.begin() <= publish.end());
        for (client, qos) in [("watcher", 0), ("older", 2)] {
            let deliver = traced_broker.span("deliver", client, &publish.context());
            assert_eq!((deliver.text("tenbin.group"), deliver.number("tenbin.qos")), ("", qos));
        }
    }
    let spans = traced_broker.spans();
    let ids: BTreeSet<_> = spans.iter().map(|span| span.field("spanId")).collect();
    assert_eq!((spans.len(), ids.len()), (32, 32), "one publish and three deliver for each message");
    assert!(spans.iter().all(|span| span.field("traceId") == TRACE));
}

#[test]
fn messages_that_are_not_sampled_pass_as_they_are() {
    let traced_broker = Traced::start("");
    let mut client = traced_broker.stage.connect("client");
    client.subscribe("t", QoS::AtMostOnce);
    for context in [&context(1, "00")[..], "", "00-1-1-01", &context(0, "01"), &context(0xabc, "01").to_uppercase()] {
        let sent = traced(message("t", "x"), context);
        client.publish_with(sent.clone());
        assert_eq!(client.receive_publish(), sent);
    }
    client.publish_with(message("t", "plain"));
    assert_eq!(client.receive_publish(), message("t", "plain"));
    client.publish_with(traced(message("t", "x"), &context(7, "01")));
    let publish = traced_broker.span("publish", "client", &context(7, "01"));
    traced_broker.span("deliver", "client", &publish.context());
    assert_eq!(traced_broker.spans().len(), 2, "the others have none");
}

#[test]
fn waiting_message_is_delivered_from_when_it_was_published() {
    let traced_broker = Traced::start("");
    let connect = || traced_broker.stage.connect_with(lasting(ProtocolVersion::V5, "member"));
    let mut member = connect();
    member.subscribe(&share("g", "work"), QoS::AtLeastOnce);
    member.disconnect();
    let mut publisher = traced_broker.stage.connect("publisher");
    publisher.publish_with(traced(at_qos("work", "1", QoS::AtLeastOnce), &context(1, "01")));
    let publish = traced_broker.span("publish", "publisher", &context(1, "01"));
    assert_eq!((publish.text("tenbin.reason"), publish.text("tenbin.member")), ("nobody", ""));

    let mut member = connect();
    let work = member.receive_publish();
    member.send(&Packet::PubAck(Ack::new(work.packet_id.expect("QoS 1"), ReasonCode::UnspecifiedError)));
    let deliver = traced_broker.span("deliver", "member", &publish.context());
    assert_eq!((deliver.text("tenbin.reason"), deliver.text("tenbin.member")), ("waited", "member"));
    assert!(deliver.begin() <= publish.end(), "it has waited since then");
    assert!(deliver.error().is_some_and(|error| error.contains("0x80")), "{deliver:?}");
}

#[test]
fn lost_connection_ends_the_span_and_the_next_has_another() {
    let traced_broker = Traced::start("");
    let mut first = traced_broker.stage.connect("first");
    first.subscribe(&share("g", "work"), QoS::AtLeastOnce);
    let mut publisher = traced_broker.stage.connect("publisher");
    publisher.publish_with(traced(at_qos("work", "1", QoS::AtLeastOnce), &context(1, "01")));
    first.receive_publish();
    let mut second = traced_broker.stage.connect("second");
    second.subscribe(&share("g", "work"), QoS::AtLeastOnce);
    first.cut();
    let work = second.receive_message();
    let publish = traced_broker.span("publish", "publisher", &context(1, "01"));
    assert_eq!(received(&work), publish.context());
    let lost = traced_broker.span("deliver", "first", &publish.context());
    assert!(lost.error().is_some_and(|error| error.contains("connection has ended")), "{lost:?}");
    let deliver = traced_broker.span("deliver", "second", &publish.context());
    assert_eq!((deliver.error(), deliver.text("tenbin.member")), (None, "second"));
}

#[test]
fn retained_message_keeps_its_context_and_begins_no_span() {
    let traced_broker = Traced::start("");
    let mut publisher = traced_broker.stage.connect("publisher");
    publisher.publish_with(traced(retained("t", "1"), &context(1, "01")));
    let publish = traced_broker.span("publish", "publisher", &context(1, "01"));
    let mut late = traced_broker.stage.connect("late");
    late.subscribe("t", QoS::AtLeastOnce);
    assert_eq!(received(&late.receive_message()), publish.context());
    publisher.publish_with(traced(at_qos("t", "2", QoS::AtLeastOnce), &context(2, "01")));
    late.receive_message();
    let next = traced_broker.span("publish", "publisher", &context(2, "01"));
    traced_broker.span("deliver", "late", &next.context());
    assert_eq!(traced_broker.spans().len(), 3);
}

#[test]
fn ratio_of_one_begins_a_trace_with_each_message() {
    let traced_broker = Traced::start("root_ratio = 1.0\n");
    let mut receiver = traced_broker.stage.connect("receiver");
    receiver.subscribe("t", QoS::AtMostOnce);
    let mut traces = BTreeSet::new();
    for (version, client) in [(ProtocolVersion::V5, "newer"), (ProtocolVersion::V311, "older")] {
        let mut publisher = traced_broker.stage.connect_with(Connect::new(version, text(client)));
        for _ in 0..2 {
            publisher.publish("t", "1", QoS::AtMostOnce);
            let context = received(&receiver.receive_publish()).to_owned();
            traced_broker.span("deliver", "receiver", &context);
            let publish = traced_broker.wait_for(|span| span.context() == context);
            assert!(publish.is("publish", client) && publish.0.get("parentSpanId").is_none(), "{publish:?}");
            traces.insert(publish.field("traceId").to_owned());
        }
    }
    assert_eq!(traces.len(), 4);
}

#[test]
fn spans_are_counted_and_rejected_ones_are_dropped() {
    let traced_broker = Traced::start("");
    traced_broker.collector.answer(|_| WebAnswer::new(200, r#"{"partialSuccess":{"rejectedSpans":"1"}}"#));
    let mut client = traced_broker.stage.connect("client");
    client.subscribe("t", QoS::AtLeastOnce);
    client.publish_with(traced(at_qos("t", "1", QoS::AtLeastOnce), &context(1, "01")));
    client.drain();
    let begin = Instant::now();
    let counted = || {
        let metrics = traced_broker.stage.broker().metrics();
        (metrics.telemetry_sent, metrics.telemetry_dropped)
    };
    while counted().0 + counted().1 < 2 {
        assert!(begin.elapsed() < PATIENCE, "{:?}", counted());
        std::thread::sleep(Duration::from_millis(10));
    }
    let requests = traced_broker.collector.requests().len() as u64;
    assert_eq!(counted(), (2 - requests, requests), "one of each request is rejected");
}

#[test]
fn spans_are_dropped_while_the_collector_is_gone() {
    // Only the super-user may listen on this port.
    let stage = Stage::start("[telemetry]\notlp = 'http://127.0.0.1:1'\n", |builder| builder);
    let mut publisher = stage.connect("publisher");
    for number in 1..=5200 {
        publisher.publish_with(traced(message("t", "1"), &context(number, "01")));
    }
    let last = traced(at_qos("t", "1", QoS::AtLeastOnce), &context(1, "01"));
    assert_eq!(publisher.publish_with(last), ReasonCode::NoMatchingSubscribers);
    // 4,096 spans wait, and at most one batch is on its way.
    assert!(stage.broker().metrics().telemetry_dropped >= 5201 - 4096 - 512);
}

#[test]
fn check_names_keys_of_telemetry_that_are_wrong() {
    for (keys, word) in [
        ("root_ratio = 0.5", "telemetry.root_ratio: needs telemetry.otlp"),
        ("otlp = 'http://a:b:c'", "telemetry.otlp: "),
        ("otlp = 'collector:4318'", "otlp: needs to be an URL"),
        ("otpl = 'http://collector:4318'", "otpl"),
    ] {
        let errors = ConfigCheck::of(&format!("[telemetry]\n{keys}\n"), std::iter::empty()).errors;
        assert!(errors.len() == 1 && errors[0].contains(word), "{keys}: {errors:?}");
    }
    let legal = "[telemetry]\notlp = 'https://collector:4318'\nroot_ratio = 0.01\n";
    assert_eq!(ConfigCheck::of(legal, std::iter::empty()).errors, Vec::<String>::new());
}
