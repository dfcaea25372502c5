//! Power cuts under the load of [`super::crash`]: the disk keeps only confirmed writes, and no acknowledged message is
//! lost.

use std::io::Write as _;
use std::time::Duration;

use super::load::World;
use crate::support::{BrokerProcess, ConfigFile, Dice, DiskImage};

/// Default; `TENBIN_POWER_CUTS` overrides it.
const CUTS: usize = 2;

#[test]
fn power_cut_loses_no_acknowledged_message() {
    let cuts = std::env::var("TENBIN_POWER_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(CUTS);
    let Some(mut stage) = Stage::new("always") else { return };
    for _ in 0..cuts {
        stage.cut();
        stage.world.assert_fine();
    }
    let Stage { world, broker, .. } = &mut stage;
    let broker = broker.as_ref().expect("started after the cut");
    world.finish(broker.address(), broker.log());
    world.assert_fine();
    let (acknowledged, deliveries) = world.counts();
    let what = format!("{acknowledged} messages acknowledged, {deliveries} delivered");
    let _ = writeln!(std::io::stderr(), "{cuts} power cuts: {what}");
    assert!(acknowledged > 20 * cuts, "{acknowledged} messages acknowledged before {cuts} power cuts");
}

/// Shows that the test above can detect a loss.
#[test]
fn power_cut_without_sync_loses_messages() {
    let Some(mut stage) = Stage::new("never") else { return };
    stage.cut();
    // The load after the first cut detects the loss.
    stage.cut();
    assert!(!stage.world.complaints().is_empty(), "everything is there, though the disk was never asked to confirm");
}

struct Stage {
    dice: Dice,
    world: World,
    config: ConfigFile,
    /// Declared before the disk, so that the broker is dropped first.
    broker: Option<BrokerProcess>,
    disk: DiskImage,
}

impl Stage {
    fn new(sync: &str) -> Option<Self> {
        let disk = DiskImage::mount_new()?;
        let seed = super::announced_seed();
        let config = super::roomy(&format!("sync = \"{sync}\""));
        let (dice, world) = (Dice::new(seed, 0), super::world(seed));
        let mut stage = Self { dice, world, config, broker: None, disk };
        stage.start();
        stage.world.set_up(stage.broker.as_ref().expect("just started").address());
        Some(stage)
    }

    fn start(&mut self) {
        let data = self.disk.path().join("data");
        let data = data.to_str().expect("a target directory with a readable name");
        self.broker = Some(BrokerProcess::start(&["--data", data, "--config", self.config.path()]));
    }

    /// Runs a round of load that ends with a power cut, and starts the broker again.
    fn cut(&mut self) {
        let broker = self.broker.take().expect("started after the last cut");
        let length = Duration::from_millis(self.dice.within(50..800));
        let (address, log) = (broker.address(), broker.log().clone());
        self.world.round(address, &log, |_| {
            std::thread::sleep(length);
            self.disk.cut_power(broker);
        });
        self.start();
    }
}
