//! A simulated worker: a client of the library, and a queue that is processed in virtual time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tenbin_client::{
    AcknowledgeMode, ClientEvent, ClientOptions, DisconnectReason, Events, LoadReporter, Message, Reconnect, Transport,
};
use tenbin_codec::{QoS, TopicFilter};
use tenbin_simulator::Span;
use tenbin_simulator::scenario::{Acknowledges, Reports, WorkerKind};
use tokio::task::JoinHandle;

use super::alarm::Alarm;
use super::control::Control;
use super::driver_thread::DriverThread;
use super::handshake::{Client, check_granted, subscription, will_payload};
use super::network::Network;
use super::tls::Tls;
use super::transport::Transport as WireStream;
use super::work_queue::{QueueStep, WorkQueue};
use crate::LoadgenError;
use crate::run::record::WorkRecord;
use crate::run::timeline::{Speed, Timeline};
use crate::run::{Came, CutWhose, OnLost, Plan, Stamp, Work};

/// A connected and subscribed worker.
///
/// It sends load reports as every client of the library does. It records when messages arrive, and when it takes and
/// finishes each of them.
pub(super) struct Worker {
    driver: Rc<DriverThread>,
    control: Rc<Control>,
    /// Its number in the layout.
    receiver: u32,
    /// Whether it is a member of a share group.
    is_shared: bool,
    kind: WorkerKind,
    /// Seed of its random service times.
    seed: u64,
    client: Client,
    filter: TopicFilter,
    /// The connection of `client`.
    connected: tenbin_client::Client,
    events: Events,
    /// `None` for a worker without load reports.
    reporter: Option<LoadReporter>,
    /// Its network thread, for a worker that pauses or dies.
    network: Option<Network>,
    /// Payload of this run's Wills, if it has any.
    will: Option<Vec<u8>>,
    is_away: bool,
}

/// A message in a worker's queue.
struct Job {
    /// Whether it is the first copy of a message of this run.
    is_first: bool,
    /// Whether the window waits for it.
    is_awaited: bool,
    /// Stream and sequence, which seed the service time; the due time of a message of this run; the time of arrival.
    number: u64,
    due_ns: Option<u64>,
    received_ns: u64,
    /// The message to acknowledge when it is finished; `None` at QoS 0.
    message: Option<Message>,
}

/// How a worker's time in the run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    /// It disconnects.
    Disconnects,
    /// Its connection ends without DISCONNECT.
    Dies,
}

/// Messages before a worker's UNSUBACK, and after it.
#[derive(Debug)]
enum Membership {
    Subscribed,
    Unsubscribing(JoinHandle<()>),
    Left,
}

impl Worker {
    /// Connects receiver `number` during the run, at its time of joining, and works.
    pub(super) async fn join(driver: Rc<DriverThread>, number: u32) {
        let at_ns = driver.start_ns().saturating_add(kind_of(&driver, number).1.joins.map_or(0, Span::ns));
        tokio::select! {
            () = driver.is_over() => return,
            () = tokio::time::sleep_until(driver.common.clock.instant(at_ns).into()) => {}
        }
        match Self::open(Rc::clone(&driver), number).await {
            Ok(worker) => worker.run().await,
            Err(error) => driver.shared().fail(error),
        }
    }

    /// Connects and subscribes receiver `number` of the layout.
    ///
    /// # Errors
    /// The broker does not accept the connection or the subscription; the error names the client.
    pub(super) async fn open(driver: Rc<DriverThread>, number: u32) -> Result<Self, LoadgenError> {
        let plan = driver.plan();
        let receiver = &driver.layout().receivers()[number as usize];
        let audience = &plan.audiences[receiver.audience];
        let (work, kind) = kind_of(&driver, number);
        let client = driver.client(receiver.client_id.clone(), receiver.broker, receiver.member, audience.spread);
        let connector = &driver.common.connector;
        if connector.keeps_sessions() && !connector.version().is_v5() {
            // A first connection with Clean Session would also end the session to be kept.
            connector.forget(&client).await?;
        }

        let qos = QoS::from_bits(audience.qos).unwrap_or_default();
        let is_manual = qos.is_acknowledged() && kind.acknowledges == Acknowledges::AfterProcessing;
        let mode = if is_manual { AcknowledgeMode::Manual } else { AcknowledgeMode::OnReceipt };
        let mut options = options(&driver, &client).acknowledge(mode);
        let mut reporter = None;
        if let Some(reports) = work.reports.filter(|_| kind.reports == Reports::Honest) {
            let kept = if plan.records { REPORTS_MAX } else { 0 };
            let reporter = reporter.insert(LoadReporter::new(reports.interval).eager(reports.eager).keep(kept));
            options = options.load_reporter(reporter.clone());
            if let Some(carrier) = reports.carrier {
                options = options.report_carrier(carrier.into());
            }
        }

        if let Some(messages) = kind.concurrency.and_then(|messages| messages.try_into().ok()) {
            options = options.concurrency(messages);
        }

        let network = (!kind.pauses.is_empty() || kind.dies.is_some()).then(Network::start).transpose()?;
        let begun = Instant::now();
        let connecting = tenbin_client::Client::connect(options);
        let connected = match &network {
            Some(network) => network.run(connecting).await,
            None => connecting.await,
        };
        let refused = |reason: &dyn std::fmt::Display| {
            LoadgenError::connect(&client.door().place, format_args!("{}: {reason}", client.id))
        };
        let (connected, events) = connected.map_err(|error| {
            driver.recorder().refused(driver.now_ns());
            refused(error.kind())
        })?;
        driver.recorder().connected(begun.elapsed(), driver.now_ns());
        let subscription = subscription(&receiver.filter, qos)?;
        let filter = subscription.filter.clone();
        let granted = connected.subscribe(vec![subscription.clone()]).await.map_err(|error| refused(error.kind()))?;
        check_granted(&subscription, &granted).map_err(|reason| refused(&reason))?;

        let (control, _) = driver.enter(CutWhose::Subscribers, number);
        let will = plan.connection.will.is_some().then(|| will_payload(plan.tag));
        let is_shared = audience.share.is_some();
        Ok(Self {
            control,
            receiver: number,
            is_shared,
            kind: kind.clone(),
            seed: work.seed,
            client,
            filter,
            connected,
            events,
            reporter,
            network,
            will,
            is_away: false,
            driver,
        })
    }

    /// Works until the end of the run, or until it leaves or dies.
    pub(super) async fn run(mut self) {
        let exit = self.work().await.unwrap_or_else(|error| {
            self.driver.shared().fail(error);
            Exit::Disconnects
        });
        self.record_reports();
        // Ends the connection of a dead worker. The thread of the others ends after DISCONNECT.
        let network = self.network.take().filter(|_| exit != Exit::Dies);
        if exit == Exit::Disconnects {
            // Fails if the client is away, which has no connection to end.
            let _ = tokio::time::timeout(LEAVE_LIMIT, self.connected.disconnect()).await;
        }
        drop(network);
        self.driver.retire(&self.client, None).await;
    }

    async fn work(&mut self) -> Result<Exit, LoadgenError> {
        let (driver, control, clock) = (Rc::clone(&self.driver), Rc::clone(&self.control), self.driver.common.clock);
        let start_ns = driver.start_ns();
        let at_ns = |span: Span| start_ns.saturating_add(span.ns());
        let mut is_over = pin!(driver.is_over());
        let mut alarm = Alarm::new().map_err(LoadgenError::Runtime)?;
        let speed = Speed::of(&self.kind, start_ns, self.seed);
        let mut queue = WorkQueue::new(Timeline::parallel(speed, self.kind.threads.get()));
        let pauses = self.kind.pauses.iter().filter(|pause| Some(pause.at) >= self.kind.joins);
        let mut pauses: VecDeque<_> =
            pauses.map(|pause| (at_ns(pause.at), at_ns(pause.at).saturating_add(pause.length.ns()))).collect();
        let (mut leaves_ns, dies_ns) = (self.kind.leaves.map(at_ns), self.kind.dies.map_or(u64::MAX, at_ns));
        let mut membership = Membership::Subscribed;
        loop {
            let pause_ns = pauses.front().map(|(from_ns, _)| *from_ns);
            let next_ns = [queue.next_ns(), pause_ns, leaves_ns, Some(dies_ns)].into_iter().flatten().min();
            let deadline = next_ns.filter(|ns| *ns < u64::MAX).map(|ns| clock.instant(ns));
            let may_read = queue.len() < QUEUE_MAX && !matches!(membership, Membership::Left);
            tokio::select! {
                biased;
                () = &mut is_over => return Ok(Exit::Disconnects),
                away = wait_for_cut(&control) => {
                    // A client that has ended reports it in its events.
                    let _ = self.connected.cut(away).await;
                }
                event = self.events.recv(), if may_read => {
                    self.take(&mut queue, event.ok_or_else(|| self.has_ended())?);
                    self.take_queued(&mut queue, EVENTS_AT_ONCE);
                }
                () = membership.is_left() => {
                    // All messages before UNSUBACK are in the events by now.
                    self.take_queued(&mut queue, usize::MAX);
                    membership = Membership::Left;
                }
                rung = alarm.at(deadline) => rung.map_err(LoadgenError::Runtime)?,
            }
            let now_ns = driver.now_ns().min(dies_ns);
            self.catch_up(&mut queue, now_ns);
            if now_ns == dies_ns {
                driver.counters().queued.sub(queue.unfinished() as u64);
                return Ok(Exit::Dies);
            }
            if let Some((_, until_ns)) = pauses.pop_front_if(|(from_ns, _)| *from_ns <= now_ns)
                && let Some(network) = &self.network
            {
                network.stand_still(clock.instant(until_ns));
            }
            if leaves_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
                membership = self.unsubscribe();
            }
            if matches!(membership, Membership::Left) && queue.len() == 0 {
                return Ok(Exit::Disconnects);
            }
        }
    }

    fn unsubscribe(&self) -> Membership {
        let (client, filter) = (self.connected.clone(), self.filter.clone());
        Membership::Unsubscribing(tokio::task::spawn_local(async move {
            // Fails without a connection; the worker still finishes its queued messages.
            let _ = client.unsubscribe(vec![filter]).await;
        }))
    }

    /// Records the load reports that were sent.
    fn record_reports(&self) {
        let Some(reporter) = &self.reporter else { return };
        for (at, report) in reporter.kept() {
            let at_ns = self.driver.common.clock.at_ns(at);
            self.driver.recorder().reported(self.receiver, at_ns, report.processing_time);
        }
    }

    /// Takes queued events, `most` at most.
    fn take_queued(&mut self, queue: &mut WorkQueue<Job>, most: usize) {
        for _ in 0..most {
            let Ok(event) = self.events.try_recv() else { break };
            self.take(queue, event);
        }
    }

    fn has_ended(&self) -> LoadgenError {
        LoadgenError::lost(&self.client.id, "another client with the same id has taken its session over")
    }

    fn take(&mut self, queue: &mut WorkQueue<Job>, event: ClientEvent) {
        match event {
            // Another client counts it.
            ClientEvent::Message(message) if self.will.as_deref() == Some(&message.payload[..]) => {
                self.connected.acknowledge(&message);
            }
            ClientEvent::Message(message) => {
                let mut recorder = self.driver.recorder();
                let received_ns = self.driver.common.clock.at_ns(message.received_at);
                let came = recorder.arrived(self.receiver, &message.payload, message.dup, received_ns);
                self.count(came, message.dup);
                let (number, due_ns) = read(self.driver.plan(), &message.payload);
                let since_ns = self.driver.shared().window.as_ref().map_or(0, |window| window.since_ns());
                let is_late = since_ns > 0 && due_ns.is_some_and(|due_ns| due_ns <= since_ns);
                let is_first = came == Came::First;
                let is_awaited = is_first && !is_late;
                let message = message.qos.is_acknowledged().then_some(message);
                let due_ns = due_ns.filter(|_| came != Came::NotOurs);
                queue.arrive(
                    Job { is_first, is_awaited, number, due_ns, received_ns, message },
                    number,
                    due_ns,
                    received_ns,
                );
                self.driver.counters().queued.add(1);
            }
            ClientEvent::Disconnected { reason } => self.disconnected(&reason),
            ClientEvent::Connected { session_present } => self.reconnected(session_present),
            ClientEvent::SubscriptionLost { reason, .. } => {
                self.driver.shared().fail(LoadgenError::lost(&self.client.id, format_args!("subscription: {reason}")));
            }
            _ => {}
        }
    }

    /// Handles the end of the connection; the client reconnects by itself.
    fn disconnected(&mut self, reason: &DisconnectReason) {
        let driver = &self.driver;
        match reason {
            DisconnectReason::Cut => driver.recorder().cut(),
            reason => {
                driver.recorder().lost(driver.now_ns());
                if !driver.plan().reconnects(CutWhose::Subscribers) {
                    driver.shared().fail(LoadgenError::lost(&self.client.id, reason));
                }
            }
        }
        driver.counters().connecting.add(1);
        self.is_away = true;
    }

    fn reconnected(&mut self, session_present: bool) {
        // The event also reports the first connection, which does not count here.
        if std::mem::take(&mut self.is_away) {
            self.driver.counters().connecting.sub(1);
            self.driver.recorder().reconnected(session_present, self.driver.now_ns());
        }
    }

    /// Counts copies and doubtful deliveries on arrival; `received` counts only finished messages.
    fn count(&self, came: Came, dup: bool) {
        let counters = self.driver.counters();
        counters.copies.add(u64::from(came == Came::Again));
        let is_again = came == Came::Again || (came == Came::First && dup);
        counters.doubtful.add(u64::from(self.is_shared && is_again));
    }

    fn catch_up(&self, queue: &mut WorkQueue<Job>, now_ns: u64) {
        let driver = &self.driver;
        let mut recorder = driver.recorder();
        let (mut finished, mut first, mut awaited) = (0, 0, 0);
        queue.catch_up(now_ns, |step| match step {
            QueueStep::Taken { due_ns, taken_ns } => {
                self.reporter.as_ref().inspect(|reporter| reporter.started());
                if let Some(due_ns) = due_ns {
                    recorder.taken(self.receiver, due_ns, taken_ns);
                }
            }
            QueueStep::Finished { took_ns, finished_ns } => {
                let took = Duration::from_nanos(took_ns);
                self.reporter.as_ref().inspect(|reporter| reporter.finish_after(took));
                recorder.processed(self.receiver, took, finished_ns);
                finished += 1;
            }
            QueueStep::Left { what: job, slot, observed_ns } => {
                if let Some(created_ns) = job.due_ns {
                    recorder.worked(WorkRecord {
                        receiver: self.receiver,
                        sequence: job.number as u32,
                        created_ns,
                        received_ns: job.received_ns,
                        taken_ns: slot.taken_ns,
                        observed_ns,
                        finished_ns: slot.finished_ns,
                    });
                }
                job.message.as_ref().inspect(|message| self.connected.acknowledge(message));
                first += u64::from(job.is_first);
                awaited += u64::from(job.is_awaited);
            }
        });
        // Finished messages count as received; the others are still under way.
        driver.counters().received.add(first);
        driver.counters().queued.sub(finished);
        if let Some(window) = driver.shared().window.as_ref().filter(|_| awaited > 0) {
            window.receive(awaited);
        }
    }
}

impl Membership {
    /// Waits for UNSUBACK; for ever if none is awaited. Cancel safe.
    async fn is_left(&mut self) {
        match self {
            Self::Unsubscribing(unsubscribing) => unsubscribing.await.expect("unsubscribing does not panic"),
            Self::Subscribed | Self::Left => std::future::pending().await,
        }
    }
}

/// Work of the audience of receiver `number`, and the receiver's kind.
pub(super) fn kind_of(driver: &DriverThread, number: u32) -> (&Work, &WorkerKind) {
    let receiver = &driver.layout().receivers()[number as usize];
    let work = driver.plan().audiences[receiver.audience].work.as_ref();
    let work = work.expect("a receiver without work is no worker");
    (work, work.worker(receiver.member))
}

/// Waits for a requested cut; returns how long to stay away. Cancel safe.
async fn wait_for_cut(control: &Control) -> Duration {
    poll_fn(|cx| {
        control.follow(cx);
        control.take_cut().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Returns the message's stream and sequence, and its due time if it is a message of this run.
fn read(plan: &Plan, payload: &[u8]) -> (u64, Option<u64>) {
    match Stamp::decode(payload) {
        Some(stamp) if stamp.tag == plan.tag => {
            (u64::from(stamp.stream) << 32 | u64::from(stamp.sequence), Some(stamp.due_ns))
        }
        // Payloads too small for a stamp carry only the time.
        None if (plan.publishers.payload as usize) < Stamp::LEN => {
            let due_ns = Stamp::decode_due_ns(payload);
            (due_ns.unwrap_or_default(), due_ns)
        }
        _ => (0, None),
    }
}

/// Options of the library's client: the plan's connection options and one address of the broker.
fn options(driver: &DriverThread, client: &Client) -> ClientOptions {
    let (plan, version) = (driver.plan(), driver.common.connector.version());
    let connection = &plan.connection;
    let place = match &connection.unix {
        Some(path) => format!("unix:{path}"),
        None => client.door().addresses.first().map_or_else(|| client.door().place.clone(), ToString::to_string),
    };
    let options = ClientOptions::new(place, client.id.as_str())
        .version(version)
        // At 3.1.1, Clean Session would also discard the session at the end of the connection.
        .clean_start(version.is_v5() || connection.session_expiry.is_none())
        .keep_alive(Duration::from_secs(connection.keep_alive.into()))
        .session_expiry(connection.session_expiry.unwrap_or_default())
        .reconnect(match plan.on_lost {
            OnLost::Reconnect { first, most } => Reconnect::Backoff { first, most },
            OnLost::Fail => Reconnect::Backoff { first: Duration::from_millis(100), most: Duration::from_secs(1) },
        });
    let options = options.transport(transport(driver, &client.door().host));
    match (&connection.user_name, &connection.password) {
        (None, None) => options,
        (user, password) => {
            let password = password.as_ref().map_or("", |password| password.expose());
            options.credentials(user.as_deref().unwrap_or_default(), password)
        }
    }
}

/// Transport of a worker to `host`.
fn transport(driver: &DriverThread, host: &str) -> Transport {
    let transport = match driver.common.connector.tls() {
        Some(tls) => over_tls(tls, host),
        None => Transport::tcp(),
    };
    match &driver.plan().connection.websocket {
        Some(path) => transport.websocket(path),
        None => transport,
    }
}

fn over_tls(tls: &Tls, host: &str) -> Transport {
    let (tls, host) = (tls.clone(), Arc::<str>::from(host));
    Transport::tcp().over(move |stream| {
        let (tls, host) = (tls.clone(), Arc::clone(&host));
        async move { WireStream::under(&tls, &host, stream).await }
    })
}

/// Maximum length of a worker's queue. Beyond that it stops reading, so that the broker sees a slow client.
const QUEUE_MAX: usize = 1_000_000;
/// Events to handle before the queue catches up with the clock.
const EVENTS_AT_ONCE: usize = 256;
const LEAVE_LIMIT: Duration = Duration::from_secs(2);
/// One report a second for a day.
const REPORTS_MAX: usize = 86_400;
