//! A scenario: workers and publishers of one share group, and their format in a file.

mod error;
mod queue;
mod workers;

use std::num::NonZeroU32;
use std::path::Path;

use serde::Deserialize;

use error::Fault;
pub use error::ScenarioError;
pub use queue::{Poison, WorkQueue};
pub use workers::{Acknowledges, Pause, Reports, ServiceStep, ThreadStep, WorkerKind};

use tenbin_kit::Span;

use crate::arrivals::Arrivals;

/// One share group with its workers and publishers, as a TOML file. Unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The file's name without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// Description in one line, for people.
    #[serde(default)]
    pub about: String,
    /// QoS levels to simulate, one after the other: 0 (no acknowledgements) or 1.
    #[serde(default = "qos_0")]
    pub qos: Vec<u8>,
    /// Number of runs to combine, each with another seed.
    #[serde(default = "one")]
    pub seeds: NonZeroU32,
    /// Messages in a run.
    pub messages: NonZeroU32,
    /// Arrival times of the messages.
    pub arrivals: Arrivals,
    /// Number of publishers. Messages are assigned to them at random.
    #[serde(default = "one")]
    pub publishers: NonZeroU32,
    /// Number of topics. Messages are assigned to them at random.
    #[serde(default = "one")]
    pub topics: NonZeroU32,
    /// Time that the workers are connected before the first message. In this time their pings report no work.
    #[serde(default = "one_second")]
    pub idle: Span,
    /// One more publisher, which sends bursts in addition to `arrivals`.
    pub loud: Option<Bursts>,
    /// Message Expiry Intervals, chosen at random between these two.
    pub expiry: Option<Expiry>,
    /// When workers report.
    #[serde(default)]
    pub pings: Pings,
    /// Workers that join and leave all the time.
    pub churn: Option<Churn>,
    /// Messages that every worker rejects.
    pub poison: Option<Poison>,
    /// Retries and time-outs of the group. Without them a rejected message is gone, and an overdue one stays.
    pub queue: Option<WorkQueue>,
    /// The members of the group, one entry for each kind.
    pub workers: Vec<WorkerKind>,
}

/// When workers report: with every ping.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pings {
    /// Interval of pings. The first one follows within one interval after connecting.
    pub every: Span,
    /// Whether to ping early, too, at least 100 ms after the previous ping.
    ///
    /// Reasons are: the first finished message; a mean processing time above 1.5 times or below 1/1.5 of the reported
    /// one; a queue of twice the reported length + 4.
    pub eager: bool,
    /// Share of the pings that are left out at random, 0 to 1.
    pub skipped: f64,
}

/// Bursts of messages of one publisher.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// Messages of a burst.
    pub messages: NonZeroU32,
    /// Interval between bursts.
    pub every: Span,
}

/// Range of Message Expiry Intervals.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expiry {
    /// The shortest.
    pub from: Span,
    /// The longest.
    pub to: Span,
}

/// Churn: a worker leaves and another of its kind joins, unknown to the broker.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Churn {
    /// Interval between changes. The leaving worker is chosen at random.
    pub every: Span,
    /// Whether the leaving worker dies. Its messages are then lost (QoS 0) or redelivered (QoS 1). Otherwise it
    /// finishes them.
    #[serde(default)]
    pub dies: bool,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, has an unknown key or a value out of range. The error names file, line and
    /// key.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path).map_err(|error| ScenarioError::unreadable(path, &error))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&name, &text).map_err(|error| error.in_file(path))
    }

    /// Parses the text of a scenario file.
    ///
    /// # Errors
    /// As [`read`](Self::read), without the file.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(|error| ScenarioError::illegal(text, &error))?;
        match scenario.fault() {
            Some(fault) => Err(ScenarioError::out_of_range(text, &fault)),
            None => Ok(Self { name: name.to_owned(), ..scenario }),
        }
    }

    /// A scenario at QoS 0, with the defaults of a file for everything else.
    pub(crate) fn of(name: String, messages: NonZeroU32, arrivals: Arrivals, workers: Vec<WorkerKind>) -> Self {
        Self {
            name,
            about: String::new(),
            qos: qos_0(),
            seeds: one(),
            messages,
            arrivals,
            publishers: one(),
            topics: one(),
            idle: one_second(),
            loud: None,
            expiry: None,
            pings: Pings::default(),
            churn: None,
            poison: None,
            queue: None,
            workers,
        }
    }

    /// Number of workers, including those with a time of joining.
    pub fn worker_count(&self) -> u32 {
        self.workers.iter().map(|kind| kind.count.get()).fold(0, u32::saturating_add)
    }

    /// The first value out of range.
    fn fault(&self) -> Option<Fault> {
        let own = |key, message: &str| Some(Fault { key, message: message.to_owned(), worker: None });
        if self.messages.get() > MESSAGES_MAX {
            return own("messages", "at most ten million");
        }
        if self.qos.is_empty() || self.qos.iter().any(|&qos| qos > 1) {
            return own("qos", "is a list of 0 and 1");
        }
        if let Some(fault) = self.arrivals.fault() {
            return own("arrivals", fault);
        }
        if self.pings.every < EAGER_GAP {
            return own("pings", "every: at least 100ms");
        }
        if !(0.0..=1.0).contains(&self.pings.skipped) {
            return own("pings", "skipped: from 0 to 1");
        }
        if self.loud.is_some_and(|loud| loud.every == Span::ZERO) {
            return own("loud", "every: has to be more than 0");
        }
        if self.expiry.is_some_and(|expiry| expiry.from > expiry.to) {
            return own("expiry", "from: at most as long as to");
        }
        if self.churn.as_ref().is_some_and(|churn| churn.every == Span::ZERO) {
            return own("churn", "every: has to be more than 0");
        }
        if let Some(fault) = self.poison.and_then(Poison::fault) {
            return own("poison", fault);
        }
        if let Some(fault) = self.queue.and_then(WorkQueue::fault) {
            return own("queue", fault);
        }
        let mut workers = self.workers.iter().enumerate();
        let faults = workers.find_map(|(index, kind)| Some((index, kind.fault()?)));
        if let Some((index, (key, message))) = faults {
            return Some(Fault { key, message, worker: Some(index) });
        }
        let too_many = self.worker_count() > WORKERS_MAX;
        if self.workers.is_empty() || too_many { own("workers", "1 to 10000 of them") } else { None }
    }
}

impl Default for Pings {
    fn default() -> Self {
        Self { every: one_second(), eager: false, skipped: 0.0 }
    }
}

/// Shortest time between two pings of a worker.
pub(crate) const EAGER_GAP: Span = Span::from_ns(100_000_000);
const MESSAGES_MAX: u32 = 10_000_000;
const WORKERS_MAX: u32 = 10_000;

fn qos_0() -> Vec<u8> {
    vec![0]
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn one_second() -> Span {
    Span::from_ns(1_000_000_000)
}

#[cfg(test)]
mod tests;
