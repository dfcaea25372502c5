//! The actions of a run: each change and each undo in a separate thread, and all events in the log.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenbin_loadgen::run::RunClock;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::fault::{self, Undo};
use super::schedule::{ActionStep, Schedule};
use super::stage::Stage;
use crate::plan::{Plan, PlannedAction};
use crate::results::{Event, EventLog, Happening};
use crate::units::Time;

/// Report of a thread. All times are of the run's clock.
enum Report {
    Resolved(usize, u64, Vec<String>),
    Begun(usize, u64, Undo),
    Undone(usize, u64),
    Failed { number: usize, at_ns: u64, error: String, is_undo: bool },
}

/// The actions of a run.
pub(crate) struct Faults<'p> {
    stage: Arc<Stage>,
    clock: RunClock,
    /// End of the warm-up.
    origin_ns: Option<u64>,
    schedule: Schedule<'p>,
    actions: &'p [PlannedAction],
    undos: HashMap<usize, Undo>,
    reports: Receiver<Report>,
    reporter: Sender<Report>,
    log: EventLog<File>,
    /// True when no action may begin any more.
    is_ending: Arc<AtomicBool>,
    not_undone: Vec<String>,
    failed: Vec<String>,
}

impl<'p> Faults<'p> {
    /// The actions of `plan`; the log gets them as planned.
    pub(crate) fn new(plan: &'p Plan, stage: Arc<Stage>, clock: RunClock, file: File) -> Self {
        let (reporter, reports) = channel(64);
        let mut faults = Self {
            stage,
            clock,
            origin_ns: None,
            schedule: Schedule::new(plan),
            actions: &plan.actions,
            undos: HashMap::new(),
            reports,
            reporter,
            log: EventLog::new(file),
            is_ending: Arc::default(),
            not_undone: Vec::new(),
            failed: Vec::new(),
        };
        for (number, action) in plan.actions.iter().enumerate() {
            let happening =
                Happening::Planned { planned: action.at, change: action.change.clone(), undo: action.undo.clone() };
            faults.note(number, clock.now_ns(), happening);
        }
        faults
    }

    /// Sets the end of the warm-up, from which all times count.
    pub(crate) fn begin_to_measure(&mut self, origin_ns: u64) {
        self.origin_ns = Some(origin_ns);
    }

    /// Starts the steps that are due, and takes note of those that are complete.
    pub(crate) fn tick(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            self.take(report);
        }
        let now = self.at(self.clock.now_ns());
        let Some(now) = now.filter(|_| !self.is_ending()) else { return };
        for step in self.schedule.due(now) {
            match step {
                ActionStep::Begin(number) => self.begin(number),
                ActionStep::End(number) => self.end(number),
            }
        }
    }

    /// Lets no action begin any more, and undoes those in effect.
    pub(crate) fn end_all(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        let now = self.at(self.clock.now_ns()).unwrap_or_default();
        for number in self.schedule.end_all(now) {
            self.end(number);
        }
    }

    /// True if nothing is in effect, and no step is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.schedule.is_idle()
    }

    /// All events; errors of changes; changes that could not be undone.
    pub(crate) fn into_results(self) -> (Vec<Event>, Vec<String>, Vec<String>) {
        (self.log.events().to_vec(), self.failed, self.not_undone)
    }

    fn begin(&self, number: usize) {
        let (stage, action, clock) = (Arc::clone(&self.stage), self.actions[number].clone(), self.clock);
        let (reporter, is_ending) = (self.reporter.clone(), Arc::clone(&self.is_ending));
        tokio::task::spawn_blocking(move || {
            // The receiver is gone only after the run.
            let tell = |report| drop(reporter.blocking_send(report));
            let waited = action.wait_for.map_or(Ok(()), |wait_for| stage.await_copies(wait_for.copies, &is_ending));
            let made = waited.and_then(|()| fault::resolve(&stage, &action)).and_then(|targets| {
                tell(Report::Resolved(number, clock.now_ns(), targets.names()));
                fault::begin(&stage, &action, &targets)
            });
            let at_ns = clock.now_ns();
            tell(match made {
                Ok(undo) => Report::Begun(number, at_ns, undo),
                Err(error) => Report::Failed { number, at_ns, error, is_undo: false },
            });
        });
    }

    fn end(&mut self, number: usize) {
        self.note(number, self.clock.now_ns(), Happening::Ended);
        let undo = self.undos.remove(&number).unwrap_or(Undo::Nothing);
        let (stage, clock, reporter) = (Arc::clone(&self.stage), self.clock, self.reporter.clone());
        tokio::task::spawn_blocking(move || {
            let undone = fault::undo(&stage, undo);
            let at_ns = clock.now_ns();
            let report = match undone {
                Ok(()) => Report::Undone(number, at_ns),
                Err(error) => Report::Failed { number, at_ns, error, is_undo: true },
            };
            drop(reporter.blocking_send(report));
        });
    }

    fn take(&mut self, report: Report) {
        match report {
            Report::Resolved(number, at_ns, targets) => self.note(number, at_ns, Happening::Resolved { targets }),
            Report::Begun(number, at_ns, undo) => {
                self.note(number, at_ns, Happening::Begun);
                self.undos.insert(number, undo);
                self.schedule.begun(number, self.at(at_ns).unwrap_or_default());
                if self.is_ending() && !self.schedule.is_idle() {
                    self.end_all();
                }
            }
            Report::Undone(number, at_ns) => {
                self.note(number, at_ns, Happening::Undone);
                self.schedule.over(number, self.at(at_ns).unwrap_or_default());
            }
            Report::Failed { number, at_ns, error, is_undo } => {
                let text = format!("{}: {error}", self.actions[number].name);
                if is_undo {
                    self.not_undone.push(text)
                } else {
                    self.failed.push(text)
                }
                self.note(number, at_ns, Happening::Failed { error, is_undo });
                self.schedule.over(number, self.at(at_ns).unwrap_or_default());
            }
        }
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    fn at(&self, at_ns: u64) -> Option<Time> {
        at_ns.checked_sub(self.origin_ns?).map(Time::from_ns)
    }

    fn note(&mut self, number: usize, time_ns: u64, happening: Happening) {
        let action = &self.actions[number];
        let (action, repetition) = (action.name.clone(), action.repetition);
        let event = Event { time_ns, at: self.at(time_ns), action, repetition, happening };
        if let Err(error) = self.log.add(event) {
            let text = format!("events.jsonl is incomplete: {error}");
            if !self.failed.contains(&text) {
                self.failed.push(text);
            }
        }
    }
}
