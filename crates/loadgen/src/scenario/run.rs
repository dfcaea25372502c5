//! One run against a broker, from the first connection to the last finished message.

use std::slice;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use super::record::RunRecord;
use super::workers;
use super::{PAYLOAD_LEN, Plan};
use crate::LoadgenError;
use crate::progress::Progress;
use crate::run::{
    self, Audience, ConnectionOptions, ExecuteOptions, Execution, Pace, Publishers, Reports, Schedule, Work, WorkerKind,
};
use crate::target::RunningBroker;

/// Runs `plan` against `broker`; `number` is the number of the run, from 1.
pub(super) async fn run(
    plan: &Plan,
    number: u32,
    title: &str,
    broker: &mut RunningBroker,
    progress: &mut Progress,
) -> Result<RunRecord, LoadgenError> {
    // The same for the run with this number under every policy.
    let seed = u64::from(number);
    let (messages, first_tag) = (plan.scenario.messages.get(), next_tag());
    // A given broker may have other clients, or state of an earlier run.
    let label = format!("{}-{first_tag}", std::process::id());
    let workers = workers::of(&plan.scenario, plan.publishing_time(messages, seed), seed);
    if let Some(warm_up) = plan.warm_up.filter(|_| workers.iter().any(workers::is_known_before)) {
        let known = workers.iter().map(workers::as_known_before).collect();
        let load = Load { plan, seed, messages: plan.messages_in(warm_up)?, label: &label, tag: next_tag() };
        load.perform(known, &format!("{title}, warm-up: "), broker, progress).await?;
    }
    let load = Load { plan, seed, messages, label: &label, tag: first_tag };
    let finished = load.perform(workers.clone(), &format!("{title}: "), broker, progress).await?;
    let verdict = finished.outcome.verdict;
    let unknown = verdict.foreign + verdict.wrong;
    Ok(RunRecord::of(plan, seed, workers, finished.arrivals, finished.trace, unknown))
}

/// The load of one run.
struct Load<'a> {
    plan: &'a Plan,
    seed: u64,
    messages: u32,
    /// Part of the topic and of all Client Identifiers.
    label: &'a str,
    tag: u16,
}

impl Load<'_> {
    async fn perform(
        &self,
        workers: Vec<WorkerKind>,
        title: &str,
        broker: &mut RunningBroker,
        progress: &mut Progress,
    ) -> Result<Execution, LoadgenError> {
        let options = ExecuteOptions { title: title.to_owned(), ..ExecuteOptions::default() };
        run::perform(&self.run_plan(workers, broker), slice::from_mut(broker), options, progress).await
    }

    /// One publisher with one topic, and a share group of these workers.
    fn run_plan(&self, workers: Vec<WorkerKind>, broker: &RunningBroker) -> run::Plan {
        let Self { plan, seed, messages, label, tag } = *self;
        let topic = format!("scenario/{label}");
        let publishers = Publishers {
            qos: plan.qos.bits(),
            payload: PAYLOAD_LEN,
            messages: Some(messages.into()),
            pace: Pace::Arrivals { arrivals: plan.scenario.arrivals, seed },
            in_flight: u16::MAX,
            ..Publishers::new(1, topic.clone())
        };
        let eager = plan.scenario.pings.eager;
        let group = Audience {
            share: Some("tenbin".to_owned()),
            qos: plan.qos.bits(),
            ..Audience::new("workers", workers.len() as u32, topic)
        };
        let work = Work {
            seed,
            reports: Some(Reports { carrier: plan.carrier, interval: plan.ping_interval(), eager }),
            connect_within: plan.ping_interval(),
            program: plan.worker_command.clone().unwrap_or_default(),
            ..Work::new(workers)
        };
        let publishing_time = plan.publishing_time(messages, seed);
        run::Plan {
            connection: ConnectionOptions {
                keep_alive: KEEP_ALIVE,
                ..ConnectionOptions::new(format!("scenario-{label}"))
            },
            schedule: Schedule {
                lead: plan.scenario.idle.duration(),
                time_limit: publishing_time + DRAIN_LIMIT.max(3 * publishing_time),
                subscriber_timeout: IDLE_LIMIT + plan.longest_pause(),
                ..Schedule::default()
            },
            records: true,
            ..run::Plan::new(tag, vec![broker.place()], publishers, vec![Audience { work: Some(work), ..group }])
        }
    }
}

/// A number that distinguishes the messages of this run from those of earlier ones.
fn next_tag() -> u16 {
    static TAGS: AtomicU16 = AtomicU16::new(0);
    TAGS.fetch_add(1, Ordering::Relaxed)
}

/// Time limit for emptying the queues after the last message was published.
///
/// Round robin needs about 10 s for the default 15 s. Longer runs have longer queues and a longer limit.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// If no worker finishes a message for this time, the rest is lost. It is far above any service time.
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// Keep Alive of all clients, in seconds.
const KEEP_ALIVE: u16 = 60;
