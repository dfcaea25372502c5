//! The switch: one thread that moves the frames of all machines, and breaks their links on request.

mod bucket;
mod fabric;
mod frame;
mod link;
mod port;
pub(crate) mod raw;
mod rng;
mod shape;

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

/// Frames that are read from one port before the others have their turn.
const TURN: usize = 32;

type Order = Box<dyn FnOnce(&mut State) + Send>;

/// Handle of the switch's thread, which lives as long as the process.
#[derive(Clone)]
pub(crate) struct Switch {
    orders: Arc<Mutex<Vec<Order>>>,
    wake: Arc<OwnedFd>,
}

/// The switch's own state, on its thread.
pub(crate) struct State {
    pub(crate) fabric: Fabric,
    ports: Vec<Option<Port>>,
    started: Instant,
}

impl State {
    /// Time of the lab: since the switch started.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Adds a machine and returns its number.
    pub(crate) fn join(&mut self, name: &str, port: Option<Port>) -> u16 {
        self.ports.push(port);
        self.fabric.add(name)
    }

    /// Replaces the port of a machine, whose links stay.
    pub(crate) fn set_port(&mut self, number: u16, port: Option<Port>) {
        if let Some(own) = self.ports.get_mut(usize::from(number)) {
            *own = port;
        }
    }
}

impl Switch {
    pub(crate) fn start(seed: u64) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let switch = Self { orders: Arc::default(), wake };
        let own = switch.clone();
        let state = State { fabric: Fabric::new(seed), ports: Vec::new(), started: Instant::now() };
        thread::Builder::new().name("switch".to_owned()).spawn(move || own.run(state))?;
        Ok(switch)
    }

    /// Calls `change` on the switch's thread, between two frames.
    pub(crate) fn with<R: Send + 'static>(
        &self,
        change: impl FnOnce(&mut State) -> R + Send + 'static,
    ) -> io::Result<R> {
        let (answer, answered): (SyncSender<R>, _) = sync_channel(1);
        let order = Box::new(move |state: &mut State| {
            let _ = answer.send(change(state));
        });
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        rustix::io::write(&*self.wake, &1_u64.to_ne_bytes())?;
        answered.recv().map_err(|_| io::Error::other("the switch has stopped"))
    }

    fn run(&self, mut state: State) {
        // The kernel's default lets a thread wake up 50 µs late. An error leaves it at that.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        // Busy programs must not make the network slow. Users without this right have the usual priority.
        let _ = rustix::process::setpriority_process(None, -20);
        let mut buffer = vec![0; frame::MOST];
        let mut ready = Vec::new();
        loop {
            let orders = std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner));
            orders.into_iter().for_each(|order| order(&mut state));
            let State { fabric, ports, started } = &mut state;
            fabric.advance(started.elapsed(), &mut |to, frame: &[u8]| write(ports, to, frame));
            self.wait(fabric.next(), *started, ports, &mut ready);
            for from in ready.drain(..) {
                for _ in 0..TURN {
                    let Some(port) = &ports[usize::from(from)] else { break };
                    match port.read(&mut buffer) {
                        Read::Frame(bytes) => {
                            let send = &mut |to, frame: &[u8]| write(ports, to, frame);
                            fabric.frame(started.elapsed(), from, &buffer[..bytes], send);
                        }
                        Read::Empty => break,
                        Read::Gone => ports[usize::from(from)] = None,
                    }
                }
            }
        }
    }

    /// Waits until a port has frames, an order arrives, or the time comes.
    fn wait(&self, next: Option<Duration>, started: Instant, ports: &[Option<Port>], ready: &mut Vec<u16>) {
        let numbers = (0..).zip(ports).filter_map(|(number, port)| Some((number, port.as_ref()?)));
        let (numbers, open): (Vec<u16>, Vec<&Port>) = numbers.unzip();
        let mut polled = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        polled.extend(open.into_iter().map(|port| PollFd::new(port, PollFlags::IN)));
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
        let readable = polled[1..].iter().zip(numbers).filter(|(polled, _)| !polled.revents().is_empty());
        ready.extend(readable.map(|(_, number)| number));
    }
}

fn write(ports: &[Option<Port>], to: u16, frame: &[u8]) -> bool {
    ports.get(usize::from(to)).and_then(Option::as_ref).is_some_and(|port| port.write(frame))
}
