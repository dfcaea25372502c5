//! Simulated workers, idle connections and connection cuts of `tenbin-loadgen run`, against the broker.

use std::time::Duration;

use crate::support::BrokerProcess;
use tenbin_loadgen::run::{
    Audience, Broker, Carrier, ConnectionOptions, CutWhose, Cuts, Idle, Outcome, Pace, Plan, Publishers, Reports,
    Schedule, Version, WillOptions, Work, WorkerKind, run_plan,
};
use tenbin_simulator::scenario::Pause;
use tenbin_simulator::{Distribution, Span};

/// A plan with one broker and without clients.
fn plan(port: u16) -> Plan {
    let publishers = Publishers { qos: 1, payload: 64, in_flight: 20, ..Publishers::new(0, "jobs/{publisher}") };
    Plan {
        connection: ConnectionOptions { keep_alive: 30, ..ConnectionOptions::new("lg") },
        // Only failing tests last so long.
        schedule: Schedule { subscriber_timeout: Duration::from_secs(20), ..Schedule::default() },
        ..Plan::new(4711, vec![Broker::new("ours", "127.0.0.1", port)], publishers, vec![])
    }
}

/// `count` publishers that send `messages` each, at this interval.
fn publishers(plan: &Plan, count: u32, messages: u64, interval: Duration) -> Publishers {
    Publishers { count, messages: Some(messages), pace: Pace::Open { interval }, ..plan.publishers.clone() }
}

fn audience(name: &str, count: u32, qos: u8) -> Audience {
    Audience { qos, ..Audience::new(name, count, "jobs/#") }
}

fn group(name: &str, count: u32, qos: u8, work: Work) -> Audience {
    Audience { share: Some(name.into()), work: Some(work), ..audience(name, count, qos) }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn span(ms: u64) -> Span {
    Span::from_ns(ms * 1_000_000)
}

fn run(plan: &Plan) -> Outcome {
    run_plan(plan).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn slow_worker_gets_less_with_every_report_carrier() {
    let broker = BrokerProcess::start(&["--policy", "adaptive"]);
    for carrier in [Carrier::PingReq, Carrier::Ack, Carrier::Publish] {
        let mut plan = plan(broker.address().port());
        // 333 messages a second, for a capacity of 200 + 200 + 40.
        plan.publishers = publishers(&plan, 1, 600, ms(3));
        let workers = [5, 5, 25].map(|ms| WorkerKind::of(span(ms))).into();
        let reports = Some(Reports { carrier: Some(carrier), interval: ms(200), eager: true });
        plan.audiences = vec![group("workers", 3, 1, Work { reports, ..Work::new(workers) })];
        let outcome = run(&plan);

        assert_eq!((outcome.verdict.expected, outcome.verdict.lost, outcome.verdict.duplicated), (600, 0, 0));
        let workers = &outcome.audiences[0];
        let shares: Vec<_> = workers.subscribers.iter().map(|worker| worker.received).collect();
        assert!(2 * shares[2] < shares[0].min(shares[1]), "{carrier:?}: {shares:?}");
        assert!(workers.jain.is_some_and(|jain| jain < 0.9), "{:?}", workers.jain);

        // All messages were processed before the end, each worker at its own speed. Waiting includes the transport.
        let waiting = workers.waiting.expect("they worked");
        assert_eq!((waiting.count, workers.latency.map(|latency| latency.count)), (600, Some(600)));
        assert!(waiting.mean >= workers.latency.expect("messages came").mean);
        for (worker, service_ms) in workers.subscribers.iter().zip([5.0, 5.0, 25.0]) {
            let processing: Vec<_> = worker.processing_ms.iter().flatten().collect();
            // The slow worker may have got no message on a busy machine.
            assert_eq!(processing.is_empty(), worker.received == 0, "{shares:?}");
            assert!(processing.iter().all(|&&ms| ms == service_ms), "{processing:?}");
        }
    }
}

#[test]
fn parallel_workers_process_all_messages_at_every_qos() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    for version in [Version::V5, Version::V311] {
        for qos in 0..=2 {
            let mut plan = plan(broker.address().port());
            plan.connection.version = version;
            plan.publishers = Publishers { qos, ..publishers(&plan, 2, 50, ms(1)) };
            // A hundred messages at once for a worker that needs 200 ms with parallelism 4, and pauses for a while.
            let pauses = vec![Pause { at: span(50), length: span(300) }];
            let threads = 4.try_into().expect("it is not 0");
            let worker = WorkerKind { threads, pauses, ..WorkerKind::of(span(8)) };
            plan.audiences = vec![group("one", 1, qos, Work::new(vec![worker]))];
            let outcome = run(&plan);
            assert_eq!((outcome.verdict.received, outcome.verdict.lost), (100, 0));
            let waiting = outcome.audiences[0].waiting.expect("it worked");
            assert_eq!(waiting.count, 100);
            // The last message waited until the end of the pause.
            assert!(waiting.max >= 250.0, "{waiting:?}");
        }
    }
}

#[test]
fn idle_connections_are_opened_kept_and_counted() {
    let broker = BrokerProcess::start(&[]);
    for (version, rate) in [(Version::V5, None), (Version::V311, None), (Version::V5, Some(1000.0))] {
        let mut plan = plan(broker.address().port());
        plan.connection.version = version;
        plan.idle = Some(Idle { count: 500, rate });
        (plan.schedule.time_limit, plan.schedule.subscriber_timeout) = (ms(1000), ms(100));
        let outcome = run(&plan);
        let connections = outcome.connections;
        assert_eq!((connections.accepted, connections.refused, connections.lost), (500, 0, 0));
        let usage = outcome.broker_usage.first().expect("it runs on this machine");
        assert!(usage.pid == broker.pid() && usage.resident_kib > 0);
        let connects = outcome.connects.expect("they connected");
        assert!(connects.count == 500 && connects.min > 0.0);
        if let Some(rate) = rate {
            // The last connection was not due before 499 ms.
            assert!(connections.accepted_per_second <= rate * 1.01, "{connections:?}");
        }
    }
}

#[test]
fn idle_connections_are_kept_alive() {
    let broker = BrokerProcess::start(&[]);
    let mut plan = plan(broker.address().port());
    plan.idle = Some(Idle { count: 20, rate: None });
    // Silent connections are closed after 3 s.
    plan.connection.keep_alive = 2;
    (plan.schedule.time_limit, plan.schedule.subscriber_timeout) = (ms(4500), ms(50));
    let outcome = run(&plan);
    assert_eq!((outcome.connections.accepted, outcome.connections.lost), (20, 0));
}

#[test]
fn connections_without_listener_count_as_refused() {
    let mut plan = plan(1);
    plan.idle = Some(Idle { count: 50, rate: None });
    (plan.schedule.time_limit, plan.schedule.subscriber_timeout) = (ms(500), ms(50));
    let connections = run(&plan).connections;
    assert_eq!((connections.accepted, connections.refused), (0, 50));
}

#[test]
fn too_many_connections_error_names_the_open_file_limit() {
    let mut plan = plan(1);
    plan.idle = Some(Idle { count: u32::MAX, rate: None });
    let error = run_plan(&plan).expect_err("more than any system allows").to_string();
    assert!(error.starts_with("4,294,967,295 connections need 4,294,967,359 open files, the limit is "), "{error}");
}

/// A cut every 40 ms, for 30 ms.
fn cuts(whose: CutWhose) -> Option<Cuts> {
    Some(Cuts { every: ms(40), whose, away: ms(30) })
}

#[test]
fn subscribers_with_sessions_lose_nothing_by_cuts() {
    let broker = BrokerProcess::start(&[]);
    for version in [Version::V5, Version::V311] {
        for qos in [1, 2] {
            let mut plan = plan(broker.address().port());
            plan.connection.version = version;
            plan.connection.session_expiry = Some(Duration::from_secs(60));
            plan.publishers = Publishers { qos, ..publishers(&plan, 2, 400, ms(2)) };
            plan.audiences = vec![audience("all", 3, qos)];
            plan.cuts = cuts(CutWhose::Subscribers);
            let outcome = run(&plan);
            let (verdict, connections) = (outcome.verdict, outcome.connections);
            assert_eq!((verdict.expected, verdict.lost), (2400, 0), "{version:?} {qos}");
            assert_eq!((verdict.duplicated_unmarked, verdict.out_of_order), (0, 0));
            assert!(connections.cut > 3, "{connections:?}");
            assert_eq!((connections.sessions_present, connections.lost), (connections.cut, 0));
            assert_eq!(connections.accepted, 5 + connections.cut);
            if qos == 2 {
                assert_eq!(verdict.duplicated, 0);
            }
        }
    }
}

#[test]
fn workers_with_sessions_lose_nothing_by_cuts() {
    let broker = BrokerProcess::start(&[]);
    for version in [Version::V5, Version::V311] {
        let mut plan = plan(broker.address().port());
        plan.connection.version = version;
        plan.connection.session_expiry = Some(Duration::from_secs(60));
        plan.publishers = publishers(&plan, 1, 400, ms(2));
        let worker = WorkerKind { distribution: Distribution::Exponential, ..WorkerKind::of(span(3)) };
        plan.audiences = vec![group("workers", 3, 1, Work::new(vec![worker]))];
        plan.cuts = cuts(CutWhose::Subscribers);
        // How long to wait for repeated messages.
        plan.schedule.subscriber_timeout = Duration::from_secs(5);
        let outcome = run(&plan);
        assert_eq!((outcome.verdict.expected, outcome.verdict.lost), (400, 0));
        let connections = outcome.connections;
        assert!(connections.cut > 3, "{connections:?}");
        assert_eq!(connections.sessions_present, connections.cut);
    }
}

#[test]
fn each_cut_of_a_publisher_brings_its_will_and_loses_nothing() {
    let broker = BrokerProcess::start(&[]);
    for qos in [1, 2] {
        let mut plan = plan(broker.address().port());
        plan.connection.session_expiry = Some(Duration::from_secs(60));
        plan.connection.will = Some(WillOptions { topic: "gone".into(), qos: 1 });
        plan.publishers = Publishers { qos, ..publishers(&plan, 3, 300, ms(2)) };
        // The second audience also gets the Wills, which do not count as messages.
        plan.audiences = vec![audience("all", 1, qos), Audience { filter: "#".into(), ..audience("more", 1, qos) }];
        plan.cuts = cuts(CutWhose::Publishers);
        let outcome = run(&plan);
        let (verdict, connections) = (outcome.verdict, outcome.connections);
        assert_eq!((verdict.expected, verdict.lost, verdict.foreign), (1800, 0, 0), "{qos}");
        assert!(connections.cut > 3, "{connections:?}");
        assert_eq!((connections.wills, connections.sessions_present), (connections.cut, connections.cut));
        if qos == 2 {
            assert_eq!((verdict.duplicated, verdict.unconfirmed), (0, 0));
        }
    }
}

#[test]
fn each_cut_of_an_idle_connection_brings_its_will() {
    let broker = BrokerProcess::start(&[]);
    let mut plan = plan(broker.address().port());
    plan.connection.session_expiry = Some(Duration::from_secs(60));
    plan.connection.will = Some(WillOptions { topic: "gone".into(), qos: 0 });
    plan.publishers = publishers(&plan, 1, 400, ms(2));
    plan.audiences = vec![audience("all", 1, 1)];
    plan.idle = Some(Idle { count: 10, rate: None });
    plan.cuts = cuts(CutWhose::Idle);
    let outcome = run(&plan);
    assert_eq!(outcome.verdict.lost, 0);
    let connections = outcome.connections;
    assert!(connections.cut > 3, "{connections:?}");
    assert_eq!((connections.wills, connections.sessions_present), (connections.cut, connections.cut));
    // Publisher, subscriber, and the receiver that counts the Wills.
    assert_eq!(connections.accepted, 10 + 3 + connections.cut);
}
