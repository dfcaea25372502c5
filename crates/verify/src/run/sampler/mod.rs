//! Samples of links, connections and processes at the end of each second. A separate thread takes them, so that neither
//! load nor faults wait.

mod instances;
mod links;
mod sockets;
mod ss;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tenbin_loadgen::run::RunClock;

use self::instances::{Instances, Used};
use self::links::Links;
use self::sockets::Sockets;
use super::stage::Stage;
use crate::plan::Instance;
use crate::results::{InstanceSample, LinkSample, Sample, SocketSample};

use crate::template::{Runtime, StartBy};

const SECOND: Duration = Duration::from_secs(1);
/// Most time that the machines have to tell their connections.
const PATIENCE: Duration = Duration::from_millis(600);

/// The thread that samples. It ends with this value.
pub(crate) struct Sampler {
    /// Gives the end of the warm-up; its own end ends the thread.
    orders: SyncSender<u64>,
    thread: JoinHandle<Vec<String>>,
}

/// State of the thread.
struct Sampling {
    stage: Arc<Stage>,
    clock: RunClock,
    links: Links,
    sockets: Sockets,
    instances: Instances,
    last: Instant,
    files: Files,
}

/// Files of the run, which are written second by second, so that a killed run has them too.
struct Files {
    links: BufWriter<File>,
    sockets: BufWriter<File>,
    instances: BufWriter<File>,
}

impl Sampler {
    /// Creates the files in `directory` and starts the thread, which waits for the end of the warm-up.
    pub(crate) fn start(stage: Arc<Stage>, directory: &Path, clock: RunClock) -> Result<Self, String> {
        let files = Files::create(directory).map_err(|error| format!("cannot write the samples: {error}"))?;
        // On loopback all machines share their addresses, so that a connection tells nothing about its ends.
        let has_network = stage.world.listen() != "127.0.0.1";
        let machines = stage.plan.machines.iter().filter(|_| has_network);
        let owners = machines.clone().map(|machine| (machine.address, machine.name.clone())).collect();
        let containers = containers(&stage);
        let names = machines.map(|machine| machine.name.clone()).filter(|name| !containers.contains(name));
        let sockets = Sockets::new(names, owners);
        let (links, instances, last) = (Links::default(), Instances::default(), Instant::now());
        let sampling = Sampling { stage, clock, links, sockets, instances, last, files };
        let (orders, ordered) = sync_channel(1);
        let thread = thread::Builder::new().name("sampler".to_owned()).spawn(move || sampling.run(&ordered));
        Ok(Self { orders, thread: thread.map_err(|error| format!("cannot start a thread: {error}"))? })
    }

    /// Sets the end of the warm-up, which is once.
    pub(crate) fn begin_to_measure(&self, origin_ns: u64) {
        // The thread is there as long as this value.
        let _ = self.orders.try_send(origin_ns);
    }

    /// Ends the thread, and returns its notes.
    pub(crate) fn finish(self) -> Vec<String> {
        drop(self.orders);
        self.thread.join().unwrap_or_else(|_| vec!["the thread that samples has ended early".to_owned()])
    }
}

impl Sampling {
    fn run(mut self, orders: &Receiver<u64>) -> Vec<String> {
        self.sockets.start(&self.stage);
        let Ok(origin_ns) = orders.recv() else { return Vec::new() };
        let mut notes = Vec::new();
        let mut number = 0;
        loop {
            let due = self.clock.instant(origin_ns + number * SECOND.as_nanos() as u64);
            match orders.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(_) | Err(RecvTimeoutError::Disconnected) => break,
            }
            if let Err(error) = self.look(number) {
                notes.push(format!("cannot write the samples: {error}"));
                break;
            }
            // A look that takes longer than a second is followed by the next one in time.
            let passed = self.clock.now_ns().saturating_sub(origin_ns) / SECOND.as_nanos() as u64;
            number = passed.max(number) + 1;
        }
        let (silent, log) = (self.sockets.silent(), sockets::log(&self.stage));
        let has_said = log.metadata().is_ok_and(|log| log.len() > 0);
        if !has_said {
            // It stays if it cannot be removed.
            let _ = fs::remove_file(&log);
        }
        if !silent.is_empty() {
            let reason = if has_said { format!("; see {}", log.display()) } else { String::new() };
            notes.push(format!("connections were not sampled on {}{reason}", silent.join(", ")));
        }
        let containers = containers(&self.stage);
        if !containers.is_empty() {
            let names = containers.join(", ");
            notes.push(format!("connections of containers were sampled at their other ends only: {names}"));
        }
        notes
    }

    /// Samples the second that ends now, the one before second `number`.
    fn look(&mut self, number: u64) -> io::Result<()> {
        self.sockets.ask(&self.stage, number);
        let now = Instant::now();
        let (interval, second) = (now.duration_since(self.last), number.saturating_sub(1));
        self.last = now;
        let links = self.links.look(second, self.stage.world.links());
        let instances = self.instances.look(second, interval, used(&self.stage));
        let sockets = self.sockets.look(number, second, now, now + PATIENCE);
        add(&mut self.files.links, &links)?;
        add(&mut self.files.instances, &instances)?;
        add(&mut self.files.sockets, &sockets)
    }
}

/// Instances in containers, whose sockets and processes are not sampled.
fn containers(stage: &Stage) -> Vec<String> {
    let is_container = |instance: &&Instance| matches!(instance.start, StartBy::Image(_));
    stage.plan.instances.iter().filter(is_container).map(|instance| instance.machine.clone()).collect()
}

/// Usage of all instances and clients that run, and of the machine.
fn used(stage: &Stage) -> Vec<Used> {
    let instances = stage.plan.instances.iter().map(|instance| (&instance.name, &instance.cpus));
    let pinned =
        instances.chain(stage.plan.clients.iter().map(|client| (&client.entry.name, &client.entry.placing.cpus)));
    let pinned = pinned.filter(|(_, cpus)| !cpus.is_empty()).collect::<Vec<_>>();
    let one = |(name, process): (String, Arc<dyn crate::runtime::Proc>)| {
        let usage = process.usage()?;
        let processors = pinned
            .iter()
            .find(|(of, _)| **of == name)
            .map_or_else(|| stage.world.processors(&name), |(_, cpus)| cpus.len() as u32);
        Some(Used { name, processors, usage })
    };
    // No instance or client is on the controller of several hosts.
    let machine =
        Some(stage.plan.runtime).filter(|runtime| *runtime != Runtime::Ssh).and_then(|_| instances::machine());
    let mut used = stage.all_processes().into_iter().filter_map(one).chain(machine).collect::<Vec<_>>();
    used.sort_by(|a, b| a.name.cmp(&b.name));
    used
}

/// Three decimals, which are all that a file needs.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl Files {
    fn create(directory: &Path) -> io::Result<Self> {
        fn file<S: Sample>(path: &Path) -> io::Result<BufWriter<File>> {
            let mut file = BufWriter::new(File::create(path)?);
            writeln!(file, "{}", S::HEAD)?;
            file.flush()?;
            Ok(file)
        }
        Ok(Self {
            links: file::<LinkSample>(&directory.join("links.csv"))?,
            sockets: file::<SocketSample>(&directory.join("sockets.csv"))?,
            instances: file::<InstanceSample>(&directory.join("instances.csv"))?,
        })
    }
}

fn add<S: Sample>(file: &mut BufWriter<File>, rows: &[S]) -> io::Result<()> {
    rows.iter().try_for_each(|row| writeln!(file, "{}", row.line()))?;
    file.flush()
}
