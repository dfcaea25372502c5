//! Random changes while the broker is killed. Acknowledged changes are there, each other one may be there or not.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{BrokerProcess, Changes, ConfigFile, DataDirectory, Dice, DiskImage, seed};

/// Default; `TENBIN_ROUNDS` overrides it.
const ROUNDS: usize = 5;

#[test]
fn acknowledged_changes_survive_a_kill_at_any_time() {
    kill_again_and_again("always", ROUNDS);
}

#[test]
fn kill_without_sync_loses_no_acknowledged_change() {
    kill_again_and_again("interval", 2);
    kill_again_and_again("never", 2);
}

#[test]
fn acknowledged_changes_survive_a_power_cut() {
    let Some(mut disk) = DiskImage::mount_new() else { return };
    let cuts = std::env::var("TENBIN_POWER_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(2);
    let seed = announced_seed();
    let (mut dice, mut changes) = (Dice::new(seed, 0), Changes::new(Dice::new(seed, 1)));
    for cut in 0..cuts {
        let broker = start_on(&disk);
        assert_eq!(changes.look(broker.address()), [""; 0], "after {cut} power cuts");
        changes_until(&mut changes, broker.address(), || {
            std::thread::sleep(Duration::from_millis(dice.within(100..400)));
            disk.cut_power(broker);
        });
    }
    assert_eq!(changes.look(start_on(&disk).address()), [""; 0], "after {cuts} power cuts");
    let acknowledged = changes.acknowledged;
    assert!(acknowledged > 20 * cuts, "{acknowledged} changes acknowledged before {cuts} power cuts");
}

fn start_on(disk: &DiskImage) -> BrokerProcess {
    let data = disk.path().join("data");
    BrokerProcess::start(&["--data", data.to_str().expect("a target directory with a readable name")])
}

/// Makes changes until `end`, which ends the broker, has returned.
fn changes_until(changes: &mut Changes, broker: SocketAddr, end: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| changes.make(broker, &over));
        end();
        over.store(true, Ordering::Relaxed);
    });
}

/// `TENBIN_ROUNDS` if set, otherwise `rounds`.
pub(crate) fn rounds_or(rounds: usize) -> usize {
    std::env::var("TENBIN_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(rounds)
}

pub(crate) fn announced_seed() -> u64 {
    let seed = seed("TENBIN_SEED");
    let _ = writeln!(std::io::stderr(), "TENBIN_SEED={seed}");
    seed
}

fn kill_again_and_again(sync: &str, rounds: usize) {
    let rounds = rounds_or(rounds);
    let config = ConfigFile::new(&format!("[store]\nsync = \"{sync}\"\nsync_interval_ms = 50\n"));
    let arguments = ["--config", config.path()];
    let seed = announced_seed();
    let mut dice = Dice::new(seed, 0);
    let mut changes = Changes::new(Dice::new(seed, 1));
    let directory = DataDirectory::new();
    for round in 0..rounds {
        let broker = directory.start_with(&arguments);
        assert_eq!(changes.look(broker.address()), [""; 0], "round {round}");
        changes_until(&mut changes, broker.address(), || {
            std::thread::sleep(Duration::from_millis(dice.within(100..300)));
            drop(broker);
        });
    }
    assert_eq!(changes.look(directory.start_with(&arguments).address()), [""; 0], "round {rounds}");
    let acknowledged = changes.acknowledged;
    assert!(acknowledged > 20 * rounds, "{acknowledged} changes acknowledged in {rounds} rounds, {sync}");
}
