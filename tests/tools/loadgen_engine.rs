//! The driver of `tenbin-loadgen run` against the broker: all messages of a plan arrive once and in order.

use std::time::Duration;

use crate::support::BrokerProcess;
use tenbin_codec::QoS;
use tenbin_loadgen::run::{
    Audience, Broker, ConnectionOptions, Outcome, Pace, Plan, Publishers, Schedule, Verdict, Version, run_plan,
};

/// Two publishers with 20 messages each of 100 bytes, and one subscriber to all of them.
fn plan(broker: &BrokerProcess) -> Plan {
    let publishers = Publishers {
        payload: 100,
        messages: Some(20),
        in_flight: 10,
        ..Publishers::new(2, "engine/{publisher}/{topic}")
    };
    let brokers = vec![Broker::new("ours", "127.0.0.1", broker.address().port())];
    Plan {
        connection: ConnectionOptions { keep_alive: 10, ..ConnectionOptions::new("engine") },
        // Only failing tests last so long.
        schedule: Schedule { subscriber_timeout: Duration::from_secs(20), ..Schedule::default() },
        ..Plan::new(77, brokers, publishers, vec![audience("all", "engine/#", 0)])
    }
}

fn audience(name: &str, filter: &str, qos: u8) -> Audience {
    Audience { qos, ..Audience::new(name, 1, filter) }
}

fn run(plan: &Plan) -> Outcome {
    run_plan(plan).unwrap_or_else(|error| panic!("{error}"))
}

/// Asserts `expected` deliveries, with no message lost, doubled or out of order.
#[track_caller]
fn assert_flawless(outcome: &Outcome, expected: u64) {
    let flawless = Verdict { expected, received: expected, exact: true, ..Verdict::default() };
    assert_eq!(outcome.verdict, flawless, "{:?}", outcome.notes);
}

#[test]
fn all_levels_of_quality_on_both_sides_and_both_versions() {
    let broker = BrokerProcess::start(&[]);
    for version in [Version::V5, Version::V311] {
        for (publish, subscribe) in [(0, 0), (1, 1), (2, 2), (0, 2), (2, 0), (1, 2), (2, 1)] {
            let mut plan = plan(&broker);
            plan.connection.version = version;
            plan.publishers.qos = publish;
            plan.publishers.messages = Some(500);
            plan.audiences = vec![audience("all", "engine/#", subscribe), audience("one", "engine/1/0", subscribe)];
            let outcome = run(&plan);
            assert_flawless(&outcome, 1500);
            assert_eq!((outcome.published.messages, outcome.received.messages), (1000, 1500));
            assert_eq!((outcome.connections.accepted, outcome.unsent), (4, 0));
        }
    }
}

#[test]
fn each_message_goes_to_one_member_of_each_share_group() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let group = |name: &str, count| Audience { share: Some(name.into()), count, ..audience(name, "engine/#", 1) };
    for threads in [1, 2, 3] {
        let mut plan = plan(&broker);
        plan.threads = threads;
        plan.publishers.qos = 1;
        plan.publishers.messages = Some(300);
        plan.audiences = vec![group("one", 3), group("two", 2)];
        let outcome = run(&plan);
        assert_flawless(&outcome, 1200);
        for audience in &outcome.audiences {
            assert_eq!(audience.verdict.received, 600, "{}", audience.name);
            assert!(audience.subscribers.iter().all(|member| member.received > 0), "{audience:?}");
        }
    }
}

#[test]
fn many_topics_wildcards_and_a_filter_for_each_subscriber() {
    let broker = BrokerProcess::start(&[]);
    let mut plan = plan(&broker);
    plan.publishers = Publishers { count: 4, topics: 25, messages: Some(500), ..plan.publishers };
    plan.audiences = vec![
        audience("everything", "engine/#", 0),
        audience("of one publisher", "engine/2/+", 0),
        audience("of one topic", "engine/+/7", 0),
        Audience { count: 3, ..audience("each its own", "engine/{subscriber}/24", 0) },
        audience("nothing", "elsewhere/#", 0),
    ];
    let outcome = run(&plan);
    let received: Vec<_> = outcome.audiences.iter().map(|audience| audience.verdict.received).collect();
    assert_eq!(received, [2000, 500, 80, 60, 0]);
    assert_flawless(&outcome, 2640);
}

#[test]
fn payloads_from_eight_bytes_to_several_reads() {
    let broker = BrokerProcess::start(&[]);
    for (payload, messages, exact) in [(8, 1000, false), (19, 1000, false), (20, 1000, true), (300_000, 20, true)] {
        for qos in [0, 1] {
            let mut plan = plan(&broker);
            plan.publishers = Publishers { payload, qos, messages: Some(messages), ..plan.publishers };
            plan.audiences = vec![audience("all", "engine/#", qos)];
            let outcome = run(&plan);
            let expected = 2 * messages;
            let verdict = Verdict { expected, received: expected, exact, ..Verdict::default() };
            assert_eq!(outcome.verdict, verdict, "{payload} {qos}");
        }
    }
}

#[test]
fn an_open_loop_keeps_its_schedule() {
    let broker = BrokerProcess::start(&[]);
    let mut plan = plan(&broker);
    plan.publishers.pace = Pace::Open { interval: Duration::from_micros(500) };
    plan.publishers.messages = Some(1000);
    plan.records = true;
    let outcome = run(&plan);
    assert_flawless(&outcome, 2000);
    // The last message is due after half a second, and none is sent before it is due. A busy machine may take longer.
    assert!(outcome.seconds >= 0.4995, "{}", outcome.seconds);
    let latency = outcome.latency.expect("there were messages");
    let uncorrected = outcome.latency_uncorrected.expect("there is room for it");
    assert!(latency.max >= uncorrected.max && latency.mean >= uncorrected.mean);
    assert!(latency.min > 0.0 && outcome.latest_send_ms >= 0.0);
}

#[test]
fn open_loop_reports_messages_that_were_due_and_not_sent() {
    let broker = BrokerProcess::start(&[]);
    let mut plan = plan(&broker);
    // One message in flight at a time: more are due than round trips are possible.
    plan.publishers = Publishers { qos: 2, in_flight: 1, messages: None, ..plan.publishers };
    plan.publishers.pace = Pace::Open { interval: Duration::from_micros(2) };
    plan.schedule.time_limit = Duration::from_millis(300);
    let outcome = run(&plan);
    let published = outcome.published.messages;
    assert_flawless(&outcome, published);
    let due = 2 * 300_000 / 2;
    assert!(published > 0 && outcome.unsent > 0, "{published} {}", outcome.unsent);
    assert_eq!(outcome.unsent + published, due);
    assert!(outcome.latest_send_ms > 1.0);
}

#[test]
fn open_loop_sends_every_message_due_before_the_time_limit() {
    let broker = BrokerProcess::start(&[]);
    let mut plan = plan(&broker);
    plan.publishers.pace = Pace::Open { interval: Duration::from_millis(100) };
    plan.publishers.messages = None;
    plan.schedule.time_limit = Duration::from_millis(500);
    // A busy machine may stop the run before its end: then once more.
    let is_complete = |_| {
        let outcome = run(&plan);
        let published = outcome.published.messages;
        // At 0, 100, … 400 ms, and at 50, 150, … 450 ms.
        assert_eq!(published + outcome.unsent, 10);
        assert_flawless(&outcome, published);
        outcome.unsent == 0
    };
    assert!((0..3).any(is_complete), "messages are unsent in each of 3 runs");
}

#[test]
fn closed_loop_completes_with_any_window() {
    let broker = BrokerProcess::start(&[]);
    for (window, threads) in [(1, 1), (1, 2), (3, 1), (10, 3), (1000, 2)] {
        let mut plan = plan(&broker);
        plan.threads = threads;
        plan.publishers.pace = Pace::Closed { window };
        plan.publishers.messages = Some(500);
        plan.audiences[0].count = 2;
        assert_flawless(&run(&plan), 2000);
    }
}

#[test]
fn publishers_and_subscribers_are_divided_among_brokers() {
    let brokers = [BrokerProcess::start(&[]), BrokerProcess::start(&[])];
    let mut plan = plan(&brokers[0]);
    let second = Broker { name: "theirs".into(), host: "localhost".into(), port: brokers[1].address().port() };
    plan.brokers.push(second);
    plan.publishers.count = 4;
    plan.audiences[0].count = 4;
    let outcome = run(&plan);
    // Two publishers at each broker, for two subscribers there.
    assert_flawless(&outcome, 2 * 2 * 40);
    let usage: Vec<_> = outcome.broker_usage.iter().map(|usage| (usage.broker.as_str(), usage.pid)).collect();
    assert_eq!(usage, [("ours", brokers[0].pid()), ("theirs", brokers[1].pid())]);
    assert!(outcome.broker_usage.iter().all(|usage| usage.resident_peak_kib > 0));
}

#[test]
fn a_run_ends_when_its_time_is_over() {
    let broker = BrokerProcess::start(&[]);
    let mut plan = plan(&broker);
    plan.publishers.messages = None;
    plan.publishers.pace = Pace::Closed { window: 1000 };
    plan.schedule.time_limit = Duration::from_millis(500);
    let outcome = run(&plan);
    assert!(outcome.published.messages > 0);
    assert_flawless(&outcome, outcome.published.messages);
}

#[test]
fn lost_broker_error_names_the_client() {
    let mut broker = BrokerProcess::start(&[]);
    let mut plan = plan(&broker);
    plan.publishers.messages = None;
    plan.publishers.pace = Pace::Open { interval: Duration::from_millis(1) };
    let error = std::thread::scope(|scope| {
        let mut first = broker.v5("first");
        first.subscribe("engine/#", QoS::AtMostOnce);
        let run = scope.spawn(|| run_plan(&plan));
        first.receive_publish();
        broker.signal("KILL");
        run.join().expect("it does not panic").expect_err("its broker is gone").to_string()
    });
    broker.wait_for_exit(crate::support::PATIENCE);
    assert!(error.starts_with("engine-"), "{error}");
    assert!(error.contains(" lost its connection: ") && !error.contains('\n'), "{error}");
}

#[test]
fn failed_connection_error_names_address_and_client() {
    let broker = BrokerProcess::start(&[]);
    let mut plan = plan(&broker);
    plan.audiences[0].share = Some("group".into());
    plan.connection.user_name = Some("nobody".into());
    plan.brokers[0].port = 1;
    let error = run_plan(&plan).expect_err("no broker listens there").to_string();
    assert!(error.starts_with("cannot connect to 127.0.0.1:1: engine-sub-0: "), "{error}");
}
