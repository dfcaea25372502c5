//! The ledger of a run against a broker that loses, repeats, swaps, refuses and forgets known messages at known times.

// Other tests use the other faults of the broker.
#[allow(dead_code)]
mod fake_broker;

use std::ops::Range;
use std::time::Duration;

use fake_broker::{Faults, Often};
use tenbin_loadgen::Drivers;
use tenbin_loadgen::run::{
    Audience, Broker, Finished, LedgerCounts, Pace, Plan, Publishers, RunningLoad, Schedule, Stamp,
};

const NONE: Often = Often {
    lose: None,
    duplicate: None,
    redeliver: None,
    hold_back: None,
    give_to_all: None,
    damage: None,
    refuse: None,
    swallow: None,
    keep_ack: None,
};

/// Message n is due n ms after the start; each range has one kind of fault.
const SCRIPT: &[(Range<u64>, Often)] = &[
    (100..200, Often { lose: Some(10), ..NONE }),
    (400..480, Often { duplicate: Some(8), ..NONE }),
    (600..670, Often { hold_back: Some(7), ..NONE }),
    (800..805, Often { refuse: Some(1), ..NONE }),
    (1_000..1_006, Often { swallow: Some(1), ..NONE }),
    (1_200..1_204, Often { keep_ack: Some(1), ..NONE }),
    // Across the edge of two windows.
    (1_390..1_410, Often { lose: Some(1), ..NONE }),
];

const MESSAGES: u64 = 1_600;

/// Window of all counts, in messages and milliseconds.
const WINDOW: u64 = 100;

fn run(plan: &Plan) -> Finished {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut load = RunningLoad::prepare(plan, &Drivers::mqtt(), Vec::new()).await.unwrap();
        let start_ns = load.start().await.unwrap();
        while load.tick().await.unwrap().is_some() {}
        let finished = load.finish().await.unwrap();
        assert_eq!(finished.ledger.as_ref().map(|ledger| ledger.start_ns()), Some(start_ns));
        finished
    })
}

fn plan(faults: Faults, qos: u8, pace: Pace) -> Plan {
    let address = fake_broker::start(faults);
    let broker = Broker::new("fake", "127.0.0.1", address.port());
    let publishers = Publishers { qos, messages: Some(MESSAGES), pace, ..Publishers::new(1, "ledger") };
    let audience = Audience { qos, ..Audience::new("all", 1, "ledger") };
    let schedule = Schedule { subscriber_timeout: Duration::from_secs(5), ..Schedule::default() };
    Plan { schedule, ..Plan::new(0x1ED6, vec![broker], publishers, vec![audience]) }
}

/// Counts of these messages, by the script.
fn scripted(messages: Range<u64>) -> LedgerCounts {
    let mut counts = LedgerCounts::default();
    for number in messages {
        let is_turn = |every: Option<u64>| every.is_some_and(|every| number % every == every - 1);
        let often = SCRIPT.iter().find(|(range, _)| range.contains(&number)).map_or(NONE, |(_, often)| *often);
        counts.published += 1;
        if is_turn(often.refuse) {
            counts.refused += 1;
        } else if is_turn(often.swallow) || is_turn(often.keep_ack) {
            counts.unconfirmed += 1;
            counts.unconfirmed_missing += u64::from(is_turn(often.swallow));
            counts.unconfirmed_arrived += u64::from(is_turn(often.keep_ack));
        } else {
            let is_lost = is_turn(often.lose);
            counts.acknowledged += 1;
            counts.expected += 1;
            counts.lost += u64::from(is_lost);
            counts.received += u64::from(!is_lost);
            counts.duplicated += u64::from(is_turn(often.duplicate));
            counts.out_of_order += u64::from(is_turn(often.hold_back));
        }
    }
    counts
}

#[test]
fn each_fault_is_in_its_window_and_nothing_else_is() {
    let pace = Pace::Open { interval: Duration::from_millis(1) };
    let Finished { outcome, ledger, .. } = run(&plan(Faults { script: SCRIPT, ..Faults::default() }, 1, pace));
    let ledger = ledger.expect("payloads have a stamp");
    let at = |ms: u64| ledger.start_ns() + ms * 1_000_000;
    for window in 0..MESSAGES / WINDOW {
        let (from, to) = (window * WINDOW, (window + 1) * WINDOW);
        assert_eq!(ledger.window(at(from)..at(to)), scripted(from..to), "from {from} ms");
    }
    assert_eq!(ledger.whole(), scripted(0..MESSAGES));
    assert_eq!(ledger.window(0..at(0)), LedgerCounts::default());
    assert_eq!(ledger.window(at(MESSAGES)..u64::MAX), LedgerCounts::default());
    let lost: Vec<_> = ledger.lost(0, 0).collect();
    assert_eq!((lost.len(), lost[0], ledger.due_ns(0, lost[0])), (30, 109, Some(at(109))));

    // The same in the figures of each second.
    let sum = |of: fn(&tenbin_loadgen::run::Second) -> u64| outcome.per_second.iter().map(of).sum::<u64>();
    let whole = scripted(0..MESSAGES);
    let acknowledged = sum(|second| second.acknowledgement.map_or(0, |latency| latency.count));
    assert_eq!((acknowledged, sum(|second| second.refused)), (whole.acknowledged, whole.refused));
    let arrivals = whole.received + whole.duplicated + whole.unconfirmed_arrived;
    assert_eq!(sum(|second| second.received_bytes), arrivals * Stamp::LEN as u64);
    assert_eq!(sum(|second| second.published_bytes), whole.acknowledged * Stamp::LEN as u64);
}

#[test]
fn a_closed_loop_dates_losses_by_checkpoints() {
    let losses: &[(Range<u64>, Often)] = &[(700..720, Often { lose: Some(1), ..NONE })];
    for (qos, pace) in [(0, Pace::Unlimited), (2, Pace::Closed { window: 50 })] {
        let Finished { ledger, .. } = run(&plan(Faults { script: losses, ..Faults::default() }, qos, pace));
        let ledger = ledger.expect("payloads have a stamp");
        let due_ns = |message: u32| ledger.due_ns(0, message).expect("it was sent");
        let (first_ns, last_ns) = (due_ns(700), due_ns(719));
        let count = |window| {
            let LedgerCounts { expected, lost, .. } = ledger.window(window);
            (expected, lost)
        };
        let [before, during, after] = [0..first_ns, first_ns..last_ns + 1, last_ns + 1..u64::MAX].map(count);
        assert_eq!((before.1, during.1, after.1), (0, 20, 0), "QoS {qos}");
        assert_eq!(before.0 + during.0 + after.0, MESSAGES, "QoS {qos}");
    }
}
