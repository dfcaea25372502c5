//! A worker with its own client: it joins the group, works, pauses, leaves or dies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenbin_client::{AcknowledgeMode, Client, ClientEvent, ClientOptions, Events, LoadReport, LoadReporter, Reconnect};
use tenbin_codec::{Subscription, SubscriptionOptions, TopicFilter};
use tenbin_simulator::scenario::{Acknowledges, Reports};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::network::Network;
use super::role::{Exit, Role};
use super::shared::Shared;
use super::stage::Stage;
use super::timeline::{Pace, Timeline};
use super::worker::{Arrival, Worker, WorkerRecord};
use crate::payload::Stamp;
use crate::{Clock, LoadgenError};

/// A connected and subscribed worker.
pub(super) struct Member {
    client: Client,
    network: Network,
    /// Source of load reports, if the worker sends them.
    reporter: LoadReporter,
    /// Taken by the threads when work begins.
    queue: Option<Queue>,
    threads: Vec<JoinHandle<WorkerRecord>>,
    /// Set when no new messages will arrive.
    leaving: watch::Sender<bool>,
}

impl Member {
    /// Connects and subscribes.
    pub(super) async fn join(stage: &Stage<'_>, role: &Role) -> Result<Self, LoadgenError> {
        let network = Network::start()?;
        let reporter =
            LoadReporter::new(stage.plan.ping_interval()).eager(stage.plan.scenario.pings.eager).keep(REPORTS_MAX);
        let acknowledges = stage.plan.qos.is_acknowledged() && role.kind.acknowledges == Acknowledges::AfterProcessing;
        let mode = if acknowledges { AcknowledgeMode::Manual } else { AcknowledgeMode::OnReceipt };
        let mut options = ClientOptions::new(stage.address, stage.client_id(role))
            .reconnect(Reconnect::Never)
            .acknowledge(mode)
            .queue(stage.plan.queue_len());
        if role.kind.reports == Reports::Honest {
            options = options.load_reporter(reporter.clone());
        }
        if let Some(carrier) = stage.plan.carrier {
            options = options.report_carrier(carrier);
        }
        let (client, events) = network.run(connect(stage.address.to_owned(), options)).await?;
        let subscription =
            Subscription { filter: stage.filter.clone(), options: SubscriptionOptions::at(stage.plan.qos) };
        subscribe(&client, subscription).await.map_err(|reason| LoadgenError::connect(stage.address, reason))?;

        let (leaving, left) = watch::channel(false);
        let queue = Queue { events, left, runtime: Handle::current(), acknowledges };
        Ok(Self { client, network, reporter, queue: Some(queue), threads: Vec::new(), leaving })
    }

    /// Starts to take messages from the queue; the first message is due at `start_ns` of the run's clock.
    pub(super) fn work(&mut self, stage: &Stage<'_>, role: &Role, start_ns: u64) {
        let queue = Arc::new(Mutex::new(self.queue.take().expect("it begins once")));
        let dies_ns = match role.exit {
            Some(Exit::Dies(at)) => start_ns + at.ns(),
            _ => u64::MAX,
        };
        let timeline = Timeline::new(Pace::of(&role.kind, start_ns, stage.seed));
        let threads = (0..role.kind.threads.get()).map(|_| {
            let worker =
                Worker { timeline: timeline.clone(), clock: stage.clock, reporter: self.reporter.clone(), dies_ns };
            let (queue, shared, client) = (Arc::clone(&queue), Arc::clone(&stage.shared), self.client.clone());
            let run = stage.run;
            tokio::task::spawn_blocking(move || {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next(run, &shared);
                worker.work(&shared, next, |message| client.acknowledge(message))
            })
        });
        self.threads = threads.collect();
    }

    /// Stops reading and sending until `until_ns`; the threads know the pause from their timelines.
    pub(super) fn stand_still(&self, stage: &Stage<'_>, until_ns: u64) {
        self.network.stand_still(stage.clock.instant(until_ns));
    }

    /// Whether the worker ended unexpectedly, as after a lost connection.
    pub(super) fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Unsubscribes, finishes its queued messages and disconnects.
    pub(super) async fn leave(self, filter: TopicFilter, clock: Clock) -> WorkerRecord {
        // Fails without a connection; the worker still finishes its queued messages.
        let _ = self.client.unsubscribe(vec![filter]).await;
        self.leaving.send_replace(true);
        let record = join(self.threads, &self.reporter, clock).await;
        disconnect(self.client).await;
        record
    }

    /// Ends at once, without DISCONNECT.
    pub(super) async fn die(self, clock: Clock) -> WorkerRecord {
        drop(self.network);
        drop(self.client);
        join(self.threads, &self.reporter, clock).await
    }

    /// Disconnects at the end of the run.
    pub(super) async fn end(self, clock: Clock) -> WorkerRecord {
        disconnect(self.client).await;
        join(self.threads, &self.reporter, clock).await
    }
}

/// Queue of arrived messages, shared by all threads of a worker.
struct Queue {
    events: Events,
    left: watch::Receiver<bool>,
    runtime: Handle,
    /// Whether the worker acknowledges messages after processing.
    acknowledges: bool,
}

impl Queue {
    /// Waits for the next message of run `run`; `None` when no more will arrive.
    fn next(&mut self, run: u64, shared: &Shared) -> Option<Arrival> {
        loop {
            match self.next_event()? {
                ClientEvent::Message(message) => match Stamp::decode(&message.payload) {
                    Some(stamp) if stamp.run == run => {
                        let received_at = message.received_at;
                        let to_acknowledge = self.acknowledges.then_some(message);
                        return Some(Arrival { stamp, received_at, to_acknowledge });
                    }
                    _ => shared.receive_foreign(),
                },
                ClientEvent::Disconnected { reason } => shared.connection_ended(reason.to_string()),
                _ => {}
            }
        }
    }

    fn next_event(&mut self) -> Option<ClientEvent> {
        let (events, left) = (&mut self.events, &mut self.left);
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                event = events.recv() => event,
                // All messages before UNSUBACK are already in the events.
                _ = left.wait_for(|left| *left) => None,
            }
        })
    }
}

pub(super) async fn connect(address: String, options: ClientOptions) -> Result<(Client, Events), LoadgenError> {
    match tokio::time::timeout(CONNECT_LIMIT, Client::connect(options)).await {
        Ok(connected) => connected.map_err(|error| LoadgenError::connect(&address, error)),
        Err(_) => Err(LoadgenError::connect(&address, "no answer within 10 s")),
    }
}

/// Disconnects. If that fails, the connection ends with its last handle.
pub(super) async fn disconnect(client: Client) {
    let _ = tokio::time::timeout(LEAVE_LIMIT, client.disconnect()).await;
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

/// Merges the records of a worker's threads and adds its reports.
async fn join(threads: Vec<JoinHandle<WorkerRecord>>, reporter: &LoadReporter, clock: Clock) -> WorkerRecord {
    let mut record = WorkerRecord::default();
    for thread in threads {
        record.add(thread.await.expect("a worker does not panic"));
    }
    let reported = |(at, report): (Instant, LoadReport)| (clock.at_ns(at), report.processing_time);
    record.reports = reporter.kept().into_iter().map(reported).collect();
    record
}

/// One report a second for a day.
const REPORTS_MAX: usize = 86_400;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
