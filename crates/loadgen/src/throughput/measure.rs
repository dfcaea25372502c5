//! One run against one broker.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tenbin_codec::{TopicFilter, TopicName};
use tokio::task::LocalSet;

use super::connection::{Connection, Handover};
use super::cpu::Usage;
use super::frames::PublishFrame;
use super::publisher::Publisher;
use super::subscriber::Subscriber;
use super::window::{Phase, Window};
use crate::progress::Progress;
use crate::target::RunningBroker;
use crate::{LoadgenError, ThroughputArgs};

/// What one run found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measurement {
    pub(super) deliveries_per_second: f64,
    /// Of the broker, while deliveries were counted; `None` where its process is unknown.
    pub(super) cpu_seconds: Option<f64>,
    pub(super) deliveries_per_cpu_second: Option<f64>,
    /// At the end of the load.
    pub(super) resident_kib: Option<u64>,
    /// Deliveries that never came, of the whole run.
    pub(super) lost: u64,
    /// Deliveries beyond those expected. What is lost hides as many duplicates: it is a count, no comparison.
    pub(super) duplicated: u64,
    /// Messages that the broker did not take; they are not expected.
    pub(super) refused: u64,
}

/// Loads `broker` as `args` say.
pub(super) async fn measure(
    args: &ThroughputArgs,
    broker: &mut RunningBroker,
    number: u32,
    progress: &mut Progress,
) -> Result<Measurement, LoadgenError> {
    let load = match Load::start(args, broker).await {
        Ok(load) => load,
        Err(error) => return Err(broker.blame(error)),
    };
    let watched = watch(args, broker, number, &load.window, progress).await;
    let window = load.end();
    let counted = watched.map_err(|error| broker.blame(error))?;
    Ok(counted.measurement(&window))
}

/// Deliveries and the broker's processor time while they were counted.
struct Counted {
    deliveries: u64,
    elapsed: Duration,
    before: Option<Usage>,
    after: Option<Usage>,
}

impl Counted {
    /// With what the whole run came to.
    fn measurement(&self, window: &Window) -> Measurement {
        let (expected, received) = (window.expected(), window.received());
        let cpu_seconds = self.before.zip(self.after).map(|(before, after)| after.cpu_seconds - before.cpu_seconds);
        let per_cpu_second = |cpu: f64| (cpu > 0.0).then(|| self.deliveries as f64 / cpu);
        Measurement {
            deliveries_per_second: self.deliveries as f64 / self.elapsed.as_secs_f64(),
            cpu_seconds,
            deliveries_per_cpu_second: cpu_seconds.and_then(per_cpu_second),
            resident_kib: self.after.map(|usage| usage.resident_kib),
            lost: expected.saturating_sub(received),
            duplicated: received.saturating_sub(expected),
            refused: window.refused(),
        }
    }
}

/// Warms up, counts, and waits for what is still on its way.
async fn watch(
    args: &ThroughputArgs,
    broker: &RunningBroker,
    number: u32,
    window: &Window,
    progress: &mut Progress,
) -> Result<Counted, LoadgenError> {
    let mut patience = Patience::new(Instant::now());
    let mut pause = async |duration: Duration| {
        let end = Instant::now() + duration;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            tokio::time::sleep(left.min(TICK)).await;
            window.check()?;
            if window.outstanding() > 0 && patience.ends(window.received(), Instant::now()) {
                window.write_off();
            }
            progress.show(|| format!("{} {number}/{}: {} deliveries", broker.name, args.runs, window.received()));
        }
        Ok::<_, LoadgenError>(())
    };
    let usage = || broker.pid.and_then(Usage::of);

    pause(WARM_UP).await?;
    let (start, received_before, before) = (Instant::now(), window.received(), usage());
    pause(args.duration).await?;
    let (elapsed, received_after, after) = (start.elapsed(), window.received(), usage());

    window.enter(Phase::Draining);
    let mut stall = Stall::new(window.received(), Instant::now());
    while window.missing() > 0 && stall.lasts(window.received(), Instant::now()) < DRAIN_LIMIT {
        tokio::time::sleep(TICK).await;
        window.check()?;
    }
    tokio::time::sleep(GRACE).await;
    let deliveries = received_after - received_before;
    Ok(Counted { deliveries, elapsed, before, after })
}

/// The connections under load.
struct Load {
    window: Arc<Window>,
    threads: Vec<JoinHandle<()>>,
    /// To close the connections, which the threads own.
    sockets: Vec<TcpStream>,
}

impl Load {
    /// Connects everybody, subscribers first, and lets them go.
    async fn start(args: &ThroughputArgs, broker: &RunningBroker) -> Result<Self, LoadgenError> {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let run = format!("{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        let topic = TopicName::try_from(format!("throughput/{run}").as_str()).expect("a run is plain numbers");
        let share = if args.fanout { "" } else { "$share/throughput/" };
        let filter = TopicFilter::try_from(format!("{share}{topic}").as_str()).expect("the topic is plain");

        let address = broker.address();
        let (address, version) = (address.as_str(), args.protocol);
        let mut subscribers = Vec::new();
        for index in 0..args.subscribers {
            let connection = Connection::open(address, version, format!("subscriber-{index}-{run}")).await?;
            subscribers.push(connection.subscribe(address, &filter, args.qos).await?.hand_over()?);
        }
        let mut publishers = Vec::new();
        for index in 0..args.publishers {
            let connection = Connection::open(address, version, format!("publisher-{index}-{run}")).await?;
            if !connection.takes(args.qos) {
                return Err(LoadgenError::connect(address, format!("QoS {} is not taken", args.qos)));
            }
            publishers.push(connection.hand_over()?);
        }
        let sockets = subscribers.iter().chain(&publishers).map(|handover| handover.stream.try_clone());
        let sockets = sockets.collect::<io::Result<Vec<_>>>().map_err(LoadgenError::Runtime)?;

        let copies = if args.fanout { u64::from(args.subscribers) } else { 1 };
        let window = Arc::new(Window::new(args.window, copies));
        let frame = PublishFrame::new(version, &topic, args.payload as usize, args.qos);
        let block = block_len(args.window / copies, args.publishers, frame.len());
        let qos = args.qos;
        let threads = vec![
            drive("subscribers", subscribers, &window, async |handover, window| {
                Subscriber::new(handover, window)?.run().await;
                Ok(())
            })?,
            drive("publishers", publishers, &window, async move |handover, window| {
                Publisher::new(handover, window, frame.clone(), qos, block)?.run().await;
                Ok(())
            })?,
        ];
        Ok(Self { window, threads, sockets })
    }

    /// Closes all connections; returns what was counted.
    fn end(mut self) -> Arc<Window> {
        self.close();
        for thread in self.threads.drain(..) {
            thread.join().expect("the load does not panic");
        }
        Arc::clone(&self.window)
    }

    fn close(&mut self) {
        self.window.enter(Phase::Ended);
        for mut socket in self.sockets.drain(..) {
            // The connection may be gone, which is what is wanted.
            let _ = socket.write(&DISCONNECT);
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Load {
    /// After an interrupt the threads end by themselves.
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs one side's connections on a thread of its own, until all of them are closed.
fn drive(
    name: &str,
    connections: Vec<Handover>,
    window: &Arc<Window>,
    run: impl AsyncFn(Handover, Arc<Window>) -> io::Result<()> + Send + 'static,
) -> Result<JoinHandle<()>, LoadgenError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LoadgenError::Runtime)?;
    let window = Arc::clone(window);
    let work = move || {
        let tasks = LocalSet::new();
        let run = std::rc::Rc::new(run);
        for handover in connections {
            let (run, window) = (std::rc::Rc::clone(&run), Arc::clone(&window));
            tasks.spawn_local(async move {
                if let Err(error) = run(handover, Arc::clone(&window)).await {
                    window.fail(LoadgenError::Runtime(error));
                }
            });
        }
        runtime.block_on(tasks);
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(LoadgenError::Runtime)
}

/// How long nothing has come.
struct Stall {
    received: u64,
    since: Instant,
}

impl Stall {
    fn new(received: u64, now: Instant) -> Self {
        Self { received, since: now }
    }

    fn lasts(&mut self, received: u64, now: Instant) -> Duration {
        if received != self.received {
            *self = Self::new(received, now);
        }
        now - self.since
    }
}

/// How long a window is waited for: twice as long each time, until something comes.
struct Patience {
    stall: Stall,
    limit: Duration,
}

impl Patience {
    fn new(now: Instant) -> Self {
        Self { stall: Stall::new(0, now), limit: STALL_LIMIT }
    }

    /// Whether what is outstanding is to be given up now; then the next window is waited for.
    fn ends(&mut self, received: u64, now: Instant) -> bool {
        if received != self.stall.received {
            self.limit = STALL_LIMIT;
        }
        if self.stall.lasts(received, now) <= self.limit {
            return false;
        }
        self.stall = Stall::new(received, now);
        self.limit *= 2;
        true
    }
}

/// Messages in one block: large writes, but so small a part of the window that all publishers have a share.
fn block_len(window: u64, publishers: u16, frame_len: usize) -> u64 {
    let share = window / (2 * u64::from(publishers));
    share.min((BLOCK_SIZE / frame_len) as u64).max(1)
}

/// Bytes of a block.
const BLOCK_SIZE: usize = 32 * 1024;

/// The load before deliveries are counted: connections get their buffers, the broker its memory.
const WARM_UP: Duration = Duration::from_millis(500);

/// How often a run is looked at.
const TICK: Duration = Duration::from_millis(10);

/// When nothing has come for so long, what is outstanding is given up and the window opens again; if still nothing
/// comes, after twice as long, and so on. Short beside a run of seconds, so that a broker that loses messages is
/// measured by what it does with the others. Where the machine only did something else meanwhile, that many windows more
/// are on their way: one after a pause of 0.2 s, three after one of 2 s. What comes late is counted.
const STALL_LIMIT: Duration = Duration::from_millis(200);

/// When nothing has come for so long after the load, the rest is lost. Longer than a busy machine makes a broker wait
/// for its turn, and waited for only where something is missing.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);

/// A copy that comes so long after the last message is still counted.
const GRACE: Duration = Duration::from_millis(50);

const DISCONNECT: [u8; 2] = [0xE0, 0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_leaves_room_for_all_publishers() {
        assert_eq!(block_len(20_000, 10, 120), 273); // 32 KiB
        assert_eq!(block_len(2_000, 10, 120), 100);
        assert_eq!(block_len(5, 10, 120), 1);
        assert_eq!(block_len(20_000, 1, 100_000), 1);
    }

    #[test]
    fn a_long_pause_opens_few_windows() {
        let mut now = Instant::now();
        let mut patience = Patience::new(now);
        let mut opened = |patience: &mut Patience, received, duration: Duration| {
            let end = now + duration;
            let mut opened = 0;
            while now < end {
                now += TICK;
                opened += u32::from(patience.ends(received, now));
            }
            opened
        };
        assert_eq!(opened(&mut patience, 0, Duration::from_millis(200)), 0);
        assert_eq!(opened(&mut patience, 0, Duration::from_millis(1800)), 3);
        // A window of which something comes ends the pause.
        assert_eq!(opened(&mut patience, 1, Duration::from_millis(300)), 1);
        assert_eq!(opened(&mut patience, 2, Duration::from_secs(2)), 3);
    }
}
