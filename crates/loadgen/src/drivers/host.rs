//! The shared part of the drivers: threads, stages, records and counters.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::LoadgenError;
use crate::run::{
    Assignment, Counters, Driver, DriverFuture, DriverRun, Layout, Part, Plan, Recorder, RunClock, Slice, Status,
};
use tokio::sync::{oneshot, watch};
use tokio::task::LocalSet;

use super::protocol::Protocol;
use super::window::Window;
use super::{names, publishing, receiving};

/// Stage of a run. Stages never go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum DriverStage {
    /// Clients are connected and wait.
    Ready,
    /// Publishers publish from this time on.
    Run { start_ns: u64 },
    /// Publishers finish begun messages.
    Drain,
    /// Clients close their connections.
    End,
}

/// Kind of clients of a thread, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clients {
    Subscribers,
    Publishers,
}

/// State that both threads share.
struct SharedHost {
    plan: Arc<Plan>,
    layout: Arc<Layout>,
    clock: RunClock,
    slice: Slice,
    window: Option<Window>,
    /// Of the subscribers' thread, then of the publishers'.
    counters: [Counters; 2],
    recorders: [Mutex<Recorder>; 2],
    start_ns: std::sync::atomic::AtomicU64,
    failure: Mutex<Option<LoadgenError>>,
}

/// One thread's view of a run.
pub(super) struct Side {
    pub(super) plan: Arc<Plan>,
    pub(super) layout: Arc<Layout>,
    pub(super) clock: RunClock,
    pub(super) events: Events,
    stages: watch::Receiver<DriverStage>,
}

/// Records of connections, for callbacks of client libraries.
#[derive(Clone)]
pub(super) struct Events {
    shared: Arc<SharedHost>,
    clients: Clients,
}

impl Events {
    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        // A panic in a driver ends the run with an error, so that no result comes from a broken recorder.
        self.shared.recorders[self.clients as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the loss of a connection of `client`. The run ends with an error if the plan says so.
    pub(super) fn lost(&self, client: &str, reason: &str) {
        self.recorder().lost(self.shared.clock.now_ns());
        if !self.shared.plan.on_lost.reconnects() {
            self.fail(LoadgenError::ConnectionLost { client: client.to_owned(), reason: reason.to_owned() });
        }
    }

    /// Records that a client has connected again.
    pub(super) fn reconnected(&self) {
        self.recorder().reconnected(false, self.shared.clock.now_ns());
    }

    /// Ends the run with `error`, unless an earlier one does.
    pub(super) fn fail(&self, error: LoadgenError) {
        self.shared.failure().get_or_insert(error);
    }
}

impl Side {
    pub(super) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.events.recorder()
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.events.shared.counters[self.events.clients as usize]
    }

    pub(super) fn window(&self) -> Option<&Window> {
        self.events.shared.window.as_ref()
    }

    /// Start of second 0; `u64::MAX` before the run.
    pub(super) fn start_ns(&self) -> u64 {
        self.events.shared.start_ns.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(super) fn stage(&self) -> DriverStage {
        *self.stages.borrow()
    }

    /// Waits for a stage of at least `stage`; returns it.
    pub(super) async fn reaches(&self, stage: DriverStage) -> DriverStage {
        // The run was dropped if there is no sender.
        self.stages.clone().wait_for(|now| *now >= stage).await.map_or(DriverStage::End, |now| *now)
    }

    /// Waits for the end of the run.
    pub(super) async fn is_over(&self) {
        self.reaches(DriverStage::End).await;
    }

    /// `HOST:PORT` of all doors of the system of broker `first`, which is in front.
    pub(super) fn doors(&self, first: usize) -> Vec<String> {
        names::doors(&self.plan, first)
    }

    /// Error of a client that cannot connect or subscribe.
    pub(super) fn refused(&self, client: &str, reason: impl std::fmt::Display) -> LoadgenError {
        LoadgenError::Connect { address: self.doors(0).join(", "), reason: format!("{client}: {reason}") }
    }
}

impl SharedHost {
    fn failure(&self) -> MutexGuard<'_, Option<LoadgenError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Clients of one process over one protocol.
struct Host {
    shared: Arc<SharedHost>,
    stages: watch::Sender<DriverStage>,
    ended: Vec<oneshot::Receiver<()>>,
}

/// The driver of a protocol.
struct Hosted<P>(PhantomData<fn() -> P>);

/// The driver of protocol `P`.
pub(super) fn driver<P: Protocol>() -> impl Driver {
    Hosted::<P>(PhantomData)
}

impl<P: Protocol> Driver for Hosted<P> {
    fn protocol(&self) -> &'static str {
        P::NAME
    }

    fn prepare(&self, assignment: Assignment) -> DriverFuture<'_, Box<dyn DriverRun>> {
        Box::pin(prepare::<P>(assignment))
    }
}

/// As [`Driver::prepare`], for the clients of protocol `P`.
async fn prepare<P: Protocol>(assignment: Assignment) -> Result<Box<dyn DriverRun>, LoadgenError> {
    let Assignment { plan, layout, slice, clock } = assignment;
    P::check(&plan)?;
    let recorder = || Mutex::new(Recorder::new(Arc::clone(&layout), &plan, u64::MAX));
    let shared = Arc::new(SharedHost {
        window: Window::of(&plan),
        counters: Default::default(),
        recorders: [recorder(), recorder()],
        start_ns: u64::MAX.into(),
        failure: Mutex::new(None),
        layout: Arc::clone(&layout),
        plan: Arc::clone(&plan),
        clock,
        slice,
    });
    let (stages, _) = watch::channel(DriverStage::Ready);
    let mut host = Host { shared, stages, ended: Vec::new() };
    host.open::<P>(Clients::Subscribers).await?;
    host.open::<P>(Clients::Publishers).await?;
    Ok(Box::new(host))
}

impl Host {
    /// Starts the thread of these clients, and waits until they are connected.
    async fn open<P: Protocol>(&mut self, clients: Clients) -> Result<(), LoadgenError> {
        let (ready, is_ready) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LoadgenError::Runtime)?;
        let (shared, stages) = (Arc::clone(&self.shared), self.stages.subscribe());
        let name = format!("{}-{clients:?}", P::NAME).to_lowercase();
        let run = move || {
            let local = LocalSet::new();
            local.block_on(&runtime, run::<P>(shared, clients, stages, ready));
            drop(local);
            // A name that is being resolved can outlast the run.
            runtime.shutdown_background();
            let _ = ended.send(());
        };
        std::thread::Builder::new().name(name).spawn(run).map_err(LoadgenError::Runtime)?;
        self.ended.push(has_ended);
        is_ready.await.unwrap_or_else(|_| Err(thread_lost()))
    }

    fn enter(&self, stage: DriverStage) {
        self.stages.send_if_modified(|now| {
            let is_later = stage > *now;
            if is_later {
                *now = stage;
            }
            is_later
        });
    }
}

/// Connects the clients, reports that they are ready, and runs them to the end.
async fn run<P: Protocol>(
    shared: Arc<SharedHost>,
    clients: Clients,
    stages: watch::Receiver<DriverStage>,
    ready: oneshot::Sender<Result<(), LoadgenError>>,
) {
    let (plan, layout, clock, slice) =
        (Arc::clone(&shared.plan), Arc::clone(&shared.layout), shared.clock, shared.slice);
    let side = Rc::new(Side { plan, layout, clock, stages, events: Events { shared, clients } });
    let mut tasks = tokio::task::JoinSet::new();
    let opened = match clients {
        Clients::Subscribers => open_subscribers::<P>(&side, slice, &mut tasks).await,
        Clients::Publishers => open_publishers::<P>(&side, slice, &mut tasks).await,
    };
    let is_open = opened.is_ok();
    if ready.send(opened).is_err() || !is_open {
        return;
    }
    let counters = side.counters();
    let mut meter = tokio::time::interval(METER);
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                None => break,
                Some(Err(_)) => side.events.fail(thread_lost()),
                Some(Ok(())) => {}
            },
            _ = meter.tick() => {
                counters.note_cpu();
                counters.p99_us.set(side.recorder().last_p99_us());
            }
        }
    }
    side.is_over().await;
}

async fn open_subscribers<P: Protocol>(
    side: &Rc<Side>,
    slice: Slice,
    tasks: &mut tokio::task::JoinSet<()>,
) -> Result<(), LoadgenError> {
    P::create(side).await?;
    for number in slice.receivers(&side.layout) {
        let begun = tokio::time::Instant::now();
        let inlet = P::subscribe(side, number).await.inspect_err(|_| side.recorder().refused(side.clock.now_ns()))?;
        side.recorder().connected(begun.elapsed(), side.clock.now_ns());
        // It reads from now on: some systems ask clients for signs of life.
        tasks.spawn_local(receiving::receive(Rc::clone(side), number, inlet));
    }
    Ok(())
}

async fn open_publishers<P: Protocol>(
    side: &Rc<Side>,
    slice: Slice,
    tasks: &mut tokio::task::JoinSet<()>,
) -> Result<(), LoadgenError> {
    for number in slice.publishers(&side.plan) {
        let begun = tokio::time::Instant::now();
        let outlet = P::publisher(side, number).await.inspect_err(|_| side.recorder().refused(side.clock.now_ns()))?;
        side.recorder().connected(begun.elapsed(), side.clock.now_ns());
        side.counters().publishing.add(1);
        tasks.spawn_local(publishing::publish(Rc::clone(side), number, outlet));
    }
    Ok(())
}

impl DriverRun for Host {
    fn start(&mut self, start_ns: u64) {
        for recorder in &self.shared.recorders {
            recorder.lock().unwrap_or_else(PoisonError::into_inner).start(start_ns);
        }
        self.shared.start_ns.store(start_ns, std::sync::atomic::Ordering::Relaxed);
        self.enter(DriverStage::Run { start_ns });
    }

    fn status(&self) -> Status {
        let failure = self.shared.failure().as_ref().map(ToString::to_string);
        Status::of(&self.shared.counters, failure)
    }

    fn take_failure(&self) -> Option<LoadgenError> {
        self.shared.failure().take()
    }

    fn stop_publishing(&self) {
        self.enter(DriverStage::Drain);
    }

    fn finish(self: Box<Self>) -> DriverFuture<'static, Part> {
        Box::pin(async move {
            let mut host = self;
            host.enter(DriverStage::End);
            for ended in std::mem::take(&mut host.ended) {
                ended.await.map_err(|_| thread_lost())?;
            }
            if let Some(failure) = host.take_failure() {
                return Err(failure);
            }
            let mut part = Part::default();
            for recorder in &host.shared.recorders {
                let empty = Recorder::new(Arc::clone(&host.shared.layout), &host.shared.plan, u64::MAX);
                let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
                part.merge(std::mem::replace(&mut *recorder, empty).into_part());
            }
            Ok(part)
        })
    }
}

impl Drop for Host {
    /// Also after an interrupt: the threads end by themselves.
    fn drop(&mut self) {
        self.enter(DriverStage::End);
    }
}

/// Error for a thread that ended early, which only a panic causes.
fn thread_lost() -> LoadgenError {
    LoadgenError::Runtime(std::io::Error::other("a driver thread ended by itself"))
}

/// Interval between two readings of the processor time of a thread.
const METER: Duration = Duration::from_millis(100);
