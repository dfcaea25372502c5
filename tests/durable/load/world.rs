use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::journal::Complaint;
use super::judge;
use super::ledger::Number;
use super::mortals::{Heir, Mortal};
use super::publisher::{Publisher, Trait};
use super::receiver::{Habit, Receiver};
use crate::support::{Changes, Dice, Lines, PATIENCE};

/// Participants of a run.
pub(crate) struct Cast {
    pub(crate) publishers: Vec<Trait>,
    pub(crate) receivers: Vec<Habit>,
    /// Clients with Wills.
    pub(crate) mortals: usize,
    /// Clients reconnect while the broker lives.
    pub(crate) returns: bool,
}

/// All clients of a broker that dies now and then, and the violations that they found.
pub(crate) struct World {
    /// How to repeat the run.
    seed: String,
    publishers: Vec<Publisher>,
    receivers: Vec<Receiver>,
    mortals: Vec<Mortal>,
    heir: Heir,
    changes: Changes,
    rounds: usize,
    may_refuse: bool,
    returns: bool,
    complaints: Complaints,
    began: Instant,
    /// Number of crashes of the broker.
    crashes: AtomicUsize,
    /// Actions on the broker, with their times.
    events: Mutex<Vec<(Instant, String)>>,
    /// Logs of all brokers, in order.
    logs: Vec<Lines>,
}

/// The current round, as its clients see it.
pub(crate) struct Round<'a> {
    pub(crate) number: usize,
    pub(crate) address: SocketAddr,
    over: &'a AtomicBool,
    /// Set when the broker of this round is about to end: its port may then belong to another process.
    goes: &'a AtomicBool,
    cuts: &'a AtomicUsize,
    crashes: &'a AtomicUsize,
    complaints: &'a Complaints,
    events: &'a Mutex<Vec<(Instant, String)>>,
}

/// Violations found so far.
#[derive(Default)]
struct Complaints(Mutex<Vec<Complaint>>);

impl World {
    /// `variable` names the environment variable of the seed.
    pub(crate) fn new(variable: &str, seed: u64, cast: Cast) -> Self {
        let may_refuse = cast.publishers.iter().any(|publisher| publisher.may_be_refused);
        let publishers = cast.publishers.into_iter().enumerate();
        let receivers = cast.receivers.into_iter().enumerate();
        Self {
            seed: format!("{variable}={seed}"),
            publishers: publishers.map(|(number, nature)| Publisher::new(number, nature, seed)).collect(),
            receivers: receivers.map(|(number, habit)| Receiver::new(number, habit, seed)).collect(),
            mortals: (0..cast.mortals).map(|number| Mortal::new(number, seed)).collect(),
            heir: Heir::default(),
            changes: Changes::new(Dice::new(seed, 1)),
            rounds: 0,
            may_refuse,
            returns: cast.returns,
            complaints: Complaints::default(),
            began: Instant::now(),
            crashes: AtomicUsize::new(0),
            events: Mutex::default(),
            logs: Vec::new(),
        }
    }

    /// Begins all persistent sessions, and subscribes.
    pub(crate) fn set_up(&self, address: SocketAddr) {
        self.publishers.iter().for_each(|publisher| publisher.set_up(address));
        self.receivers.iter().for_each(|receiver| receiver.set_up(address));
        self.heir.set_up(address);
    }

    /// Loads a broker, whose log is `log`, until `end` has returned. By then the broker is gone, or all clients must
    /// leave.
    pub(crate) fn round(&mut self, address: SocketAddr, log: &Lines, end: impl FnOnce(&Round)) {
        self.begin(log, address);
        let (over, goes, cuts) = (AtomicBool::new(false), AtomicBool::new(!self.returns), AtomicUsize::new(0));
        let number = self.rounds;
        let (complaints, events, crashes) = (&self.complaints, &self.events, &self.crashes);
        let round = &Round { number, address, over: &over, goes: &goes, cuts: &cuts, crashes, complaints, events };
        let has_heir = !self.mortals.is_empty();
        std::thread::scope(|scope| {
            scope.spawn(|| self.changes.make(address, &over));
            self.publishers
                .iter_mut()
                .for_each(|publisher| drop(scope.spawn(|| round.again(|| publisher.work(round)))));
            self.receivers.iter_mut().for_each(|receiver| drop(scope.spawn(|| round.again(|| receiver.work(round)))));
            self.mortals.iter_mut().for_each(|mortal| drop(scope.spawn(|| round.again(|| mortal.work(round)))));
            if has_heir {
                scope.spawn(|| round.again(|| self.heir.work(round)));
            }
            end(round);
            over.store(true, Ordering::Relaxed);
        });
        self.complaints.add(number, judge::overtaken(&self.publishers, &mut self.receivers, self.may_refuse));
        self.complaints.add(number, judge::gaps(&self.publishers, &mut self.receivers, self.may_refuse));
    }

    /// Waits until all messages in flight have arrived. Then no message may be missing.
    pub(crate) fn finish(&mut self, address: SocketAddr, log: &Lines) {
        self.begin(log, address);
        let (over, goes, cuts) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
        let number = self.rounds;
        let (complaints, events, crashes) = (&self.complaints, &self.events, &self.crashes);
        let round = &Round { number, address, over: &over, goes: &goes, cuts: &cuts, crashes, complaints, events };
        // Receivers continue at the same time, because a publisher may wait for room.
        let is_answered = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let publishers = self.publishers.iter_mut().map(|publisher| scope.spawn(|| publisher.finish(round)));
            let publishers: Vec<_> = publishers.collect();
            for receiver in &mut self.receivers {
                scope.spawn(|| {
                    while !is_answered.load(Ordering::Relaxed) {
                        receiver.drain(round);
                    }
                });
            }
            let is_joined = publishers.into_iter().all(|publisher| publisher.join().is_ok());
            is_answered.store(true, Ordering::Relaxed);
            assert!(is_joined, "a publisher panicked");
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
        self.heir.finish(round, &self.mortals);
        self.complaints.add(number, judge::overtaken(&self.publishers, &mut self.receivers, self.may_refuse));
        self.complaints.add(number, judge::missing(&self.publishers, &self.receivers));
        self.complaints.add(number, judge::shared_twice(&self.publishers, &self.receivers));
    }

    /// Violations so far.
    pub(crate) fn complaints(&self) -> Vec<Complaint> {
        self.complaints.all()
    }

    /// Asserts that no violations were found.
    ///
    /// # Panics
    /// If there are any.
    pub(crate) fn assert_fine(&self) {
        let complaints = self.complaints();
        assert!(complaints.is_empty(), "{}", self.report(&complaints));
    }

    /// Number of acknowledged messages, and of deliveries.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let acknowledged = self.publishers.iter().map(|publisher| publisher.sent.count()).sum();
        (acknowledged, deliveries(&self.receivers))
    }

    /// Number of refused messages, and of Wills that arrived.
    pub(crate) fn refusals_and_wills(&self) -> (usize, usize) {
        (self.publishers.iter().map(|publisher| publisher.sent.refusals()).sum(), self.heir.count())
    }

    fn begin(&mut self, log: &Lines, address: SocketAddr) {
        self.rounds += 1;
        self.logs.push(log.clone());
        let wrong = self.changes.look(address).into_iter().map(Complaint::from).collect();
        self.complaints.add(self.rounds, wrong);
    }

    pub(crate) fn report(&self, complaints: &[Complaint]) -> String {
        let Self { seed, rounds, .. } = self;
        let mut text = format!("{seed}: wrong after {rounds} rounds, {} times:", complaints.len());
        let mut of_clients = HashMap::<_, usize>::new();
        let mut histories = HISTORIES_SHOWN;
        for complaint in complaints {
            let shown = of_clients.entry(complaint.text.split(" (").next()).or_default();
            *shown += 1;
            if *shown <= COMPLAINTS_SHOWN {
                let _ = write!(text, "\n  {}", complaint.text);
                if let Some(message) = complaint.message.filter(|_| histories > 0) {
                    histories -= 1;
                    text += &self.history(message);
                }
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

    /// History of a message: all clients' actions on it, and the actions on the broker in that time.
    fn history(&self, message: Number) -> String {
        let mut lines = Vec::new();
        for publisher in &self.publishers {
            let about = publisher.journal.about(message).into_iter();
            lines.extend(about.map(|(at, what)| (at, format!("{}: {what}", publisher.name()))));
        }
        for receiver in &self.receivers {
            let about = receiver.journal.about(message).into_iter();
            lines.extend(about.map(|(at, what)| (at, format!("{}: {what}", receiver.client_id()))));
        }
        let first = lines.iter().map(|(at, _)| *at).min();
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let before = events.iter().rposition(|(at, _)| Some(*at) < first).unwrap_or(0);
        lines.extend(events.iter().skip(before).cloned());
        lines.sort();
        let mut text = String::new();
        for (at, line) in lines.iter().take(HISTORY_LINES) {
            let _ = write!(text, "\n    {:9.3} s  {line}", at.saturating_duration_since(self.began).as_secs_f64());
        }
        text
    }
}

impl Round<'_> {
    /// True if clients may begin nothing new.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// True if a client may reconnect, since the broker stays.
    pub(crate) fn may_return(&self) -> bool {
        !self.goes.load(Ordering::Relaxed)
    }

    /// Stops reconnects, since the broker is about to end.
    pub(crate) fn broker_goes(&self) {
        self.goes.store(true, Ordering::Relaxed);
    }

    /// Notes that the broker is about to crash, by a signal that it cannot handle or by a power cut.
    pub(crate) fn broker_crashes(&self) {
        self.crashes.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of crashes so far.
    pub(crate) fn crashes(&self) -> usize {
        self.crashes.load(Ordering::Relaxed)
    }

    /// Makes all clients break their connections.
    pub(crate) fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of calls of [`Round::cut`].
    pub(crate) fn cuts(&self) -> usize {
        self.cuts.load(Ordering::Relaxed)
    }

    /// Adds an action on the broker to the history of messages.
    pub(crate) fn event(&self, what: String) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push((Instant::now(), format!("round {}: {what}", self.number)));
    }

    /// Reports a violation.
    pub(crate) fn complain(&self, complaint: impl Into<Complaint>) {
        self.complaints.add(self.number, vec![complaint.into()]);
    }

    fn again(&self, mut work: impl FnMut()) {
        work();
        while self.may_return() && !self.is_over() {
            std::thread::sleep(Duration::from_millis(5));
            work();
        }
    }
}

impl Complaints {
    fn add(&self, round: usize, complaints: Vec<Complaint>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let in_round =
            |complaint: Complaint| Complaint { text: format!("round {round}: {}", complaint.text), ..complaint };
        all.extend(complaints.into_iter().map(in_round));
    }

    fn all(&self) -> Vec<Complaint> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn deliveries(receivers: &[Receiver]) -> usize {
    receivers.iter().map(|receiver| receiver.received.deliveries).sum()
}

/// Shown for each client.
const COMPLAINTS_SHOWN: usize = 4;
const HISTORIES_SHOWN: usize = 6;
const HISTORY_LINES: usize = 40;
const LOGS_SHOWN: usize = 2;
const LINES_SHOWN: usize = 30;
