//! A broker that stands still for two seconds: what an open loop finds of that, and what a closed loop hides.

mod support;

use std::time::Duration;

use support::BrokerProcess;
use tenbin_loadgen::run::{
    Audience, Broker, ConnectionOptions, Outcome, Pace, Plan, Publishers, Schedule, Spread, Version, run_plan,
};

/// Four publishers to three members of a share group at QoS 1, for six seconds.
fn plan(broker: &BrokerProcess, pace: Pace) -> Plan {
    Plan {
        tag: 78,
        brokers: vec![Broker { name: "ours".into(), host: "127.0.0.1".into(), port: broker.address().port() }],
        connection: ConnectionOptions {
            version: Version::V5,
            user_name: None,
            password: None,
            tls: None,
            keep_alive: 60,
            session_expiry: None,
            client_id_prefix: "stall".into(),
            will: None,
        },
        publishers: Publishers {
            count: 4,
            qos: 1,
            retain: false,
            topic: "stall/{publisher}".into(),
            topics: 1,
            payload: 100,
            messages: None,
            pace,
            in_flight: 10,
            spread: Spread::InTurns,
        },
        audiences: vec![Audience {
            name: "group".into(),
            count: 3,
            filter: "stall/#".into(),
            share: Some("g".into()),
            qos: 1,
            spread: Spread::InTurns,
            work: None,
            slow: None,
        }],
        idle: None,
        cuts: None,
        schedule: Schedule {
            time_limit: Duration::from_secs(6),
            ramp_up: 0,
            ramp_down: 0,
            subscriber_timeout: Duration::from_secs(5),
        },
        threads: 1,
        records: false,
    }
}

/// Runs it while the broker stands still for two seconds, one second after the start.
fn run_through_a_stall(pace: Pace) -> Outcome {
    let broker = BrokerProcess::start(&[]);
    let plan = plan(&broker, pace);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run_plan(&plan));
        std::thread::sleep(Duration::from_secs(1));
        broker.signal("STOP");
        std::thread::sleep(Duration::from_secs(2));
        broker.signal("CONT");
        running.join().expect("it does not panic").unwrap_or_else(|error| panic!("{error}"))
    })
}

/// 1000 messages a second for six seconds: a third of them are due during the stall, and one in six waits for more than a
/// second.
#[test]
fn an_open_loop_shows_a_stall_in_its_percentiles_and_a_closed_loop_hides_it() {
    let open = run_through_a_stall(Pace::Open { interval: Duration::from_millis(4) });
    assert_eq!(open.verdict.lost, 0);
    let open = open.latency.expect("messages came");
    assert!(open.max >= 1900.0 && open.p999 >= 1500.0, "{open:?}");

    let closed = run_through_a_stall(Pace::Closed { window: 1 });
    assert_eq!(closed.verdict.lost, 0);
    let closed = closed.latency.expect("messages came");
    // One message was under way, and what was sent once it had been given up: only these have waited.
    assert!(closed.max >= 1900.0 && closed.p999 < open.p999 / 2.0, "{closed:?}, open: {open:?}");
}
