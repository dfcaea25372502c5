//! A driver thread, from its first connection to its last.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tenbin_simulator::Span;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, LocalSet};

use super::cuts::cut_in_turns;
use super::driver_thread::{Common, DriverThread, RunStage};
use super::program::Program;
use super::publisher::Publisher;
use super::shard::Shard;
use super::shared::Phase;
use super::sink::Sink;
use super::stall::StallLimit;
use super::worker::{Worker, kind_of};
use crate::LoadgenError;
use crate::run::Part;

/// Report of a thread to the engine.
#[derive(Debug)]
pub(super) enum Report {
    /// The thread has completed the current stage.
    Ready,
    /// The thread has ended, or failed before it began.
    Ended(Result<Box<Part>, LoadgenError>),
}

/// Starts thread `number`.
///
/// # Errors
/// The system cannot start another thread.
pub(super) fn spawn(
    common: Common,
    number: usize,
    shard: Shard,
    reports: mpsc::Sender<Report>,
) -> Result<(), LoadgenError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LoadgenError::Runtime)?;
    let work = move || {
        let tasks = LocalSet::new();
        let ended = runtime.block_on(tasks.run_until(async {
            let driver = Rc::new(DriverThread::new(common, number));
            let served = serve(&driver, &shard, &reports).await;
            served.map(|()| driver)
        }));
        // Dropping the tasks drops the last other references to the driver.
        drop(tasks);
        let part = ended.map(|driver| {
            let driver = Rc::into_inner(driver).expect("its tasks are gone");
            Box::new(driver.into_recorder().into_part())
        });
        // A dropped engine no longer receives.
        let _ = reports.blocking_send(Report::Ended(part));
    };
    let thread = std::thread::Builder::new().name(format!("loadgen-{number}")).spawn(work);
    thread.map(drop).map_err(LoadgenError::Runtime)
}

async fn serve(driver: &Rc<DriverThread>, shard: &Shard, reports: &mpsc::Sender<Report>) -> Result<(), LoadgenError> {
    let mut stages = driver.common.stages.clone();
    let mut next = async |after: RunStage| {
        let stage = stages.wait_for(|stage| *stage > after).await;
        stage.map_or(RunStage::End, |stage| *stage)
    };
    // If the engine is gone, the next stage ends the thread.
    let ready = async || drop(reports.send(Report::Ready).await);

    let watchers = open_all(&shard.will_brokers, |broker| Sink::open_for_wills(Rc::clone(driver), broker)).await?;
    // Those that join during the run come later.
    let (at_once, later) = connect_times(driver, &shard.workers);
    let begun = Instant::now();
    let open_after = |(after, number): (Duration, u32)| {
        let driver = Rc::clone(driver);
        async move {
            tokio::time::sleep_until((begun + after).into()).await;
            Worker::open(driver, number).await
        }
    };
    let workers = open_all(&at_once, open_after).await?;
    let programs = open_all(&shard.programs, |number| Program::open(Rc::clone(driver), number)).await?;
    let sinks = open_all(&shard.sinks, |number| Sink::open(Rc::clone(driver), number)).await?;
    ready().await;
    if next(RunStage::Subscribe).await == RunStage::End {
        return Ok(());
    }
    let publishers = open_all(&shard.publishers, |number| Publisher::open(Rc::clone(driver), number)).await?;
    ready().await;
    let mut stage = next(RunStage::Connect).await;

    let mut clients = JoinSet::new();
    if let RunStage::Run { start_ns } = stage {
        driver.start(start_ns);
        let sinks = watchers.into_iter().chain(sinks);
        sinks.for_each(|(sink, link)| drop(clients.spawn_local(sink.run(link))));
        workers.into_iter().for_each(|worker| drop(clients.spawn_local(worker.run())));
        programs.into_iter().for_each(|program| drop(clients.spawn_local(program.run())));
        later.into_iter().for_each(|number| drop(clients.spawn_local(Worker::join(Rc::clone(driver), number))));
        if !driver.plan().publishers.pace.is_scheduled() {
            // A publisher without a schedule would begin before `start_ns`.
            tokio::time::sleep_until(driver.common.clock.instant(start_ns).into()).await;
        }
        publishers.into_iter().for_each(|(publisher, link)| drop(clients.spawn_local(publisher.run(link))));
        let background = start_background(driver);
        stage = next(stage).await;
        while stage != RunStage::End {
            driver.wake_all();
            stage = next(stage).await;
        }
        driver.wake_all();
        while let Some(ended) = clients.join_next().await {
            ended.expect("a client does not panic");
        }
        drop(background);
        driver.note_cpu();
    }
    Ok(())
}

/// Times and numbers of the workers that connect before the run, in order, and numbers of those that join during it.
fn connect_times(driver: &DriverThread, workers: &[u32]) -> (Vec<(Duration, u32)>, Vec<u32>) {
    let (later, present): (Vec<_>, Vec<_>) =
        workers.iter().partition(|number| kind_of(driver, **number).1.joins.is_some_and(|joins| joins > Span::ZERO));
    let member = |number: u32| driver.layout().receivers()[number as usize].member;
    let with_delay = |number: u32| (kind_of(driver, number).0.connect_delay(member(number)), number);
    let mut at_once: Vec<_> = present.into_iter().map(with_delay).collect();
    at_once.sort_unstable();
    (at_once, later)
}

/// Opens connections, up to [`OPENING_MAX`] at a time, and returns them in order.
///
/// One after the other would take long. All at once would exceed the accept backlog of brokers.
async fn open_all<N: Copy, T: 'static, F>(numbers: &[N], open: impl Fn(N) -> F) -> Result<Vec<T>, LoadgenError>
where
    F: Future<Output = Result<T, LoadgenError>> + 'static,
{
    let mut opened = Vec::with_capacity(numbers.len());
    let mut opening = JoinSet::new();
    let mut waiting = numbers.iter().enumerate();
    loop {
        while opening.len() < OPENING_MAX
            && let Some((place, &number)) = waiting.next()
        {
            let open = open(number);
            opening.spawn_local(async move { (place, open.await) });
        }
        let Some(done) = opening.join_next().await else { break };
        let (place, result) = done.expect("opening a connection does not panic");
        opened.push((place, result?));
    }
    opened.sort_by_key(|(place, _)| *place);
    Ok(opened.into_iter().map(|(_, opened)| opened).collect())
}

/// Starts the thread's background tasks; dropping the set ends them.
fn start_background(driver: &Rc<DriverThread>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let pacing = Rc::clone(driver);
    tasks.spawn_local(async move {
        if let Err(error) = pacing.pacer.run(pacing.common.clock, |number| pacing.wake(number)).await {
            pacing.shared().fail(LoadgenError::Runtime(error));
        }
    });
    let waking = Rc::clone(driver);
    tasks.spawn_local(async move { waking.wake_window_waiters().await });
    tasks.spawn_local(cut_in_turns(Rc::clone(driver)));
    let watched = Rc::clone(driver);
    tasks.spawn_local(async move { watch(&watched).await });
    tasks
}

/// Records the thread's processor time, and reopens a window that lost messages keep closed.
async fn watch(driver: &DriverThread) {
    let mut stall_limit = StallLimit::new(Instant::now());
    // One thread watches the window.
    let window = driver.shared().window.as_ref().filter(|_| driver.thread == 0);
    loop {
        driver.note_cpu();
        driver.counters().p99_us.set(driver.recorder().last_p99_us());
        if let Some(window) = window
            && driver.phase() == Phase::Running
            && window.outstanding() > 0
            && driver.shared().queued() == 0
            && stall_limit.ends(window.received(), Instant::now())
        {
            window.write_off(driver.now_ns());
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Interval of the watch.
const TICK: Duration = Duration::from_millis(10);

/// Connections of a thread that are being opened at the same time.
const OPENING_MAX: usize = 32;
