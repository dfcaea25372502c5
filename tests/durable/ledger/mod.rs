//! A randomized ledger: clients of all kinds, faults of all kinds, and for each message its acknowledgement and its
//! deliveries.
//!
//! Publishers, receivers with persistent and transient sessions, members of a share group and clients with Wills load a
//! broker. It is killed, frozen and shut down, and its disk, power and clock fail. Invariants:
//! - No message acknowledged with success is missing at a receiver that must get it.
//! - A QoS 2 message arrives once, a QoS 0 message at most once, and each topic stays in order.
//! - No session, subscription, retained message or Will is lost. No Will arrives that was dropped, or twice for one end
//!   of a connection (except after a crash).
//! - A refused message may be missing and is not doubled.
//!
//! Each run prints its seed. `TENBIN_LEDGER_SEED` repeats a plan (not its timing). `TENBIN_LEDGER_SEEDS` is the number
//! of plans, each for `TENBIN_LEDGER_SECONDS`. `TENBIN_LEDGER_WITHOUT` leaves out faults by name (`frozen`, `cut`,
//! `disk`, `sync`, `clock`, `refusals`). A violation is printed with the history of its message.

use crate::load;

#[allow(dead_code, reason = "the clock goes back alone")]
pub(crate) mod faults;
mod plan;
mod relay;
mod stage;

use std::io::Write as _;
use std::time::{Duration, Instant};

use load::{Complaint, World};
use plan::{Disk, End, Plan, RoundPlan};
use relay::{Lie, Relay};
use stage::Stage;

/// Default duration of a plan, and default number of plans.
const SECONDS: u64 = 8;
const SEEDS: u64 = 2;

#[test]
fn no_message_session_or_will_is_lost_or_doubled_by_faults() {
    let first = crate::support::seed(SEED);
    for seed in (0..number("TENBIN_LEDGER_SEEDS", SEEDS)).map(|number| first.wrapping_add(number)) {
        let seconds = number("TENBIN_LEDGER_SECONDS", SECONDS);
        say(&format!("{SEED}={seed} TENBIN_LEDGER_SEEDS=1 TENBIN_LEDGER_SECONDS={seconds}"));
        run(seed, Duration::from_secs(seconds));
    }
}

/// Injects faults until the time is over. Then all messages in flight must arrive.
fn run(seed: u64, length: Duration) {
    let mut plan = Plan::new(seed);
    let mut world = World::new(SEED, seed, plan.cast());
    let mut stage = Stage::new(&plan, "always");
    world.set_up(stage.broker().address());
    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed() < length {
        let round_plan = plan.round();
        let (address, log) = (stage.broker().address(), stage.broker().log().clone());
        world.round(address, &log, |round| stage.play(&round_plan, round));
        world.assert_fine();
        if round_plan.end != End::Stays {
            stage.start();
        }
        stage.recover();
        rounds += 1;
    }
    world.finish(stage.broker().address(), stage.broker().log());
    world.assert_fine();
    let (acknowledged, deliveries) = world.counts();
    let (refused, wills) = world.refusals_and_wills();
    let what =
        format!("{acknowledged} messages acknowledged, {refused} refused, {deliveries} delivered, {wills} Wills");
    say(&format!("  {plan}: {rounds} rounds, {what}"));
    assert!(acknowledged > 0 && deliveries > 0, "nothing was published");
}

/// Shows that the ledger detects a loss.
#[test]
fn a_relay_that_loses_a_message_is_found() {
    assert_found(Lie::Loses, "did not come");
}

#[test]
fn a_relay_that_doubles_a_message_is_found() {
    assert_found(Lie::Doubles, "came again");
}

/// Shows that the ledger detects acknowledged messages that a power cut took before they were synced.
#[test]
fn a_broker_that_does_not_sync_is_found() {
    let seed = crate::support::seed(SEED);
    let mut plan = Plan::new(seed);
    (plan.disk, plan.queue_messages) = (Disk::Image, None);
    let mut world = World::new(SEED, seed, plan.cast());
    let mut stage = Stage::new(&plan, "never");
    if !stage.has_power() {
        return;
    }
    world.set_up(stage.broker().address());
    stage.sync_disk();
    let until = Instant::now() + crate::support::PATIENCE;
    let is_about = |complaint: &Complaint| complaint.text.contains("never came");
    let cut = RoundPlan { steps: Vec::new(), rest: 500, end: End::PowerCut };
    let mut rounds = 0;
    while !world.complaints().iter().any(is_about) {
        let complaints = world.complaints();
        assert!(Instant::now() < until, "no loss was found: {}", world.report(&complaints));
        let (address, log) = (stage.broker().address(), stage.broker().log().clone());
        world.round(address, &log, |round| stage.play(&cut, round));
        stage.start();
        rounds += 1;
    }
    say(&format!("  what was not synced is missing after {rounds} rounds"));
}

/// Runs rounds without faults through a relay, until the ledger reports its misbehaviour with these words.
fn assert_found(lie: Lie, words: &str) {
    let seed = crate::support::seed(SEED);
    let mut plan = Plan::new(seed);
    plan.disk = Disk::Directory;
    plan.queue_messages = None;
    let mut world = World::new(SEED, seed, plan.cast());
    let stage = Stage::new(&plan, "never");
    let relay = Relay::start(stage.broker().address(), lie);
    world.set_up(relay.address());
    let until = Instant::now() + crate::support::PATIENCE;
    let is_about = |complaint: &Complaint| complaint.text.contains(words) || complaint.text.contains("never came");
    while !world.complaints().iter().any(is_about) {
        let complaints = world.complaints();
        assert!(Instant::now() < until, "{} lies were not found: {}", relay.lies(), world.report(&complaints));
        world.round(relay.address(), stage.broker().log(), |_| std::thread::sleep(Duration::from_millis(500)));
    }
    say(&format!("  {lie:?}, found after {} lies", relay.lies()));
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Writes past the test harness, which would capture the line.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

const SEED: &str = "TENBIN_LEDGER_SEED";
