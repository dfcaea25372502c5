use std::fmt;

use tenbin_codec::ProtocolVersion::{V5, V311};
use tenbin_codec::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};

use super::load::{Cast, Habit, Trait};
use crate::support::Dice;

/// Plan of a run, which follows from its seed.
pub(crate) struct Plan {
    dice: Dice,
    pub(crate) disk: Disk,
    /// Queue limit of one receiver. A small limit leads to refusals.
    pub(crate) queue_messages: Option<u64>,
    /// How far the clock is behind. It never moves forward again: messages would expire.
    clock_back_seconds: u64,
}

/// Storage of the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    /// Disk image whose power may be cut.
    Image,
    /// Small disk that may become full.
    Small,
    Directory,
}

/// A round of load, with its faults and its end.
pub(crate) struct RoundPlan {
    pub(crate) steps: Vec<(u64, Fault)>,
    /// Milliseconds from the last step to the end.
    pub(crate) rest: u64,
    pub(crate) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGSTOP, and SIGCONT after this number of milliseconds.
    Frozen(u64),
    /// All clients break their connections.
    Cut,
    DiskFull(u64),
    SyncFails(u64),
    /// Sets the clock this number of seconds behind the real time.
    ClockBack(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Killed,
    /// Power cut if the disk supports it, otherwise a kill.
    PowerCut,
    Told,
    /// The broker stays.
    Stays,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 0);
        let disk = [Disk::Image, Disk::Small, Disk::Directory][dice.within(0..3) as usize];
        let queue_messages = dice.percent(50).then(|| dice.within(20..400)).filter(|_| !is_left_out("refusals"));
        Self { dice, disk, queue_messages, clock_back_seconds: 0 }
    }

    pub(crate) fn cast(&mut self) -> Cast {
        let breaks = |dice: &mut Dice| dice.percent(50).then(|| dice.within(50..1500));
        let mut publishers = vec![
            Trait::new(V5, true, &[AtLeastOnce]),
            Trait::new(V5, true, &[ExactlyOnce]),
            Trait::new(V5, true, &[AtMostOnce, AtLeastOnce, ExactlyOnce]),
            Trait::new(V5, false, &[AtLeastOnce, ExactlyOnce]),
            Trait::new(V311, true, &[AtLeastOnce]),
            Trait::new(V311, true, &[AtMostOnce, ExactlyOnce]),
        ];
        for publisher in &mut publishers {
            publisher.breaks_within = breaks(&mut self.dice);
            // Queues and the disk may be full. A full disk refuses a message for all receivers or for none.
            publisher.may_be_refused = true;
            publisher.refused_unheard = publisher.version == V311 && self.queue_messages.is_some();
        }
        // Half of the plans bind messages late.
        let concurrency = self.dice.percent(50).then(|| self.dice.within(1..4) as u16);
        let member = Habit { filter: SHARED, concurrency, ..Habit::new(V5, ExactlyOnce) };
        let passes = |version, qos| Habit { lasts: false, ..Habit::new(version, qos) };
        let mut receivers = vec![
            Habit::new(V5, ExactlyOnce),
            Habit { hesitates_percent: 60, receive_maximum: Some(10), ..Habit::new(V5, ExactlyOnce) },
            Habit { wanders: true, ..Habit::new(V5, AtLeastOnce) },
            Habit { wanders: true, ..Habit::new(V311, ExactlyOnce) },
            passes(V5, ExactlyOnce),
            passes(V311, AtLeastOnce),
            Habit { wanders: true, ..passes(V5, AtLeastOnce) },
            member,
            Habit { wanders: true, receive_maximum: Some(20), ..member },
            Habit { wanders: true, lasts: false, qos: AtLeastOnce, ..member },
        ];
        for receiver in &mut receivers {
            receiver.stalls_permille = if self.dice.percent(40) { self.dice.within(1..6) } else { 0 };
        }
        Cast { publishers, receivers, mortals: 3, returns: true }
    }

    pub(crate) fn round(&mut self) -> RoundPlan {
        let steps = (0..self.dice.within(0..4)).map(|_| (self.dice.within(20..600), self.fault())).collect();
        let end = match self.dice.within(0..10) {
            0..4 => End::Killed,
            4..7 => End::PowerCut,
            7 => End::Told,
            _ => End::Stays,
        };
        RoundPlan { steps, rest: self.dice.within(20..500), end }
    }

    fn fault(&mut self) -> Fault {
        let length = self.dice.within(50..800);
        match self.dice.within(0..5) {
            0 => Fault::Frozen(length),
            1 => Fault::Cut,
            2 => Fault::DiskFull(length),
            3 => Fault::SyncFails(length),
            _ => {
                self.clock_back_seconds += [1, 60, 3600, 86_400][self.dice.within(0..4) as usize];
                Fault::ClockBack(self.clock_back_seconds)
            }
        }
    }
}

impl Fault {
    pub(crate) fn is_left_out(self) -> bool {
        is_left_out(match self {
            Self::Frozen(_) => "frozen",
            Self::Cut => "cut",
            Self::DiskFull(_) => "disk",
            Self::SyncFails(_) => "sync",
            Self::ClockBack(_) => "clock",
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let room = self.queue_messages.map_or("no limit".to_owned(), |messages| format!("{messages} messages a queue"));
        write!(f, "{:?}, {room}", self.disk)
    }
}

/// True if `TENBIN_LEDGER_WITHOUT` lists this name, for example `clock,sync`, to narrow down a failure.
fn is_left_out(name: &str) -> bool {
    let names = std::env::var("TENBIN_LEDGER_WITHOUT").unwrap_or_default();
    names.split(',').any(|one| one == name)
}

const SHARED: &str = "$share/crew/group/#";
