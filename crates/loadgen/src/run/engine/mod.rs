//! The driver of MQTT: runs a plan's clients against real brokers, with as little work per message as possible.
//!
//! ```text
//! Engine ──stages──► thread ─► DriverThread ◄── Publisher, Sink, Worker, Program (a task each)
//!   ◄─reports──              │  one Recorder, one buffer to read into, one Pacer
//!   ◄─status───  Counters ◄──┘
//! ```
//!
//! A driver thread has its own runtime, and its connections stay in it. So they share its [`Recorder`] and its read
//! buffer without a lock. PUBLISH frames are encoded once; only Packet Identifier and stamp differ between them. One
//! read yields many frames, which are parsed in place and have the same time of arrival. One write carries many frames
//! or acknowledgements.
//!
//! Idle connections have a separate thread. All subscribers have subscribed before the first message is published.
//!
//! [`Recorder`]: crate::run::Recorder

mod addresses;
mod alarm;
mod any_certificate;
mod back_off;
mod block;
mod connection;
mod control;
mod cuts;
mod driver_thread;
mod frame;
mod handshake;
mod idle;
mod in_flight;
mod inbox;
mod link;
mod network;
mod open_files;
mod pacer;
mod program;
mod publisher;
mod read_pace;
mod shard;
mod shared;
mod sink;
mod stall;
mod streams;
mod thread;
mod tls;
mod transport;
mod window;
mod work_queue;
mod worker;

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use self::addresses::Addresses;
use self::driver_thread::{Common, RunStage};
pub(super) use self::frame::{FrameOptions, Frames};
use self::handshake::Connector;
use self::shard::Shard;
use self::shared::{CutsWhile, Phase, SharedEngine};
use self::thread::Report;
use super::driver::{Assignment, Driver, DriverFuture, DriverRun, Drivers};
use super::{Pace, Part, Plan, Status};
use crate::LoadgenError;

/// The driver of MQTT 5.0 and 3.1.1.
#[derive(Debug, Clone, Copy)]
pub struct MqttDriver;

impl Driver for MqttDriver {
    fn protocol(&self) -> &'static str {
        Plan::MQTT
    }

    fn prepare(&self, assignment: Assignment) -> DriverFuture<'_, Box<dyn DriverRun>> {
        Box::pin(async move {
            let engine = Engine::prepare(assignment).await?;
            Ok(Box::new(engine) as Box<dyn DriverRun>)
        })
    }
}

impl Drivers {
    /// The driver of MQTT alone.
    pub fn mqtt() -> Self {
        Self::none().with(MqttDriver)
    }
}

impl Default for Drivers {
    /// As [`Drivers::mqtt`].
    fn default() -> Self {
        Self::mqtt()
    }
}

/// The connected clients of one process. Dropping it closes all connections.
#[derive(Debug)]
pub(crate) struct Engine {
    shared: Arc<SharedEngine>,
    stages: watch::Sender<RunStage>,
    reports: mpsc::Receiver<Report>,
    threads: usize,
}

impl Engine {
    /// Connects the clients, subscribers first; they wait for [`Engine::start`].
    ///
    /// # Errors
    /// A broker cannot be reached, or does not accept a connection or subscription as requested. The error names the
    /// client and the filter.
    pub(crate) async fn prepare(assignment: Assignment) -> Result<Self, LoadgenError> {
        let Assignment { plan, layout, slice, clock } = assignment;
        let shards = Shard::all(&plan, &layout, slice);
        let idle = slice.count(plan.idle.map_or(0, |idle| idle.count));
        open_files::allow(shards.iter().map(Shard::connections).sum::<u64>() + u64::from(idle))?;
        let window = match plan.publishers.pace {
            Pace::Closed { window } => Some(window),
            Pace::Open { .. } | Pace::Arrivals { .. } | Pace::Unlimited => None,
        };
        let threads = shards.len() + usize::from(idle > 0);
        // Other processes may have messages left, so the controller decides when cutting stops.
        let is_alone = plan.publishers.count > 0 && slice.of == 1;
        let cuts_while = if is_alone { CutsWhile::Publishing } else { CutsWhile::Running };
        let shared = Arc::new(SharedEngine::new(threads, window, cuts_while));
        let addresses = Arc::new(Addresses::resolve(&plan.brokers).await?);
        let (stages, stage) = watch::channel(RunStage::Subscribe);
        let connector = Arc::new(Connector::new(&plan.connection, plan.tag)?);
        let common = Common { plan, layout, clock, connector, addresses, shared: Arc::clone(&shared), stages: stage };
        let (reporter, reports) = mpsc::channel(threads);
        let mut engine = Self { shared, stages, reports, threads: 0 };
        for (number, shard) in shards.into_iter().enumerate() {
            thread::spawn(common.clone(), number, shard, reporter.clone())?;
            engine.threads += 1;
        }
        if idle > 0 {
            idle::spawn(common, engine.threads, slice, reporter.clone())?;
            engine.threads += 1;
        }
        drop(reporter);
        engine.all_ready().await?;
        engine.stages.send_replace(RunStage::Connect);
        engine.all_ready().await?;
        Ok(engine)
    }

    /// As [`DriverRun::start`].
    pub(crate) fn start(&mut self, start_ns: u64) {
        self.shared.enter(Phase::Running);
        self.stages.send_replace(RunStage::Run { start_ns });
    }

    /// As [`DriverRun::status`].
    pub(crate) fn status(&self) -> Status {
        self.shared.status()
    }

    /// As [`DriverRun::stop_publishing`].
    pub(crate) fn stop_publishing(&self) {
        self.shared.enter(Phase::Draining);
        self.stages.send_if_modified(|stage| advance(stage, RunStage::Drain));
    }

    /// Closes all connections; returns the recorded part.
    ///
    /// # Errors
    /// A connection failed and [`DriverRun::take_failure`] has not returned it, or a thread panicked.
    pub(crate) async fn finish(mut self) -> Result<Part, LoadgenError> {
        self.end();
        let mut part = Part::default();
        for _ in 0..self.threads {
            match self.reports.recv().await {
                Some(Report::Ended(Ok(of_thread))) => part.merge(*of_thread),
                Some(Report::Ended(Err(error))) => return Err(error),
                Some(Report::Ready) => {}
                None => return Err(thread_lost()),
            }
        }
        self.shared.take_failure().map_or(Ok(part), Err)
    }

    /// Waits until all threads have completed the current stage.
    async fn all_ready(&mut self) -> Result<(), LoadgenError> {
        for _ in 0..self.threads {
            match self.reports.recv().await {
                Some(Report::Ready) => {}
                Some(Report::Ended(Err(error))) => return Err(error),
                Some(Report::Ended(Ok(_))) | None => return Err(thread_lost()),
            }
        }
        Ok(())
    }

    fn end(&self) {
        self.shared.enter(Phase::Ended);
        self.stages.send_if_modified(|stage| advance(stage, RunStage::End));
    }
}

impl DriverRun for Engine {
    fn start(&mut self, start_ns: u64) {
        self.start(start_ns);
    }

    fn status(&self) -> Status {
        self.status()
    }

    fn take_failure(&self) -> Option<LoadgenError> {
        self.shared.take_failure()
    }

    fn stop_cutting(&self) {
        self.shared.stop_cutting();
    }

    fn stop_publishing(&self) {
        self.stop_publishing();
    }

    fn finish(self: Box<Self>) -> DriverFuture<'static, Part> {
        Box::pin((*self).finish())
    }
}

impl Drop for Engine {
    /// Also after an interrupt: the threads end by themselves.
    fn drop(&mut self) {
        self.end();
    }
}

/// Moves to `next` if it is later; stages never go back.
fn advance(stage: &mut RunStage, next: RunStage) -> bool {
    let is_later = next > *stage;
    if is_later {
        *stage = next;
    }
    is_later
}

/// Error for a thread that ended early, which only a panic causes.
fn thread_lost() -> LoadgenError {
    LoadgenError::Runtime(std::io::Error::other("a driver thread ended by itself"))
}
