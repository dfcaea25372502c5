//! Power cuts: the load of [`super::crash`] on a disk of which only that is left which it had confirmed. What was acknowledged before the cut has to be there.

use std::io::Write as _;
use std::time::Duration;

use super::load::World;
use super::support::{BrokerProcess, ConfigFile, Dice, DiskImage};

/// `TENBIN_POWER_CUTS` asks for more.
const CUTS: usize = 2;

#[test]
fn a_power_cut_takes_nothing_that_was_acknowledged() {
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

/// Else the test above would show nothing.
#[test]
fn a_power_cut_takes_something_where_the_disk_is_not_asked() {
    let Some(mut stage) = Stage::new("never") else { return };
    stage.cut();
    // Whoever comes back finds out.
    stage.cut();
    assert!(!stage.world.complaints().is_empty(), "everything is there, though the disk was never asked to confirm");
}

struct Stage {
    dice: Dice,
    world: World,
    config: ConfigFile,
    /// Before the disk that it uses, so that it is gone when that goes.
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

    /// A round of load that ends with a power cut, and the start after it.
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
