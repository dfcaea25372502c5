//! Load at QoS 1 and 2 while the broker is killed, shut down, or left running.
//!
//! Every subscriber gets the acknowledged messages in order, at QoS 2 once. Subscriptions and retained messages are as
//! acknowledged.

use std::io::Write as _;
use std::time::Duration;

use crate::support::{BrokerProcess, DataDirectory, Dice, PATIENCE};

/// Default; `TENBIN_CRASH_ROUNDS` overrides it.
const ROUNDS: usize = 5;

/// How a round ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// By SIGKILL.
    Killed,
    /// By SIGTERM, with a clean shutdown.
    Told,
    /// The broker stays, only connections break.
    Connections,
}

#[test]
fn acknowledged_messages_arrive_after_kills_under_load() {
    again_and_again("always", End::Killed, ROUNDS);
}

#[test]
fn kill_without_sync_loses_no_acknowledged_message() {
    again_and_again("interval", End::Killed, 2);
    again_and_again("never", End::Killed, 2);
}

#[test]
fn all_messages_survive_a_clean_shutdown() {
    again_and_again("always", End::Told, 2);
}

#[test]
fn acknowledged_messages_arrive_after_broken_connections() {
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
