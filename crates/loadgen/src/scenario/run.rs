//! One run against a broker, from the first connection to the last finished message.

use std::time::{Duration, Instant};

use tenbin_codec::QoS;
use tokio::task::JoinHandle;

use super::Plan;
use super::cast::Cast;
use super::publisher::PublisherRecord;
use super::role::{self, Role};
use super::shared::StopOnDrop;
use super::stage::Stage;
use super::worker::WorkerRecord;
use crate::LoadgenError;
use crate::child_broker::ChildBroker;
use crate::ledger::LedgerTotals;
use crate::progress::Progress;

/// All records of a run.
#[derive(Debug)]
pub(crate) struct RunRecord {
    pub(crate) publisher: PublisherRecord,
    /// Due time of the first message, by the run's clock.
    pub(crate) start_ns: u64,
    /// Planned time of publishing.
    pub(crate) duration: Duration,
    pub(crate) qos: QoS,
    /// Seed of the run's random numbers.
    pub(crate) seed: u64,
    /// Each worker's record, in the order of joining.
    pub(crate) workers: Vec<(Role, WorkerRecord)>,
    pub(crate) totals: LedgerTotals,
}

/// Runs `plan` against the broker at `address`.
///
/// `number` is the number of the run, from 1. `child` is the broker if it was started for this run.
pub(super) async fn run(
    plan: &Plan,
    number: u32,
    title: &str,
    address: &str,
    mut child: Option<&mut ChildBroker>,
    progress: &mut Progress,
) -> Result<RunRecord, LoadgenError> {
    let stage = Stage::new(plan, address, number);
    let roles = role::cast(&plan.scenario, stage.schedule.duration(), stage.seed);
    let known = roles.iter().filter_map(Role::as_known_before).collect::<Vec<_>>();
    if let Some(warm_up) = plan.warm_up.filter(|_| !known.is_empty()) {
        let schedule = plan.schedule(plan.messages_in(warm_up)?, stage.seed);
        let title = format!("{title}, warm-up");
        perform(&stage.again(schedule), known, &title, child.as_deref_mut(), progress).await?;
    }
    perform(&stage, roles, title, child, progress).await
}

async fn perform(
    stage: &Stage<'_>,
    roles: Vec<Role>,
    title: &str,
    mut child: Option<&mut ChildBroker>,
    progress: &mut Progress,
) -> Result<RunRecord, LoadgenError> {
    let mut cast = match Cast::assemble(stage, roles).await {
        Ok(cast) => cast,
        Err(error) => return Err(blame(child, error)),
    };
    let running = StopOnDrop(&stage.shared);
    let mut publisher = cast.publish();
    let watched = watch(stage, title, &mut cast, &publisher, child.as_deref_mut(), progress).await;
    drop(running);
    let start_ns = cast.start_ns();
    let workers = cast.end().await;
    let publisher = (&mut publisher).await.expect("the publisher does not panic");
    match watched.and(publisher) {
        Ok(publisher) => {
            let duration = stage.schedule.duration();
            let (qos, seed, totals) = (stage.plan.qos, stage.seed, stage.shared.totals());
            Ok(RunRecord { publisher, start_ns, duration, qos, seed, workers, totals })
        }
        Err(error) => Err(blame(child, error)),
    }
}

/// Replaces the error of a lost connection by the broker's end, if it has ended.
fn blame(child: Option<&mut ChildBroker>, error: LoadgenError) -> LoadgenError {
    child.and_then(|child| child.check_alive().err()).unwrap_or(error)
}

/// Waits until all messages are finished, or the remaining ones can no longer arrive.
async fn watch(
    stage: &Stage<'_>,
    title: &str,
    cast: &mut Cast<'_>,
    publisher: &JoinHandle<Result<PublisherRecord, LoadgenError>>,
    mut child: Option<&mut ChildBroker>,
    progress: &mut Progress,
) -> Result<(), LoadgenError> {
    let drain_limit = DRAIN_LIMIT.max(3 * stage.schedule.duration());
    let idle_limit = IDLE_LIMIT + stage.plan.longest_pause();
    let (mut published_at, mut last_finished) = (None, (0, Instant::now()));
    loop {
        cast.play_for(TICK).await?;
        if let Some(child) = child.as_deref_mut() {
            child.check_alive()?;
        }
        let totals = stage.shared.totals();
        progress.show(|| {
            let (messages, published) = (stage.schedule.messages(), totals.published);
            format!("{title}: {published} of {messages} published, {} finished", totals.received)
        });
        if let Some(role) = cast.lost() {
            return Err(LoadgenError::lost(&role.name, stage.shared.first_end().unwrap_or_default()));
        }
        let now = Instant::now();
        if last_finished.0 != totals.received {
            last_finished = (totals.received, now);
        }
        if !publisher.is_finished() {
            continue;
        }
        let published_at = *published_at.get_or_insert(now);
        if totals.received == totals.published {
            tokio::time::sleep(GRACE).await;
            return Ok(());
        }
        if now - published_at > drain_limit || now - last_finished.1.max(published_at) > idle_limit {
            return Ok(());
        }
    }
}

/// Interval between two checks of a run.
const TICK: Duration = Duration::from_millis(50);

/// Time limit for emptying the queues after the last message was published.
///
/// Round robin needs about 10 s for the default 15 s. Longer runs have longer queues and a longer limit.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// If no worker finishes a message for this time, the rest is lost. It is far above any service time.
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// Time in which late copies are still seen after the last message.
const GRACE: Duration = Duration::from_millis(200);
