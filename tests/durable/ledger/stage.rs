use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::faults::{Failing, Faults};
use super::load::Round;
use super::plan::{Disk, End, Fault, Plan, RoundPlan};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, DiskImage, Filler, PATIENCE, SmallDisk};

/// The broker, its disk, and the injected faults.
pub(crate) struct Stage {
    // Declared before the disk, so that the broker is dropped first.
    broker: Option<BrokerProcess>,
    disk: Storage,
    faults: Faults,
    config: ConfigFile,
}

enum Storage {
    Image(DiskImage),
    Small(SmallDisk),
    Directory(DataDirectory),
}

impl Stage {
    /// Starts a broker. Its data are in a directory where no disk can be mounted.
    pub(crate) fn new(plan: &Plan, sync: &str) -> Self {
        let disk = match plan.disk {
            Disk::Image => DiskImage::mount_new().map(Storage::Image),
            Disk::Small => SmallDisk::mount(SMALL_MEBIBYTES).map(Storage::Small),
            Disk::Directory => None,
        };
        let disk = disk.unwrap_or_else(|| Storage::Directory(DataDirectory::new()));
        let messages = plan.queue_messages.unwrap_or(1_000_000);
        let queue = format!("[queue]\nmessages_maximum = {messages}\nbytes_maximum = 1073741824");
        let disk_bytes = plan.queue_messages.map_or(1 << 40, |messages| messages * 1000);
        let store = format!("[store]\nsync = \"{sync}\"\nqueue_bytes_maximum = {disk_bytes}");
        let config = ConfigFile::new(&format!("{queue}\n{store}\n"));
        let mut stage = Self { broker: None, disk, faults: Faults::new(), config };
        stage.start();
        stage
    }

    pub(crate) fn broker(&self) -> &BrokerProcess {
        self.broker.as_ref().expect("started after each end")
    }

    pub(crate) fn start(&mut self) {
        let data = self.data();
        let data = data.to_str().expect("a target directory with a readable name");
        let arguments = ["--listen", "127.0.0.1:0", "--data", data, "--config", self.config.path()];
        self.broker = Some(BrokerProcess::start_in(&self.faults.environment(), &arguments));
    }

    /// True if power can be cut.
    pub(crate) fn has_power(&self) -> bool {
        matches!(self.disk, Storage::Image(_))
    }

    /// Syncs the disk: everything written so far survives a power cut.
    pub(crate) fn sync_disk(&self) {
        let status = Command::new("sync").arg("-f").arg(self.data()).status().expect("sync is there");
        assert!(status.success(), "sync -f");
    }

    fn data(&self) -> PathBuf {
        match &self.disk {
            Storage::Image(disk) => disk.path().join("data"),
            Storage::Small(disk) => disk.data(),
            Storage::Directory(directory) => directory.path().to_owned(),
        }
    }

    /// Plays the faults of a round. A broker that was ended is started again by [`Stage::start`].
    pub(crate) fn play(&mut self, plan: &RoundPlan, round: &Round) {
        let sleep = |milliseconds| std::thread::sleep(Duration::from_millis(milliseconds));
        for &(wait, fault) in &plan.steps {
            sleep(wait);
            if fault.is_left_out() {
                continue;
            }
            round.event(format!("{fault:?} begins"));
            match fault {
                Fault::Frozen(length) => {
                    self.broker().signal("STOP");
                    sleep(length);
                    self.broker().signal("CONT");
                }
                Fault::Cut => round.cut(),
                Fault::DiskFull(length) => {
                    let filler = self.fill();
                    sleep(length);
                    drop(filler);
                    self.faults.mend(Failing::Write);
                }
                Fault::SyncFails(length) => {
                    self.faults.fail(Failing::Sync);
                    sleep(length);
                    // A power cut may come while sync still fails.
                    if plan.end != End::PowerCut || plan.steps.last() != Some(&(wait, fault)) {
                        self.faults.mend(Failing::Sync);
                    }
                }
                Fault::ClockBack(seconds) => self.faults.set_clock_back(seconds),
            }
            round.event(format!("{fault:?} is over"));
        }
        sleep(plan.rest);
        self.end(plan.end, round);
        self.faults.mend(Failing::Sync);
    }

    /// Fills the disk. Makes its writes fail instead if it cannot be filled.
    fn fill(&self) -> Option<Filler> {
        match &self.disk {
            Storage::Small(disk) => Some(disk.fill()),
            _ => {
                self.faults.fail(Failing::Write);
                None
            }
        }
    }

    fn end(&mut self, end: End, round: &Round) {
        if end == End::Stays {
            return;
        }
        round.broker_goes();
        round.event(format!("end: {end:?}"));
        if end != End::Told {
            round.broker_crashes();
        }
        let mut broker = self.broker.take().expect("started after each end");
        match (end, &mut self.disk) {
            (End::PowerCut, Storage::Image(disk)) => disk.cut_power(broker),
            (End::Told, _) => {
                broker.signal("TERM");
                broker.wait_for_exit(PATIENCE);
            }
            _ => drop(broker),
        }
    }

    /// Waits until the broker has written the changes that had failed.
    pub(crate) fn recover(&self) {
        let until = Instant::now() + PATIENCE;
        let log = self.broker().log();
        for (fails, again) in [
            ("the state cannot be written", "the state can be written again"),
            ("messages cannot be written", "messages can be written again"),
        ] {
            let is_well = || {
                let lines = log.all();
                let last = |words| lines.iter().rposition(|line: &String| line.contains(words));
                last(fails) <= last(again)
            };
            while !is_well() {
                assert!(Instant::now() < until, "no word of \"{again}\":\n{}", log.all().join("\n"));
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Room for the files that the log allocates ahead, and for the messages of a run.
const SMALL_MEBIBYTES: usize = 400;
