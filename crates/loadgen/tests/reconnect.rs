//! Clients that reconnect, against a broker that ends their connections and keeps their sessions.

// Other tests use the files that commands leave.
#[allow(dead_code)]
mod command;
mod session_broker;

use std::time::Duration;

use session_broker::{Faults, Seen, SessionBroker};
use tenbin_loadgen::LoadgenError;
use tenbin_loadgen::run::{
    Audience, Broker, ConnectionOptions, Doors, OnLost, Outcome, Pace, Plan, Publishers, Schedule, run_plan,
};

const INTERVAL: Duration = Duration::from_millis(1);
const MESSAGES: u64 = 500;

fn plan(broker: &SessionBroker, qos: u8) -> Plan {
    let brokers = ["one", "two"].into_iter().zip(broker.doors);
    let brokers: Vec<_> = brokers.map(|(name, door)| Broker::new(name, "127.0.0.1", door.port())).collect();
    let pace = Pace::Open { interval: INTERVAL };
    let publishers = Publishers { qos, pace, messages: Some(MESSAGES), in_flight: 20, ..Publishers::new(1, "again") };
    let audience = Audience { qos, ..Audience::new("all", 2, "again") };
    let session_expiry = Some(Duration::from_secs(60));
    Plan {
        doors: Doors::OneSystem,
        on_lost: OnLost::Reconnect { first: Duration::from_millis(2), most: Duration::from_millis(50) },
        connection: ConnectionOptions { session_expiry, ..ConnectionOptions::new("again") },
        schedule: Schedule { subscriber_timeout: Duration::from_secs(5), ..Schedule::default() },
        ..Plan::new(0xA6A1, brokers, publishers, vec![audience])
    }
}

fn run(faults: Faults, qos: u8) -> (Outcome, Seen) {
    let broker = SessionBroker::start(faults);
    let outcome = run_plan(&plan(&broker, qos)).unwrap();
    (outcome, broker.seen())
}

/// Each message has the due time of the schedule, however often and late it was sent.
fn assert_due_times(seen: &Seen) {
    assert_eq!(seen.due_ns.len() as u64, MESSAGES);
    let first_ns = *seen.due_ns[&0].iter().next().unwrap();
    for (sequence, due_ns) in &seen.due_ns {
        let expected = first_ns + u64::from(*sequence) * INTERVAL.as_nanos() as u64;
        assert_eq!(due_ns.iter().copied().collect::<Vec<_>>(), [expected], "message {sequence}");
    }
}

#[test]
fn dropped_connections_are_counted_and_lose_nothing() {
    for qos in [1, 2] {
        let (outcome, seen) = run(Faults { drop_all: Some(97), ..Faults::default() }, qos);
        let (verdict, connections) = (outcome.verdict, outcome.connections);
        assert_eq!((outcome.published.messages, verdict.expected), (MESSAGES, 2 * MESSAGES), "QoS {qos}");
        assert_eq!((verdict.lost, verdict.wrong, verdict.unconfirmed), (0, 0, 0), "QoS {qos}: {verdict:?}");
        assert_eq!((outcome.unacknowledged, outcome.unsent), (0, 0), "QoS {qos}");
        assert!(connections.lost > 0 && connections.lost <= seen.dropped, "QoS {qos}: {connections:?} {seen:?}");
        assert_eq!(connections.reconnected, connections.lost, "QoS {qos}");
        assert_eq!(connections.sessions_present, connections.reconnected, "QoS {qos}");
        let sum = |of: fn(&tenbin_loadgen::run::Second) -> u64| outcome.per_second.iter().map(of).sum::<u64>();
        assert_eq!(sum(|second| second.connections_lost), connections.lost);
        assert_eq!(sum(|second| second.reconnects), connections.reconnected);
        // The unacknowledged message of each drop came again, marked.
        assert!(seen.marked >= 5, "QoS {qos}: {}", seen.marked);
        if qos == 2 {
            assert_eq!(verdict.duplicated, 0, "exactly once");
        }
        assert_due_times(&seen);
    }
}

#[test]
fn clients_fail_over_to_the_next_door_of_a_system() {
    let (outcome, seen) = run(Faults { close_door: Some(200), ..Faults::default() }, 2);
    let verdict = outcome.verdict;
    assert_eq!((verdict.expected, verdict.lost, verdict.duplicated), (2 * MESSAGES, 0, 0), "{verdict:?}");
    // The publisher and the first subscriber were at the first door, the other subscriber at the second.
    assert_eq!((seen.dropped, outcome.connections.lost, outcome.connections.reconnected), (2, 2, 2));
    assert_eq!(seen.accepted, [2, 3]);
    assert_eq!((outcome.audiences.len(), &outcome.audiences[0].broker[..]), (1, "one+two"));
    assert_due_times(&seen);
}

#[test]
fn unwritten_messages_at_qos_0_are_sent_after_the_reconnect() {
    let (outcome, seen) = run(Faults { drop_all: Some(97), ..Faults::default() }, 0);
    assert_eq!((outcome.published.messages, outcome.unsent, outcome.unacknowledged), (MESSAGES, 0, 0));
    assert_eq!(outcome.connections.reconnected, outcome.connections.lost);
    assert!(seen.messages <= MESSAGES && outcome.connections.lost > 0);
}

#[test]
fn a_lost_connection_still_ends_a_run_by_default() {
    let broker = SessionBroker::start(Faults { drop_all: Some(97), ..Faults::default() });
    let plan = Plan { on_lost: OnLost::Fail, ..plan(&broker, 1) };
    assert!(matches!(run_plan(&plan), Err(LoadgenError::ConnectionLost { .. })));
}

#[test]
fn flags_of_the_command_reconnect_clients_of_one_system() {
    let [one, two] = SessionBroker::start(Faults { drop_all: Some(97), ..Faults::default() }).doors;
    let line = format!(
        "run --broker {one},{two} --one-system --reconnect 2ms,50ms --qos 2 --in-flight 20 --interval 1ms --messages 300 \
         --subscribers 2 --subscriber-timeout 5s --assert expected=600,lost=0,duplicated=0,reconnects>0,unsent=0"
    );
    let (text, result) = command::try_run(&line);
    assert!(result.is_ok(), "{result:?}\n{text}");
}
