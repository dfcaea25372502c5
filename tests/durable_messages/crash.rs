//! Load at QoS 1 and 2 while the broker is killed, told to end, or left alone: what was acknowledged comes to everybody who
//! has subscribed to it, in order, at QoS 2 once, and subscriptions and retained messages are as they were acknowledged.

use std::io::Write as _;
use std::time::Duration;

use super::support::{BrokerProcess, DataDirectory, Dice, PATIENCE};

/// `TENBIN_CRASH_ROUNDS` asks for more.
const ROUNDS: usize = 5;

/// How a round ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// As by `kill -9`.
    Killed,
    /// The broker is told to end, and does.
    Told,
    /// Only connections break.
    Connections,
}

#[test]
fn what_was_acknowledged_arrives_whenever_the_broker_is_killed() {
    again_and_again("always", End::Killed, ROUNDS);
}

#[test]
fn a_kill_takes_no_message_that_the_disk_has_not_confirmed() {
    again_and_again("interval", End::Killed, 2);
    again_and_again("never", End::Killed, 2);
}

#[test]
fn a_broker_that_was_told_to_end_leaves_all_messages_to_the_next_one() {
    again_and_again("always", End::Told, 2);
}

#[test]
fn what_was_acknowledged_arrives_where_connections_break() {
    again_and_again("always", End::Connections, 3);
}

fn again_and_again(sync: &str, end: End, rounds: usize) {
    let rounds = std::env::var("TENBIN_CRASH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(rounds);
    let config = super::roomy(&format!("sync = \"{sync}\"\nsync_interval_ms = 50"));
    let seed = super::announced_seed();
    let mut dice = Dice::new(seed, 0);
    let mut world = super::world(seed);
    let directory = DataDirectory::new();
    let start = || directory.start_with(&["--config", config.path()]);
    let mut broker = start();
    world.set_up(broker.address());
    for _ in 0..rounds {
        let log = broker.log().clone();
        let length = Duration::from_millis(dice.within(50..600));
        world.round(broker.address(), &log, |_| {
            std::thread::sleep(length);
            match end {
                End::Killed => kill(&mut broker, "KILL"),
                End::Told => kill(&mut broker, "TERM"),
                End::Connections => {}
            }
        });
        world.assert_fine();
        if end != End::Connections {
            broker = start();
        }
    }
    world.finish(broker.address(), broker.log());
    world.assert_fine();
    let (acknowledged, deliveries) = world.counts();
    let what = format!("{acknowledged} messages acknowledged, {deliveries} delivered");
    let _ = writeln!(std::io::stderr(), "sync = {sync}, {rounds} rounds: {what}");
    assert!(acknowledged > 20 * rounds, "{acknowledged} messages acknowledged in {rounds} rounds");
}

fn kill(broker: &mut BrokerProcess, signal: &str) {
    broker.signal(signal);
    broker.wait_for_exit(PATIENCE);
}
