//! A broker that stalls for two seconds: an open loop shows the stall, and a closed loop hides it.

use std::time::Duration;

use crate::support::BrokerProcess;
use tenbin_codec::QoS;
use tenbin_loadgen::run::{Audience, Broker, ConnectionOptions, Outcome, Pace, Plan, Publishers, Schedule, run_plan};

/// Four publishers to three members of a share group at QoS 1, for four seconds.
fn plan(broker: &BrokerProcess, pace: Pace) -> Plan {
    let publishers =
        Publishers { qos: 1, payload: 100, pace, in_flight: 10, ..Publishers::new(4, "stall/{publisher}") };
    let group = Audience { share: Some("g".into()), qos: 1, ..Audience::new("group", 3, "stall/#") };
    Plan {
        connection: ConnectionOptions { keep_alive: 60, ..ConnectionOptions::new("stall") },
        schedule: Schedule { time_limit: Duration::from_secs(4), ..Schedule::default() },
        threads: 1,
        ..Plan::new(78, vec![Broker::new("ours", "127.0.0.1", broker.address().port())], publishers, vec![group])
    }
}

/// Runs the plan on a broker that stalls for two seconds from the first message on.
fn run_through_a_stall(pace: Pace) -> Outcome {
    let broker = BrokerProcess::start(&[]);
    let plan = plan(&broker, pace);
    std::thread::scope(|scope| {
        let mut first = broker.v5("first");
        first.subscribe("stall/#", QoS::AtMostOnce);
        let running = scope.spawn(|| run_plan(&plan));
        first.receive_publish();
        drop(first);
        broker.signal("STOP");
        std::thread::sleep(Duration::from_secs(2));
        broker.signal("CONT");
        running.join().expect("it does not panic").unwrap_or_else(|error| panic!("{error}"))
    })
}

/// 1000 messages a second for four seconds: half of them are due during the stall, and one in four waits for more than
/// a second.
#[test]
fn open_loop_percentiles_show_a_stall_that_closed_loop_hides() {
    let open = run_through_a_stall(Pace::Open { interval: Duration::from_millis(4) });
    assert_eq!(open.verdict.lost, 0);
    let open = open.latency.expect("messages came");
    assert!(open.max >= 1900.0 && open.p90 >= 1000.0, "{open:?}");

    let closed = run_through_a_stall(Pace::Closed { window: 1 });
    assert_eq!(closed.verdict.lost, 0);
    let closed = closed.latency.expect("messages came");
    // A few dozen messages have waited: those in flight, and those that followed when they were given up. On any
    // machine that is less than a tenth of the messages that arrive in two seconds.
    assert!(closed.max >= 1900.0 && closed.p90 < open.p90 / 2.0, "{closed:?}, open: {open:?}");
}
