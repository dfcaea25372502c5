//! A scenario: workers and publishers of one share group, and their format in a file.

mod error;

use std::num::NonZeroU32;
use std::path::Path;

use serde::{Deserialize, Serialize};

use error::Fault;
pub use error::ScenarioError;

use tenbin_kit::Span;

use crate::{arrivals::Arrivals, distribution::Distribution};

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

/// Workers of one kind.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerKind {
    /// Number of these workers.
    #[serde(default = "one")]
    pub count: NonZeroU32,
    /// Mean service time of a message.
    pub service: Span,
    /// Distribution of service times around the mean.
    #[serde(default)]
    pub distribution: Distribution,
    /// Messages that a worker processes at a time, from one queue.
    #[serde(default = "one")]
    pub threads: NonZeroU32,
    /// Messages that a worker takes together, and finishes in the time of one. Needs one thread.
    #[serde(default = "one")]
    pub batch: NonZeroU32,
    /// Concurrency that it tells the broker when it joins: messages that it works on at a time.
    pub concurrency: Option<NonZeroU32>,
    /// Network delay from the broker to the worker, and back.
    #[serde(default = "near")]
    pub delay: Span,
    /// Whether the broker knows the round trip to it.
    #[serde(default = "yes")]
    pub round_trip_known: bool,
    /// Its weight under weighted policies.
    #[serde(default = "one")]
    pub weight: NonZeroU32,
    /// Content of its pings.
    #[serde(default)]
    pub reports: Reports,
    /// When it acknowledges at QoS 1.
    #[serde(default)]
    pub acknowledges: Acknowledges,
    /// Whether the broker remembers its speed from an earlier connection.
    #[serde(default)]
    pub remembered: bool,
    /// Time of joining, counted from the first message. Without it the worker is there from the start.
    pub joins: Option<Span>,
    /// Time of leaving. The worker finishes its messages.
    pub leaves: Option<Span>,
    /// Time of death. Its messages are lost at QoS 0, and redelivered at QoS 1.
    pub dies: Option<Span>,
    /// Pauses, in which it neither processes nor sends anything.
    #[serde(default)]
    pub pauses: Vec<Pause>,
    /// Changes of its mean service time, for messages taken from then on.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// A time in which a worker processes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// Begin, counted from the first message.
    pub at: Span,
    /// Length of the pause.
    #[serde(rename = "for")]
    pub length: Span,
}

/// A change of the mean service time.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Begin, counted from the first message.
    pub at: Span,
    /// Mean service time from then on.
    pub service: Span,
}

/// Content of a worker's pings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reports {
    /// Queue length, and mean processing time since the previous ping (0 if no message was processed).
    #[default]
    Honest,
    /// No report: plain pings.
    Never,
    /// Always the same values, true or not.
    Lie {
        /// Messages in the queue.
        queue: u64,
        /// Mean processing time.
        processing: Span,
    },
}

/// When a worker acknowledges a message of QoS 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Acknowledges {
    /// After processing it.
    #[default]
    AfterProcessing,
    /// On arrival, the default of many client libraries.
    OnArrival,
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
        let mut workers = self.workers.iter().enumerate();
        let faults = workers.find_map(|(index, kind)| Some((index, kind.fault()?)));
        if let Some((index, (key, message))) = faults {
            return Some(Fault { key, message, worker: Some(index) });
        }
        let too_many = self.worker_count() > WORKERS_MAX;
        if self.workers.is_empty() || too_many { own("workers", "1 to 10000 of them") } else { None }
    }
}

impl WorkerKind {
    /// One worker with this mean service time, and the defaults of a file for everything else.
    pub fn of(service: Span) -> Self {
        Self {
            count: one(),
            service,
            distribution: Distribution::Fixed,
            threads: one(),
            batch: one(),
            concurrency: None,
            delay: near(),
            round_trip_known: true,
            weight: one(),
            reports: Reports::Honest,
            acknowledges: Acknowledges::AfterProcessing,
            remembered: false,
            joins: None,
            leaves: None,
            dies: None,
            pauses: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Key and error of the first value out of range.
    pub fn fault(&self) -> Option<(&'static str, String)> {
        if self.service == Span::ZERO {
            return Some(("service", "has to be more than 0".to_owned()));
        }
        if let Some(fault) = self.distribution.fault() {
            return Some(("distribution", fault));
        }
        if self.batch.get() > 1 && self.threads.get() > 1 {
            return Some(("batch", "needs one thread".to_owned()));
        }
        let end = |pause: &Pause| pause.at.ns() + pause.length.ns();
        if self.pauses.windows(2).any(|pair| end(&pair[0]) > pair[1].at.ns()) {
            return Some(("pauses", "in the order of time, and none within another".to_owned()));
        }
        if self.steps.iter().any(|step| step.service == Span::ZERO) {
            return Some(("steps", "service: has to be more than 0".to_owned()));
        }
        if self.steps.windows(2).any(|pair| pair[0].at >= pair[1].at) {
            return Some(("steps", "in the order of time".to_owned()));
        }
        if self.leaves.is_some() && self.dies.is_some() {
            return Some(("dies", "it leaves or dies, not both".to_owned()));
        }
        let leaves_first = self.leaves.or(self.dies).is_some_and(|leaves| Some(leaves) <= self.joins);
        leaves_first.then(|| ("joins", "it has to join before it leaves".to_owned()))
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

fn yes() -> bool {
    true
}

fn one_second() -> Span {
    Span::from_ns(1_000_000_000)
}

/// Network delay of a worker in the same building.
fn near() -> Span {
    Span::from_ns(200_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "messages = 3\n[arrivals]\nfixed = \"10ms\"\n[[workers]]\nservice = \"25ms\"\n";

    #[test]
    fn absent_keys_have_their_defaults() {
        let scenario = Scenario::parse("least", LEAST).unwrap();
        assert_eq!((scenario.name.as_str(), scenario.qos.as_slice(), scenario.worker_count()), ("least", &[0][..], 1));
        assert_eq!(scenario.pings, Pings::default());
        let worker = &scenario.workers[0];
        assert_eq!((worker.threads.get(), worker.delay, worker.reports), (1, Span::from_ms(0.2), Reports::Honest));
    }

    #[test]
    fn every_key_can_be_parsed() {
        let text = r#"
            messages = 3
            arrivals = { bursts = { messages = 100, every = "2s" } }
            churn = { every = "2s", dies = true }
            pings = { every = "500ms", eager = true }
            [[workers]]
            service = "25ms"
            distribution = { pareto = 1.5 }
            reports = { lie = { queue = 0, processing = "1us" } }
            acknowledges = "on_arrival"
            pauses = [{ at = "1s", for = "2s" }, { at = "3s", for = "1s" }]
            steps = [{ at = "5s", service = "200ms" }]
            joins = "1s"
            dies = "9s"
        "#;
        let scenario = Scenario::parse("all", text).unwrap();
        assert_eq!(scenario.workers[0].distribution, Distribution::Pareto(1.5));
        let lie = Reports::Lie { queue: 0, processing: Span::from_ns(1000) };
        assert_eq!((scenario.workers[0].reports, scenario.workers[0].pauses.len()), (lie, 2));
    }

    #[test]
    fn faults_name_line_and_key() {
        let cases = [
            ("colour = 1\n", "line 1: ", "colour"),
            ("qos = [2]\n", "line 1: ", "qos: is a list of 0 and 1"),
            ("seeds = 0\n", "line 1: ", "seeds"),
            ("idle = \"3 days\"\n", "line 1: ", "idle: \"3 days\" is no time"),
        ];
        for (before, line, rest) in cases {
            let error = Scenario::parse("x", &format!("{before}{LEAST}")).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(rest), "{error}");
        }
        let cases = [
            ("thread = 4\n", "line 6: ", "thread"),
            ("threads = 0\n", "line 6: ", "threads"),
            ("distribution = \"normal\"\n", "line 6: ", "normal"),
            ("distribution = { jitter = 1.5 }\n", "line 6: ", "jitter is a fraction"),
            ("leaves = \"0s\"\njoins = \"1s\"\n", "line 7: ", "joins: it has to"),
        ];
        for (after, line, rest) in cases {
            let error = Scenario::parse("x", &format!("{LEAST}{after}")).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(rest), "{error}");
        }
    }
}
