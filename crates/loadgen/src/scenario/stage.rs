use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenbin_codec::{TopicFilter, TopicName};

use super::role::Role;
use super::shared::Shared;
use super::{Plan, Schedule};
use crate::Clock;

/// Common settings of all participants of a run.
pub(super) struct Stage<'a> {
    pub(super) plan: &'a Plan,
    pub(super) schedule: Schedule,
    /// Broker address, HOST:PORT.
    pub(super) address: &'a str,
    pub(super) clock: Clock,
    pub(super) shared: Arc<Shared>,
    /// Number of the run in this process, which every message carries.
    pub(super) run: u64,
    pub(super) topic: TopicName,
    /// The share group's filter.
    pub(super) filter: TopicFilter,
    /// Seed of random numbers; the same for the run with this number under every policy.
    pub(super) seed: u64,
    label: Arc<str>,
}

impl<'a> Stage<'a> {
    /// Settings of run `number` of a policy, from 1.
    pub(super) fn new(plan: &'a Plan, address: &'a str, number: u32) -> Self {
        let run = next_run();
        // A given broker may have other clients, or state of an earlier run.
        let label: Arc<str> = format!("{}-{run}", std::process::id()).into();
        let topic = TopicName::try_from(format!("scenario/{label}").as_str()).expect("digits are plain");
        let filter = TopicFilter::try_from(format!("$share/tenbin/{topic}").as_str()).expect("the topic is plain");
        let (clock, shared) = (Clock::start(), Arc::default());
        let seed = u64::from(number);
        let schedule = plan.schedule(plan.scenario.messages.get(), seed);
        Self { plan, schedule, address, clock, shared, run, topic, filter, seed, label }
    }

    /// Settings of a further run of the same workers in the same group, with its own messages.
    pub(super) fn again(&self, schedule: Schedule) -> Self {
        let (topic, filter, label) = (self.topic.clone(), self.filter.clone(), Arc::clone(&self.label));
        Self { schedule, shared: Arc::default(), run: next_run(), topic, filter, label, ..*self }
    }

    pub(super) fn client_id(&self, role: &Role) -> String {
        format!("{}-{}", role.name, self.label)
    }

    pub(super) fn publisher_id(&self) -> String {
        format!("publisher-{}", self.label)
    }
}

fn next_run() -> u64 {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    RUNS.fetch_add(1, Ordering::Relaxed)
}
