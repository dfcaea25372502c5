//! The broker as other parts of the embedding program use it.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use tenbin_broker::hooks::{
    Client, Events, Handle, Hooks, MessageProperties, Publication, PublishError, Received, Subscription, Verdict,
};
use tenbin_broker::{Config, Message};
use tenbin_codec::{QoS, ReasonCode};

use crate::hooks::stage::Stage;
use crate::support::{PATIENCE, filter, retained, text};

impl Stage {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime().block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("it ends") })
    }

    fn next(&self, subscription: &mut Subscription) -> Received {
        self.block_on(subscription.next()).expect("a message")
    }

    fn publish(&self, message: Message) -> Result<usize, PublishError> {
        self.block_on(self.broker().handle().publish(message))
    }
}

fn message(topic: &str, payload: &'static str) -> Message {
    Message::new(topic, payload).expect("a topic").qos(QoS::AtLeastOnce)
}

fn payload(received: &Received) -> &str {
    std::str::from_utf8(&received.message.payload).expect("text")
}

#[test]
fn program_publishes_to_clients() {
    let stage = Stage::start("", |builder| builder);
    let mut client = stage.connect("client");
    client.subscribe("greeting/#", QoS::AtLeastOnce);
    let message = message("greeting/1", "hello").user_property("from", "here").expect("text").retain(true);
    assert_eq!(stage.publish(message), Ok(1));
    let received = client.receive_message();
    assert_eq!((received.topic.as_bytes(), &received.payload[..]), (&b"greeting/1"[..], &b"hello"[..]));
    assert_eq!(received.properties.expect("its own").user_properties[0].value.as_str(), "here");
    client.unsubscribe(&["greeting/#"]);
    client.subscribe("greeting/#", QoS::AtLeastOnce);
    assert!(client.receive_message().retain);
}

#[test]
fn refused_message_is_an_error() {
    let stage = Stage::start("[queue]\nmessages_maximum = 1\n", |builder| builder);
    assert_eq!(stage.publish(message("$SYS/x", "1")), Err(PublishError::Refused(ReasonCode::NotAuthorized)));
    let handle = stage.broker().handle();
    let _full = handle.subscribe(&filter("work"), QoS::AtLeastOnce).expect("it runs");
    assert_eq!(stage.publish(message("work", "1")), Ok(1));
    assert_eq!(stage.publish(message("work", "2")), Err(PublishError::Refused(ReasonCode::QuotaExceeded)));
}

/// Publishes from a hook: at once, which is an error, and by a task.
struct Echo(OnceLock<Handle>);

impl Hooks for Echo {
    fn wants(&self) -> Events {
        Events::STARTED | Events::PUBLISH
    }

    fn started(&self, broker: &Handle) {
        self.0.get_or_init(|| broker.clone());
    }

    fn publish(&self, _client: &Client, publication: &mut Publication) -> Verdict {
        let handle = self.0.get().expect("the broker has started").clone();
        let echo = || Message::new("echo", publication.payload.clone()).expect("a topic");
        let at_once = pin!(handle.publish(echo())).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(at_once, Poll::Ready(Err(PublishError::InHook)));
        let (later, handle) = (echo(), handle.clone());
        tokio::spawn(async move { handle.publish(later).await });
        Verdict::Go
    }
}

#[test]
fn publishing_inside_a_hook_is_an_error() {
    let stage = Stage::start("", |builder| builder.hooks(Echo(OnceLock::new())));
    let mut client = stage.connect("client");
    client.subscribe("echo", QoS::AtMostOnce);
    assert_eq!(client.publish("a", "1", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    assert_eq!(client.receive_message().payload, "1");
    assert_eq!(stage.publish(message("echo", "2")), Ok(1), "outside of the hook");
}

#[test]
fn illegal_message_of_the_program_is_an_error() {
    let stage = Stage::start("", |builder| builder);
    let response_topic = |topic: &str| MessageProperties { response_topic: Some(text(topic)), ..Default::default() };
    let no_text = MessageProperties { payload_format_indicator: Some(true), ..Default::default() };
    let mut wrong_response = message("a", "1");
    wrong_response.properties = response_topic("a/+").boxed();
    let mut wrong_text = message("a", "1");
    (wrong_text.properties, wrong_text.payload) = (no_text.boxed(), vec![0xff].into());
    for (message, reason) in [
        (message("$load", "1"), ReasonCode::TopicNameInvalid),
        (message("$SYS/broker/connection/b/state", "1"), ReasonCode::NotAuthorized),
        (message(&"a/".repeat(1000), "1"), ReasonCode::TopicNameInvalid),
        (wrong_response, ReasonCode::TopicNameInvalid),
        (wrong_text, ReasonCode::PayloadFormatInvalid),
        (Message::new("a", vec![0; 5 << 20]).expect("a topic"), ReasonCode::PacketTooLarge),
    ] {
        assert_eq!(stage.publish(message), Err(PublishError::Refused(reason)));
    }
}

#[test]
fn program_receives_live_and_retained_messages() {
    let stage = Stage::start("", |builder| builder);
    let mut client = stage.connect("client");
    client.publish_with(retained("a/1", "kept"));
    let mut all = stage.broker().handle().subscribe(&filter("a/+"), QoS::AtLeastOnce).expect("it runs");
    let kept = stage.next(&mut all);
    assert_eq!((payload(&kept), kept.retained), ("kept", true));
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        client.publish("a/2", "live", qos);
        let live = stage.next(&mut all);
        assert_eq!((payload(&live), live.retained, live.message.topic.as_bytes()), ("live", false, &b"a/2"[..]));
        assert_eq!(live.message.qos, qos.min(QoS::AtLeastOnce));
    }
    assert_eq!(stage.broker().sessions(), 1, "the program has no client");
    drop(all);
    assert_eq!(client.publish("a/2", "late", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
}

#[test]
fn program_is_a_member_of_share_groups() {
    let stage = Stage::start("", |builder| builder);
    let mut publisher = stage.connect("publisher");
    let shared = filter("$share/workers/work");
    let handle = stage.broker().handle();
    let mut members = [(); 2].map(|()| handle.subscribe(&shared, QoS::AtLeastOnce).expect("it runs"));
    for number in 0..10 {
        publisher.publish("work", &number.to_string(), QoS::AtLeastOnce);
    }
    let [first, _] = &mut members;
    let taken = payload(&stage.next(first)).to_owned();
    let mut all = vec![taken];
    // Messages that the first member has not taken go to the second one.
    let [first, _] = &mut members;
    drop(std::mem::replace(first, handle.subscribe(&filter("other"), QoS::AtMostOnce).expect("it runs")));
    let [_, second_again] = &mut members;
    all.extend((1..10).map(|_| payload(&stage.next(second_again)).to_owned()));
    all.sort();
    assert_eq!(all, (0..10).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn handle_reloads_and_counts() {
    let stage = Stage::start("", |builder| builder);
    let handle = stage.broker().handle().clone();
    let mut client = stage.connect("client");
    client.publish("a", "1", QoS::AtLeastOnce);
    client.settle();
    assert_eq!(handle.metrics().expect("it runs").messages_received, 1);
    let denied = "listen = ['127.0.0.1:0']\n[[acl]]\ndeny = 'publish'\ntopic = 'a'\n";
    handle.reload(&Config::parse(denied).expect("legal keys")).expect("nothing is in the way");
    assert_eq!(client.publish("a", "2", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    // Rules of clients are none of the program.
    let mut all = handle.subscribe(&filter("#"), QoS::AtMostOnce).expect("it runs");
    assert_eq!(stage.publish(message("a", "3")), Ok(1));
    assert_eq!(payload(&stage.next(&mut all)), "3");
}

#[test]
fn handle_of_a_stopped_broker_says_so() {
    let mut stage = Stage::start("", |builder| builder);
    let handle = stage.broker().handle().clone();
    let mut all = handle.subscribe(&filter("#"), QoS::AtMostOnce).expect("it runs");
    let waits = stage.runtime().spawn(async move { all.next().await });
    stage.shutdown();
    assert_eq!(stage.block_on(waits).expect("no panic"), None);
    assert!(handle.metrics().is_err() && handle.subscribe(&filter("#"), QoS::AtMostOnce).is_err());
    assert!(matches!(stage.block_on(handle.publish(message("a", "1"))), Err(PublishError::Stopped(_))));
    assert!(handle.reload(&Config::default()).is_err());
}
