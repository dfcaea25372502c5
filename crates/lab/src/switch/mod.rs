//! The switch: one thread that moves the frames of all machines, and breaks their links on request.

mod bucket;
mod fabric;
mod frame;
mod link;
mod port;
pub(crate) mod raw;
mod rng;
mod shape;
mod trunk;

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

pub(crate) use fabric::{Fabric, hardware_address};
pub use link::{Counters, LinkCounters};
pub use port::PortKind;
pub(crate) use port::{Port, Read};
pub use shape::{Rate, Shape};
pub(crate) use trunk::Trunk;

/// Frames that are read from one port before the others have their turn.
const TURN: usize = 32;

type Order = Box<dyn FnOnce(&mut SwitchState) + Send>;

/// Handle of the switch's thread, which lives as long as the process.
#[derive(Clone)]
pub(crate) struct Switch {
    orders: Arc<Mutex<Vec<Order>>>,
    wake: Arc<OwnedFd>,
}

/// The switch's own state, on its thread.
pub(crate) struct SwitchState {
    pub(crate) fabric: Fabric,
    ways: Ways,
    started: Instant,
}

/// Ways to all machines.
#[derive(Default)]
struct Ways {
    /// By the number of the machine.
    machines: Vec<Way>,
    /// `None` for a connection that has ended.
    trunks: Vec<Option<Trunk>>,
}

/// Way to one machine.
enum Way {
    Port(Port),
    /// Through the trunk with this number.
    Trunk(usize),
    /// The machine is gone, a guest without a network, or of another lab that is not joined.
    Nowhere,
}

impl SwitchState {
    /// Time of the lab: since the switch started.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Adds a machine and returns its number. Without a port it is a guest that joins later, or one of another lab.
    pub(crate) fn join(&mut self, name: &str, port: Option<Port>) -> u16 {
        self.ways.machines.push(port.map_or(Way::Nowhere, Way::Port));
        self.fabric.add(name)
    }

    /// Replaces the port of a machine, whose links stay.
    pub(crate) fn set_port(&mut self, number: u16, port: Option<Port>) {
        if let Some(way) = self.ways.machines.get_mut(usize::from(number)) {
            *way = port.map_or(Way::Nowhere, Way::Port);
        }
    }

    /// Sends the frames for these machines of another lab through `trunk`, and takes theirs from it.
    pub(crate) fn add_trunk(&mut self, trunk: Trunk, machines: &[u16]) {
        self.ways.trunks.push(Some(trunk));
        let number = self.ways.trunks.len() - 1;
        for machine in machines {
            if let Some(way @ Way::Nowhere) = self.ways.machines.get_mut(usize::from(*machine)) {
                *way = Way::Trunk(number);
            }
        }
    }
}

impl Switch {
    pub(crate) fn start(seed: u64) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let switch = Self { orders: Arc::default(), wake };
        let own = switch.clone();
        let state = SwitchState { fabric: Fabric::new(seed), ways: Ways::default(), started: Instant::now() };
        thread::Builder::new().name("switch".to_owned()).spawn(move || own.run(state))?;
        Ok(switch)
    }

    /// Calls `change` on the switch's thread, between two frames.
    pub(crate) fn with<R: Send + 'static>(
        &self,
        change: impl FnOnce(&mut SwitchState) -> R + Send + 'static,
    ) -> io::Result<R> {
        let (answer, answered): (SyncSender<R>, _) = sync_channel(1);
        let order = Box::new(move |state: &mut SwitchState| {
            let _ = answer.send(change(state));
        });
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        rustix::io::write(&*self.wake, &1_u64.to_ne_bytes())?;
        answered.recv().map_err(|_| io::Error::other("the switch has stopped"))
    }

    fn run(&self, mut state: SwitchState) {
        // The kernel's default lets a thread wake up 50 µs late. An error leaves it at that.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        // Busy programs must not make the network slow. Users without this right have the usual priority.
        let _ = rustix::process::setpriority_process(None, -20);
        let mut buffer = vec![0; frame::MOST];
        let mut ready = Vec::new();
        loop {
            let orders = std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
            orders.into_iter().for_each(|order| order(&mut state));
            let SwitchState { fabric, ways, started } = &mut state;
            fabric.advance(started.elapsed(), &mut |to, frame: &[u8]| ways.write(to, frame));
            self.wait(fabric.next(), *started, ways, &mut ready);
            for source in ready.drain(..) {
                match source {
                    Source::Machine(from) => {
                        for _ in 0..TURN {
                            let Some(Way::Port(port)) = ways.machines.get(usize::from(from)) else { break };
                            match port.read(&mut buffer) {
                                Read::Frame(bytes) => {
                                    let send = &mut |to, frame: &[u8]| ways.write(to, frame);
                                    fabric.frame(started.elapsed(), from, &buffer[..bytes], send);
                                }
                                Read::Empty => break,
                                Read::Gone => ways.machines[usize::from(from)] = Way::Nowhere,
                            }
                        }
                    }
                    Source::Trunk(number) => ways.take(number, fabric),
                }
            }
        }
    }

    /// Waits until a port or trunk has frames, an order arrives, or the time comes.
    fn wait(&self, next: Option<Duration>, started: Instant, ways: &Ways, ready: &mut Vec<Source>) {
        let mut sources = Vec::new();
        let mut polled = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        for (number, way) in (0..).zip(&ways.machines) {
            if let Way::Port(port) = way {
                sources.push(Source::Machine(number));
                polled.push(PollFd::new(port, PollFlags::IN));
            }
        }
        for (number, trunk) in ways.trunks.iter().enumerate() {
            if let Some(trunk) = trunk {
                sources.push(Source::Trunk(number));
                let room = if trunk.is_waiting() { PollFlags::OUT } else { PollFlags::empty() };
                polled.push(PollFd::new(trunk, PollFlags::IN | room));
            }
        }
        let timeout = next.map(|next| {
            let rest = next.saturating_sub(started.elapsed());
            Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: rest.subsec_nanos().into() }
        });
        if poll(&mut polled, timeout.as_ref()).is_err() {
            return;
        }
        if !polled[0].revents().is_empty() {
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        }
        let readable = polled[1..].iter().zip(sources).filter(|(polled, _)| !polled.revents().is_empty());
        ready.extend(readable.map(|(_, source)| source));
    }
}

/// A descriptor that is ready.
enum Source {
    Machine(u16),
    Trunk(usize),
}

impl Ways {
    /// False if the way took no frame.
    fn write(&mut self, to: u16, frame: &[u8]) -> bool {
        match self.machines.get(usize::from(to)) {
            Some(Way::Port(port)) => port.write(frame),
            Some(Way::Trunk(number)) => self.trunks[*number].as_mut().is_some_and(|trunk| trunk.write(frame)),
            Some(Way::Nowhere) | None => false,
        }
    }

    /// Sends and receives all frames that are ready. Frames from the other lab's machines go to this lab's machines
    /// without another pass through a link.
    fn take(&mut self, number: usize, fabric: &mut Fabric) {
        let Some(mut trunk) = self.trunks[number].take() else { return };
        let moved = trunk.flush().and_then(|()| {
            trunk.read(|frame| {
                let Some((from, to)) = fabric::ends(frame) else { return };
                let is_theirs = matches!(self.machines.get(usize::from(from)), Some(Way::Trunk(own)) if *own == number);
                if let Some(Way::Port(port)) = self.machines.get(usize::from(to)).filter(|_| is_theirs)
                    && !port.write(frame)
                {
                    fabric.overflowed(from, to, frame);
                }
            })
        });
        // A broken trunk takes no frames any more: its links then drop all of theirs.
        self.trunks[number] = moved.is_ok().then_some(trunk);
    }
}
