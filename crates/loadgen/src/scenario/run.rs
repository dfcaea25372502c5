//! One run: three workers and a publisher against a broker, from the first connection to the last message taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenbin_client::{Client, ClientEvent, ClientOptions, Events, LoadReporter, Reconnect};
use tenbin_codec::{Subscription, SubscriptionOptions, TopicFilter, TopicName};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::Plan;
use super::publisher::{Publisher, PublisherRecord};
use super::shared::{Shared, StopOnDrop};
use super::worker::{Arrival, Delivery, Worker};
use crate::child_broker::ChildBroker;
use crate::ledger::LedgerTotals;
use crate::payload::Stamp;
use crate::progress::Progress;
use crate::{Clock, LoadgenError};

/// All that a run left behind.
#[derive(Debug)]
pub(crate) struct RunRecord {
    pub(crate) publisher: PublisherRecord,
    /// For each worker, in the order in which it took them.
    pub(crate) deliveries: Vec<Vec<Delivery>>,
    pub(crate) totals: LedgerTotals,
}

/// Runs `plan` once against the broker at `address`, which is `child` if it was started for the run.
pub(super) async fn run(
    plan: &Plan,
    title: &str,
    address: &str,
    mut child: Option<&mut ChildBroker>,
    progress: &mut Progress,
) -> Result<RunRecord, LoadgenError> {
    let mut cast = match Cast::assemble(plan, address).await {
        Ok(cast) => cast,
        Err(error) => return Err(blame(child.as_deref_mut(), error)),
    };
    tokio::time::sleep(SETTLE).await;
    let shared = Arc::new(Shared::default());
    let threads = cast.start(plan, &shared);
    let running = StopOnDrop(&shared);
    let watched = watch(plan, title, &shared, &threads, child.as_deref_mut(), progress).await;
    drop(running);
    cast.leave().await;
    let joined = threads.join(&shared).await;
    match watched {
        Ok(()) => joined.map_err(|error| blame(child, error)),
        Err(error) => Err(blame(child, error)),
    }
}

/// A lost connection is the broker's end, if it has ended.
fn blame(child: Option<&mut ChildBroker>, error: LoadgenError) -> LoadgenError {
    child.and_then(|child| child.check_alive().err()).unwrap_or(error)
}

/// The connections of a run.
struct Cast {
    clock: Clock,
    topic: TopicName,
    workers: Vec<Member>,
    publisher: Client,
    /// Kept open for as long as the publisher is; nothing of interest comes in.
    _publisher_events: Events,
}

struct Member {
    client: Client,
    /// Moves to the worker's thread.
    queue: Option<Events>,
    reporter: LoadReporter,
}

impl Cast {
    /// Connects the workers, one after the other, then the publisher.
    async fn assemble(plan: &Plan, address: &str) -> Result<Self, LoadgenError> {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        // A broker that is given may serve others, or what an earlier run has left.
        let run = format!("{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        let topic = TopicName::try_from(format!("scenario/{}/{run}", plan.scenario).as_str());
        let topic = topic.expect("scenario and run are plain numbers");
        let filter = TopicFilter::try_from(format!("$share/tenbin/{topic}").as_str()).expect("the topic is plain");

        let mut workers = Vec::new();
        for index in 0..plan.services.len() {
            let name = Plan::subscriber_name(index);
            let reporter = LoadReporter::new(plan.ping_interval).eager(plan.eager_pings);
            let options = ClientOptions::new(address, format!("{name}-{run}"))
                .reconnect(Reconnect::Never)
                .load_reporter(reporter.clone())
                .queue(queue_len(plan));
            let (client, queue) = connect(address, options).await?;
            let subscription = Subscription { filter: filter.clone(), options: SubscriptionOptions::at(plan.qos) };
            subscribe(&client, subscription).await.map_err(|reason| LoadgenError::connect(address, reason))?;
            workers.push(Member { client, queue: Some(queue), reporter });
        }
        let options = ClientOptions::new(address, format!("publisher-{run}")).reconnect(Reconnect::Never);
        let (publisher, events) = connect(address, options).await?;
        Ok(Self { clock: Clock::start(), topic, workers, publisher, _publisher_events: events })
    }

    /// Starts the threads of the workers and of the publisher.
    fn start(&mut self, plan: &Plan, shared: &Arc<Shared>) -> Threads {
        let clock = self.clock;
        let workers = self.workers.iter_mut().zip(plan.services).map(|(member, service)| {
            let mut queue = member.queue.take().expect("a run starts once");
            let worker = Worker { service, clock, reporter: member.reporter.clone() };
            let shared = Arc::clone(shared);
            tokio::task::spawn_blocking(move || worker.work(&shared, || next_arrival(&mut queue, &shared)))
        });
        let publisher = Publisher {
            schedule: plan.schedule,
            topic: self.topic.clone(),
            qos: plan.qos,
            clock,
            client: self.publisher.clone(),
            runtime: Handle::current(),
        };
        let workers = workers.collect();
        let shared = Arc::clone(shared);
        Threads { workers, publisher: tokio::task::spawn_blocking(move || publisher.publish(&shared)) }
    }

    /// Ends the connections, so that the workers' queues end.
    async fn leave(self) {
        for client in self.workers.into_iter().map(|member| member.client).chain([self.publisher]) {
            // A connection that cannot be ended in order ends with its last handle.
            let _ = tokio::time::timeout(LEAVE_LIMIT, client.disconnect()).await;
        }
    }
}

/// The threads of a run.
struct Threads {
    workers: Vec<JoinHandle<Vec<Delivery>>>,
    publisher: JoinHandle<Result<PublisherRecord, LoadgenError>>,
}

impl Threads {
    async fn join(self, shared: &Shared) -> Result<RunRecord, LoadgenError> {
        let publisher = self.publisher.await.expect("the publisher does not panic");
        let mut deliveries = Vec::new();
        for worker in self.workers {
            deliveries.push(worker.await.expect("a worker does not panic"));
        }
        Ok(RunRecord { publisher: publisher?, deliveries, totals: shared.totals() })
    }
}

/// Waits until all messages are taken, or the rest will not come any more.
async fn watch(
    plan: &Plan,
    title: &str,
    shared: &Shared,
    threads: &Threads,
    mut child: Option<&mut ChildBroker>,
    progress: &mut Progress,
) -> Result<(), LoadgenError> {
    let (mut published_at, mut last_taken) = (None, (0, Instant::now()));
    loop {
        tokio::time::sleep(TICK).await;
        if let Some(child) = child.as_deref_mut() {
            child.check_alive()?;
        }
        let totals = shared.totals();
        progress.show(|| {
            format!("{title}: {} of {} published, {} taken", totals.published, plan.schedule.messages, totals.received)
        });
        if let Some(index) = threads.workers.iter().position(JoinHandle::is_finished) {
            let reason = shared.first_end().unwrap_or_default();
            return Err(LoadgenError::lost(&Plan::subscriber_name(index), reason));
        }
        let now = Instant::now();
        if last_taken.0 != totals.received {
            last_taken = (totals.received, now);
        }
        if !threads.publisher.is_finished() {
            continue;
        }
        let published_at = *published_at.get_or_insert(now);
        if totals.received == totals.published {
            tokio::time::sleep(GRACE).await;
            return Ok(());
        }
        let drain_limit = DRAIN_LIMIT.max(3 * plan.schedule.duration());
        if now - published_at > drain_limit || now - last_taken.1.max(published_at) > IDLE_LIMIT {
            return Ok(());
        }
    }
}

/// Waits for the next message of the run; `None` when the connection has ended.
fn next_arrival(queue: &mut Events, shared: &Shared) -> Option<Arrival> {
    loop {
        match queue.blocking_recv()? {
            ClientEvent::Message(message) => match Stamp::decode(&message.payload) {
                Some(stamp) => return Some(Arrival { stamp, received_at: message.received_at }),
                None => shared.receive_foreign(),
            },
            ClientEvent::Disconnected { reason } => shared.connection_ended(reason.to_string()),
            _ => {}
        }
    }
}

async fn connect(address: &str, options: ClientOptions) -> Result<(Client, Events), LoadgenError> {
    match tokio::time::timeout(CONNECT_LIMIT, Client::connect(options)).await {
        Ok(connected) => connected.map_err(|error| LoadgenError::connect(address, error)),
        Err(_) => Err(LoadgenError::connect(address, "no answer within 10 s")),
    }
}

async fn subscribe(client: &Client, subscription: Subscription) -> Result<(), String> {
    let qos = subscription.options.qos;
    let granted = client.subscribe(vec![subscription]).await.map_err(|error| error.to_string())?;
    match granted.first() {
        Some(reason) if reason.byte() == qos.bits() => Ok(()),
        Some(reason) => Err(format!("shared subscription at QoS {qos}: {reason}")),
        None => Err("SUBACK without a Reason Code".to_owned()),
    }
}

/// A worker's queue holds whatever may come: the backlog is what the experiment is about.
fn queue_len(plan: &Plan) -> usize {
    usize::try_from(plan.schedule.messages).unwrap_or(usize::MAX).clamp(1024, 1 << 20)
}

/// Between the last subscription and the first message. Reports are sent from each CONNACK on, and nothing
/// aligns them with the messages.
const SETTLE: Duration = Duration::from_millis(200);

/// How often a run is looked at.
const TICK: Duration = Duration::from_millis(50);

/// How long the workers may take, after the last message was published, to empty their queues: round robin
/// needs about 10 s for the default 15 s. Longer runs have longer queues.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// When no worker has taken anything for so long, the rest is lost. Far above any time of service.
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// A copy that comes so long after the last message is still seen.
const GRACE: Duration = Duration::from_millis(200);

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
