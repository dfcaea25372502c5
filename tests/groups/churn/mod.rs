//! A share group whose members join, leave and die all the time while messages flow (MQTT 5.0 §4.8.2).
//!
//! Members unsubscribe, disconnect for good, or drop their sockets while messages are in flight. From time to time no
//! member is connected. No message may be lost. At QoS 1 a message may arrive twice only if its first receiver was gone
//! before the broker read the PUBACK. At QoS 2 no message arrives twice.
//!
//! Short by default: 50 members, 20,000 messages at QoS 1 and 10,000 at QoS 2, in a few seconds each. In full, 200
//! members, 200,000 and 100,000 messages:
//!
//! ```text
//!   TENBIN_CHURN=full cargo test --release --test groups -- --nocapture --test-threads 1
//! ```
//!
//! `TENBIN_CHURN_SEED` repeats the random choices of a run, but not the timing of threads and sockets.

mod ledger;
mod member;
mod publisher;
mod stage;

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use crate::support::BrokerProcess;
use ledger::Ledger;
use member::{Habit, Member, Visits};
use stage::Stage;
use tenbin_codec::QoS;

#[test]
fn churn_at_qos_1_loses_nothing_and_explains_duplicates() {
    let ledger = run(QoS::AtLeastOnce, &Habit::AT_QOS_1, if is_full() { 200_000 } else { 20_000 });
    ledger.assert_nothing_lost();
    let duplicates = ledger.duplicates();
    say(&format!("  duplicates {duplicates:?}"));
    assert_eq!(duplicates.unexplained, 0, "a message that the broker knew to be done came again");
}

#[test]
fn mqtt_4_8_2_4_qos_2_messages_arrive_once_during_churn() {
    let ledger = run(QoS::ExactlyOnce, &Habit::AT_QOS_2, if is_full() { 100_000 } else { 10_000 });
    ledger.assert_nothing_lost();
    let duplicates = ledger.duplicates();
    say(&format!("  duplicates {duplicates:?}"));
    assert_eq!(duplicates.all(), 0, "a QoS 2 message came twice");
}

/// Lets members churn until all messages have arrived, and returns the receipts of each.
fn run(qos: QoS, habits: &[Habit], messages: usize) -> Ledger {
    // One run at a time: two at once would only be slower.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let members = if is_full() { 200 } else { 50 };
    let seed = crate::support::seed("TENBIN_CHURN_SEED");
    say(&format!("{qos}: {messages} messages, {members} members, seed {seed}"));

    let broker = BrokerProcess::start(&[]);
    let stage = Stage::new(broker.address(), qos, messages);
    let (ledger, visits) = std::thread::scope(|scope| {
        let members: Vec<_> = (0..members)
            .map(|number| {
                let habit = habits[number % habits.len()];
                let stage = &stage;
                scope.spawn(move || Member::new(stage, number, habit, seed).run())
            })
            .collect();
        stage.wait_for_members(members.len());
        let publishers: Vec<_> = (0..PUBLISHERS)
            .map(|number| {
                let stage = &stage;
                scope.spawn(move || publisher::run(stage, number, PUBLISHERS))
            })
            .collect();
        stage.direct(seed);
        publishers.into_iter().for_each(|publisher| publisher.join().expect("a publisher that gets its answers"));
        let mut visits = Visits::default();
        let mut ledger = Ledger::new(messages);
        for member in members {
            let (receipts, its_visits) = member.join().expect("a member that is served");
            ledger.add(receipts);
            visits.add(its_visits);
        }
        (ledger, visits)
    });
    broker.assert_serves();
    say(&format!("  {:.1} s, {} times nobody was there; {visits:?}", stage.seconds(), stage.times_empty()));
    ledger
}

fn is_full() -> bool {
    std::env::var("TENBIN_CHURN").is_ok_and(|value| value == "full")
}

/// Writes past the test harness, which would capture the line.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Concurrent publishers.
const PUBLISHERS: usize = 4;
