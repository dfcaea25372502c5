use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tenbin_codec::ProtocolVersion::{self, V5, V311};
use tenbin_codec::QoS::{self, AtLeastOnce, ExactlyOnce};

use super::judge;
use super::publisher::Publisher;
use super::receiver::{Habit, Receiver};
use super::support::{Changes, Dice, Lines, PATIENCE};

/// All clients of a broker that dies now and then, and whatever they have found to be wrong.
pub(crate) struct World {
    seed: u64,
    publishers: Vec<Publisher>,
    receivers: Vec<Receiver>,
    changes: Changes,
    rounds: usize,
    complaints: Complaints,
    /// What the brokers said, one after the other.
    logs: Vec<Lines>,
}

/// What a client has to know of the round that it is in.
pub(crate) struct Round<'a> {
    pub(crate) number: usize,
    pub(crate) address: SocketAddr,
    over: &'a AtomicBool,
    complaints: &'a Complaints,
}

/// What is wrong.
#[derive(Default)]
struct Complaints(Mutex<Vec<String>>);

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let publishers = PUBLISHERS.iter().enumerate();
        let publishers = publishers
            .map(|(number, &(version, has_session, qos))| Publisher::new(number, version, has_session, qos, seed))
            .collect();
        let receivers = RECEIVERS.iter().enumerate();
        let receivers = receivers.map(|(number, &habit)| Receiver::new(number, habit, seed)).collect();
        let changes = Changes::new(Dice::new(seed, 1));
        Self { seed, publishers, receivers, changes, rounds: 0, complaints: Complaints::default(), logs: Vec::new() }
    }

    /// Begins all sessions that last, and subscribes.
    pub(crate) fn set_up(&self, address: SocketAddr) {
        self.publishers.iter().for_each(|publisher| publisher.set_up(address));
        self.receivers.iter().for_each(|receiver| receiver.set_up(address));
    }

    /// Puts load on a broker, whose log is `log`, until `end` has returned: by then it is gone, or all are to leave.
    pub(crate) fn round(&mut self, address: SocketAddr, log: &Lines, end: impl FnOnce()) {
        self.begin(address, log);
        let over = &AtomicBool::new(false);
        let round = &Round { number: self.rounds, address, over, complaints: &self.complaints };
        std::thread::scope(|scope| {
            scope.spawn(|| self.changes.make(address, over));
            self.publishers.iter_mut().for_each(|publisher| drop(scope.spawn(|| publisher.work(round))));
            self.receivers.iter_mut().for_each(|receiver| drop(scope.spawn(|| receiver.work(round))));
            end();
            over.store(true, Ordering::Relaxed);
        });
        self.complaints.add(self.rounds, judge::gaps(&self.publishers, &self.receivers));
    }

    /// Everything that is under way arrives; then nothing may be missing.
    pub(crate) fn finish(&mut self, address: SocketAddr, log: &Lines) {
        self.begin(address, log);
        let over = &AtomicBool::new(false);
        let round = &Round { number: self.rounds, address, over, complaints: &self.complaints };
        std::thread::scope(|scope| {
            self.publishers.iter_mut().for_each(|publisher| drop(scope.spawn(|| publisher.finish(round))));
        });
        let mut progress = (Instant::now(), 0);
        loop {
            std::thread::scope(|scope| {
                self.receivers.iter_mut().for_each(|receiver| drop(scope.spawn(|| receiver.drain(round))));
            });
            let deliveries = deliveries(&self.receivers);
            let is_done = self.receivers.iter().all(Receiver::is_done)
                && judge::missing(&self.publishers, &self.receivers).is_empty();
            if deliveries > progress.1 {
                progress = (Instant::now(), deliveries);
            } else if is_done || progress.0.elapsed() > PATIENCE {
                break;
            }
        }
        self.receivers.iter_mut().for_each(|receiver| receiver.end(round));
        self.complaints.add(self.rounds, judge::missing(&self.publishers, &self.receivers));
        self.complaints.add(self.rounds, judge::shared_twice(&self.publishers, &self.receivers));
    }

    /// What is wrong so far.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.complaints.all()
    }

    /// # Panics
    /// If something is wrong.
    pub(crate) fn assert_fine(&self) {
        let complaints = self.complaints();
        assert!(complaints.is_empty(), "{}", self.report(&complaints));
    }

    /// Messages that were acknowledged, and deliveries.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let acknowledged = self.publishers.iter().map(|publisher| publisher.sent.count()).sum();
        (acknowledged, deliveries(&self.receivers))
    }

    fn begin(&mut self, address: SocketAddr, log: &Lines) {
        self.rounds += 1;
        self.logs.push(log.clone());
        self.complaints.add(self.rounds, self.changes.look(address));
    }

    fn report(&self, complaints: &[String]) -> String {
        let Self { seed, rounds, .. } = self;
        let mut text = format!("TENBIN_CRASH_SEED={seed}: wrong after {rounds} rounds, {} times:", complaints.len());
        let mut of_clients = HashMap::<_, usize>::new();
        for complaint in complaints {
            let shown = of_clients.entry(complaint.split(" (").next()).or_default();
            *shown += 1;
            if *shown <= COMPLAINTS_SHOWN {
                let _ = write!(text, "\n  {complaint}");
            }
        }
        for (round, log) in self.logs.iter().enumerate().skip(self.logs.len().saturating_sub(LOGS_SHOWN)) {
            let lines = log.all();
            let _ = write!(text, "\nthe broker of round {} said, in {} lines:", round + 1, lines.len());
            let last = lines.iter().skip(lines.len().saturating_sub(LINES_SHOWN));
            last.for_each(|line| text += &format!("\n  {line}"));
        }
        text
    }
}

impl Round<'_> {
    /// Whether nothing more is to be begun.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Something is wrong.
    pub(crate) fn complain(&self, complaint: String) {
        self.complaints.add(self.number, vec![complaint]);
    }
}

impl Complaints {
    fn add(&self, round: usize, complaints: Vec<String>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(complaints.into_iter().map(|complaint| format!("round {round}: {complaint}")));
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn deliveries(receivers: &[Receiver]) -> usize {
    receivers.iter().map(|receiver| receiver.received.deliveries).sum()
}

/// Version, whether there is a session that lasts, and the QoS of the messages.
const PUBLISHERS: [(ProtocolVersion, bool, &[QoS]); 6] = [
    (V5, true, &[AtLeastOnce]),
    (V5, true, &[ExactlyOnce]),
    (V311, true, &[ExactlyOnce]),
    (V311, true, &[AtLeastOnce, ExactlyOnce]),
    (V5, false, &[AtLeastOnce]),
    (V5, false, &[ExactlyOnce]),
];

const RECEIVERS: [Habit; 10] = [
    Habit::new(V5, ExactlyOnce),
    Habit::new(V311, AtLeastOnce),
    Habit { hesitates_percent: 60, receive_maximum: Some(10), ..Habit::new(V5, ExactlyOnce) },
    Habit { hesitates_percent: 60, ..Habit::new(V311, ExactlyOnce) },
    Habit { wanders: true, ..Habit::new(V5, ExactlyOnce) },
    Habit { wanders: true, ..Habit::new(V311, ExactlyOnce) },
    Habit { wanders: true, ..Habit::new(V5, AtLeastOnce) },
    Habit { filter: SHARED, ..Habit::new(V5, ExactlyOnce) },
    Habit { filter: SHARED, wanders: true, ..Habit::new(V5, ExactlyOnce) },
    Habit { filter: SHARED, wanders: true, receive_maximum: Some(20), ..Habit::new(V5, ExactlyOnce) },
];

const SHARED: &str = "$share/crew/group/#";

/// Of one client.
const COMPLAINTS_SHOWN: usize = 4;
const LOGS_SHOWN: usize = 2;
const LINES_SHOWN: usize = 30;
