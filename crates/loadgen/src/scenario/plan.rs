use std::ops::Range;
use std::time::Duration;

use tenbin_codec::QoS;
use tenbin_simulator::scenario::{Acknowledges, Reports, WorkerKind};
use tenbin_simulator::{Arrivals, Policy, Rng, Scenario, Span};

use super::args::{Acks, ScenarioArgs};
use super::shipped;
use crate::LoadgenError;
use crate::run::Carrier;
use crate::values::Reports as ReportsArg;

/// A scenario run: the arguments, with all defaults applied.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The scenario after the arguments were applied.
    pub(crate) scenario: Scenario,
    pub(crate) qos: QoS,
    /// Length of the warm-up run for workers that the broker should remember.
    pub(crate) warm_up: Option<Duration>,
    /// Carrier of load reports; `None` lets the broker choose.
    pub(crate) carrier: Option<Carrier>,
    /// Program and arguments of external workers.
    pub(crate) worker_command: Option<Vec<String>>,
    /// Names of the policies. For a given broker, the policy it already has.
    pub(crate) policies: Vec<String>,
    pub(crate) runs: u32,
    /// Whether to report simulated figures beside the measured ones.
    pub(crate) compare: bool,
}

impl Plan {
    /// Makes a plan from the arguments.
    ///
    /// # Errors
    /// The scenario cannot be read or needs a simulation, or arguments contradict each other.
    pub(crate) fn new(args: &ScenarioArgs) -> Result<Self, LoadgenError> {
        let mut scenario = shipped::find(&args.scenario)?;
        let qos = args.qos.unwrap_or(if scenario.qos.first() == Some(&1) { QoS::AtLeastOnce } else { QoS::AtMostOnce });
        replace(&mut scenario, args)?;
        if let Some(reason) = not_on_sockets(&scenario) {
            return Err(LoadgenError::Arguments(format!("scenario {}: {reason}", scenario.name)));
        }
        let carrier = args.reports.and_then(Carrier::of);
        if carrier == Some(Carrier::Ack) && qos == QoS::AtMostOnce {
            return Err(LoadgenError::Arguments("nothing is acknowledged at QoS 0".to_owned()));
        }
        let is_remembered = scenario.workers.iter().any(|kind| kind.remembered);
        let worker_command = args.worker_command.as_deref().map(|line| worker_command(line, &scenario));
        Ok(Self {
            qos,
            warm_up: is_remembered.then(|| args.warm.unwrap_or(WARM_UP)),
            carrier,
            worker_command: worker_command.transpose()?,
            policies: policies(args)?,
            runs: args.runs,
            compare: args.compare,
            scenario,
        })
    }

    /// Due times of `messages` messages in the run with this seed, in nanoseconds after its start.
    pub(crate) fn due_ns(&self, messages: u32, seed: u64) -> Vec<u64> {
        self.scenario.arrivals.instants(messages, &mut Rng::new(seed))
    }

    /// Time from the first of `messages` messages until one more would be due.
    pub(crate) fn publishing_time(&self, messages: u32, seed: u64) -> Duration {
        let last_ns = self.due_ns(messages, seed).last().copied().unwrap_or(0);
        Duration::from_nanos(last_ns) + interval(self.scenario.arrivals)
    }

    /// Number of messages due within `duration`.
    ///
    /// # Errors
    /// The number is too large to record all messages.
    pub(crate) fn messages_in(&self, duration: Duration) -> Result<u32, LoadgenError> {
        messages_in(duration, self.scenario.arrivals)
    }

    /// Interval between two load reports of a worker.
    pub(crate) fn ping_interval(&self) -> Duration {
        self.scenario.pings.every.duration()
    }

    /// Longest pause of a worker: for that time, missing progress does not mean loss.
    pub(crate) fn longest_pause(&self) -> Duration {
        let pauses = self.scenario.workers.iter().flat_map(|kind| &kind.pauses);
        pauses.map(|pause| pause.length.duration()).max().unwrap_or_default()
    }
}

/// Applies the arguments to the scenario.
fn replace(scenario: &mut Scenario, args: &ScenarioArgs) -> Result<(), LoadgenError> {
    let span = |duration: Duration| Span::from_ns(duration.as_nanos() as u64);
    let published = (args.all && scenario.name == "2").then_some(PUBLISHED_INTERVAL);
    if let Some(interval) = args.interval.or(published).map(span) {
        match &mut scenario.arrivals {
            Arrivals::Fixed(every) | Arrivals::Poisson(every) | Arrivals::Bursts { every, .. } => *every = interval,
        }
    }
    if let Some(duration) = args.duration {
        let messages = messages_in(duration, scenario.arrivals)?;
        scenario.messages = messages.try_into().expect("at least one is due");
    }
    scenario.pings.eager |= args.eager_pings;
    if let Some(interval) = args.ping_interval {
        scenario.pings.every = span(interval);
    }
    for kind in &mut scenario.workers {
        match args.acks {
            Some(Acks::Processed) => kind.acknowledges = Acknowledges::AfterProcessing,
            Some(Acks::Received) => kind.acknowledges = Acknowledges::OnArrival,
            None => {}
        }
        match args.reports {
            Some(ReportsArg::None) => kind.reports = Reports::Never,
            Some(_) => kind.reports = Reports::Honest,
            None => {}
        }
        kind.remembered |= args.warm.is_some();
    }
    Ok(())
}

/// Number of messages due within `duration`, the first at its start; at least one.
fn messages_in(duration: Duration, arrivals: Arrivals) -> Result<u32, LoadgenError> {
    let times = duration.as_nanos().div_ceil(interval(arrivals).as_nanos().max(1));
    let together = if let Arrivals::Bursts { messages, .. } = arrivals { messages.get() } else { 1 };
    let messages = u64::try_from(times).unwrap_or(u64::MAX).max(1).saturating_mul(u64::from(together));
    u32::try_from(messages).ok().filter(|messages| *messages <= MESSAGES_MAX).ok_or_else(|| {
        LoadgenError::Arguments(format!("{messages} messages are too many; at most {MESSAGES_MAX} are recorded"))
    })
}

/// Time from one message or burst to the next; for random arrivals the mean.
fn interval(arrivals: Arrivals) -> Duration {
    match arrivals {
        Arrivals::Fixed(every) | Arrivals::Poisson(every) | Arrivals::Bursts { every, .. } => every.duration(),
    }
}

/// Reason why a scenario can only be simulated, if there is one.
fn not_on_sockets(scenario: &Scenario) -> Option<&'static str> {
    let kinds = &scenario.workers;
    let threads = kinds.iter().map(|kind| u64::from(kind.count.get()) * u64::from(kind.threads.get())).sum::<u64>();
    if kinds.iter().any(|kind| kind.delay > NO_DELAY) {
        Some("there is no delay on the way to a worker of this machine")
    } else if kinds.iter().any(|kind| matches!(kind.reports, Reports::Lie { .. })) {
        Some("no worker lies")
    } else if scenario.publishers.get() > 1 || scenario.topics.get() > 1 {
        Some("there is one publisher with one topic")
    } else if scenario.loud.is_some() || scenario.expiry.is_some() {
        Some("there is no loud publisher, and no message expires")
    } else if scenario.pings.skipped > 0.0 || kinds.iter().any(|kind| !kind.round_trip_known) {
        Some("workers leave out no report, and the broker measures round trips itself")
    } else if kinds.iter().any(|kind| kind.batch.get() > 1) {
        Some("no worker takes messages in batches")
    } else if scenario.poison.is_some()
        || scenario.queue.is_some()
        || kinds.iter().any(|kind| kind.rejects.is_some() || kind.receive_maximum.is_some())
    {
        Some("no worker rejects messages, and the group is no work queue")
    } else if threads > THREADS_MAX {
        Some("at most 200 threads work")
    } else {
        None
    }
}

/// Splits `line` into program and arguments; refuses scenarios that external workers do not support.
fn worker_command(line: &str, scenario: &Scenario) -> Result<Vec<String>, LoadgenError> {
    let is_plain = |kind: &WorkerKind| {
        let stays = (kind.joins, kind.leaves, kind.dies) == (None, None, None);
        let is_steady = kind.pauses.is_empty() && kind.steps.is_empty() && kind.distribution == Default::default();
        stays && is_steady && kind.threads.get() == 1 && !kind.remembered && kind.concurrency.is_none()
    };
    if scenario.churn.is_some() || !scenario.workers.iter().all(is_plain) {
        let text = "--worker-command is for scenarios whose workers stay and always take the same time";
        return Err(LoadgenError::Arguments(text.to_owned()));
    }
    let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    if words.is_empty() { Err(LoadgenError::Arguments("--worker-command is empty".to_owned())) } else { Ok(words) }
}

fn policies(args: &ScenarioArgs) -> Result<Vec<String>, LoadgenError> {
    if args.broker.is_some() && (args.all || args.policies.len() > 1) {
        let text = "each policy needs a separate broker; with --broker, --policy names the policy of this broker";
        return Err(LoadgenError::Arguments(text.to_owned()));
    }
    Ok(match args.policies.as_slice() {
        _ if args.all => ALL_POLICIES.map(str::to_owned).to_vec(),
        [] if args.broker.is_some() => vec![UNNAMED_POLICY.to_owned()],
        [] => vec![Policy::default().name().to_owned()],
        policies => policies.to_vec(),
    })
}

/// Size of a payload, in bytes, as in the published experiments.
pub(crate) const PAYLOAD_LEN: u32 = 100;

/// Sequence numbers of the stable phase of the published tables.
pub(crate) const STABLE_PHASE: Range<u64> = 500..1000;

/// Default warm-up if only the scenario asks for remembered workers: at least two reports.
const WARM_UP: Duration = Duration::from_secs(3);

/// The scenario's default delay, which exceeds the delay between two sockets of one machine.
const NO_DELAY: Span = Span::from_ns(1_000_000);

const THREADS_MAX: u64 = 200;

/// Every message is recorded, at about a hundred bytes.
const MESSAGES_MAX: u32 = 10_000_000;

/// Policies of `--all`: the published ones, baselines first, and the default.
const ALL_POLICIES: [&str; 4] = ["random", "round_robin", "thesis_score", "adaptive"];

/// Interval of scenario 2 with `--all`. The thesis gives 10 ms, but its mean with round robin is that of this one.
const PUBLISHED_INTERVAL: Duration = Duration::from_micros(10_700);

/// Label of a given broker if no policy name is given.
const UNNAMED_POLICY: &str = "broker";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::parsed;

    fn plan(line: &str) -> Result<Plan, LoadgenError> {
        Plan::new(&parsed(line).expect("arguments are well-formed"))
    }

    #[test]
    fn the_defaults_are_the_published_experiment() {
        let plan = plan("scenario 2").unwrap();
        let kinds = plan.scenario.workers.iter().map(|kind| (kind.count.get(), kind.service.ms()));
        assert!(kinds.eq([(2, 25.0), (1, 50.0)]));
        assert_eq!((plan.scenario.messages.get(), plan.due_ns(2, 0)), (1500, vec![0, 10_000_000]));
        assert_eq!((plan.qos, plan.ping_interval(), plan.runs), (QoS::AtMostOnce, Duration::from_secs(1), 1));
        assert!(!plan.scenario.pings.eager);
        assert!(plan.warm_up.is_none() && plan.worker_command.is_none());
        assert_eq!(plan.policies, [Policy::default().name()]);
    }

    #[test]
    fn all_policies_share_the_published_interval() {
        let arrivals = |line: &str| plan(line).unwrap().scenario.arrivals.to_string();
        assert_eq!(arrivals("scenario 2 --all"), "every 10.7ms");
        assert_eq!(arrivals("scenario 2 --all --interval 10ms"), "every 10ms");
        assert_eq!(arrivals("scenario 1 --all"), "every 10ms");
    }

    #[test]
    fn a_duration_replaces_the_number_of_messages() {
        let messages = |rest: &str| plan(&format!("scenario 1 {rest}")).unwrap().scenario.messages.get();
        assert_eq!(messages("--interval 10.7ms"), 1500);
        assert_eq!(messages("--interval 10.7ms --duration 15s"), 1402);
        assert!(plan("scenario 1 --interval 1us --duration 1m").is_err());
        let plan = plan("scenario 1 --interval 10.7ms").unwrap();
        assert_eq!(plan.publishing_time(1500, 0), Duration::from_millis(16_050));
    }

    #[test]
    fn a_duration_has_its_messages_and_at_least_one() {
        let ms = Duration::from_millis;
        let in_ms = |duration, arrivals| messages_in(ms(duration), arrivals).unwrap();
        let every = Arrivals::Fixed(Span::from_ms(10.0));
        assert_eq!([1, 10, 11, 15_000].map(|duration| in_ms(duration, every)), [1, 1, 2, 1500]);
        let bursts = Arrivals::Bursts { messages: 3.try_into().unwrap(), every: Span::from_ms(2.0) };
        assert_eq!([1, 5].map(|duration| in_ms(duration, bursts)), [3, 9]);
    }

    #[test]
    fn random_messages_are_the_same_for_the_same_seed() {
        let mut plan = plan("scenario 1").unwrap();
        plan.scenario.arrivals = Arrivals::Poisson(Span::from_ms(10.0));
        assert_eq!(plan.due_ns(1000, 1), plan.due_ns(1000, 1));
        assert_ne!(plan.due_ns(1000, 1), plan.due_ns(1000, 2));
    }

    #[test]
    fn a_given_broker_has_one_policy() {
        assert!(plan("scenario 2 --all --broker localhost:1883").is_err());
        assert!(plan("scenario 2 --policy a,b --broker localhost:1883").is_err());
        assert_eq!(plan("scenario 2 --broker localhost:1883").unwrap().policies, ["broker"]);
        assert_eq!(plan("scenario 2 --broker localhost:1883 --policy x").unwrap().policies, ["x"]);
        assert_eq!(plan("scenario 2 --all").unwrap().policies, ["random", "round_robin", "thesis_score", "adaptive"]);
        assert_eq!(plan("scenario 2 --policy b,a").unwrap().policies, ["b", "a"]);
    }

    #[test]
    fn arguments_replace_what_the_scenario_says_of_its_workers() {
        let line = "scenario 2 --qos 1 --acks received --reports none --ping-interval 300ms --eager-pings --warm";
        let plan = plan(line).unwrap();
        assert_eq!((plan.qos, plan.ping_interval()), (QoS::AtLeastOnce, Duration::from_millis(300)));
        assert!(plan.scenario.pings.eager);
        assert_eq!(plan.warm_up, Some(Duration::from_secs(3)));
        assert_eq!(plan.messages_in(Duration::from_secs(3)).unwrap(), 300);
        for kind in &plan.scenario.workers {
            assert_eq!((kind.acknowledges, kind.reports), (Acknowledges::OnArrival, Reports::Never));
            assert!(kind.remembered);
        }
    }

    #[test]
    fn broker_chooses_report_carrier_unless_given() {
        for (argument, carrier) in [
            ("", None),
            (" --reports none", None),
            (" --reports pingreq", Some(Carrier::PingReq)),
            (" --reports ack", Some(Carrier::Ack)),
            (" --reports publish", Some(Carrier::Publish)),
        ] {
            assert_eq!(plan(&format!("scenario 2 --qos 1{argument}")).unwrap().carrier, carrier, "{argument}");
        }
        assert!(plan("scenario 2 --qos 0 --reports ack").is_err());
    }

    #[test]
    fn the_scenarios_that_are_shipped_can_be_run() {
        for name in ["1", "2", "step", "pause", "churn", "burst", "scenario_2_10.0ms_remembered"] {
            let plan = plan(&format!("scenario {name}")).unwrap();
            assert_eq!(plan.scenario.name, name);
        }
        assert!(plan("scenario scenario_2_10.0ms_remembered").unwrap().warm_up.is_some());
        assert!(plan("scenario nothing").is_err());
        assert!(plan("scenario nothing.toml").is_err());
    }

    #[test]
    fn simulation_only_scenarios_are_refused() {
        let text = "messages = 1\narrivals = { fixed = \"1ms\" }\n[[workers]]\nservice = \"1ms\"\n";
        let scenario = |rest: &str| Scenario::parse("test", &format!("{text}{rest}")).unwrap();
        assert_eq!(not_on_sockets(&scenario("")), None);
        let lie = "reports = { lie = { queue = 0, processing = \"1us\" } }";
        for rest in
            ["delay = \"2ms\"", "threads = 201", "batch = 2", "round_trip_known = false", "rejects = \"1ms\"", lie]
        {
            assert!(not_on_sockets(&scenario(rest)).is_some(), "{rest}");
        }
    }

    #[test]
    fn external_workers_need_a_plain_scenario() {
        let worker_command = Some("python3 paho.py".to_owned());
        let plan = Plan::new(&ScenarioArgs { worker_command, ..parsed("scenario 2").unwrap() }).unwrap();
        assert_eq!(plan.worker_command, Some(vec!["python3".to_owned(), "paho.py".to_owned()]));
        for name in ["step", "pause", "churn"] {
            assert!(self::plan(&format!("scenario {name} --worker-command x")).is_err(), "{name}");
        }
    }
}
