use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_codec::Secret;
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval};

use super::message::{AgentMessage, Hello};
use super::wire::{BULK_PATIENCE, CLOSED, SILENCE_LIMIT, SILENT, Wire};
use crate::run::clock::RunClock;
use crate::run::record::{Layout, Part};
use crate::run::{Assignment, DriverRun, Drivers, Plan, Slice};

/// Serves one controller, from its Hello to its end; reports errors to it too.
///
/// # Errors
/// Why the session ended early.
pub(super) async fn serve(
    stream: TcpStream,
    token: Option<&Secret<String>>,
    drivers: &Drivers,
    clock: RunClock,
) -> Result<(), String> {
    let wire = Wire::new(stream).map_err(|error| error.to_string())?;
    let (served, session) = serve_wire(wire, token, drivers, clock, false).await;
    if let Err(reason) = served.clone() {
        // The next controller need not wait for the farewell.
        tokio::spawn(async move { session.wire.close(Some(&reason)).await });
    }
    served
}

/// Serves the only controller, at the other end of `wire`; reports errors to it too.
///
/// # Errors
/// As [`serve`].
pub(super) async fn serve_only(wire: Wire, drivers: &Drivers, clock: RunClock) -> Result<(), String> {
    let (served, session) = serve_wire(wire, None, drivers, clock, true).await;
    if let Err(reason) = &served {
        session.wire.close(Some(reason)).await;
    }
    served
}

async fn serve_wire(
    wire: Wire,
    token: Option<&Secret<String>>,
    drivers: &Drivers,
    clock: RunClock,
    may_start_programs: bool,
) -> (Result<(), String>, Session) {
    let mut session = Session { wire, drivers: drivers.clone(), clock, may_start_programs };
    (session.serve(token).await, session)
}

/// Refuses a controller, as the agent is busy.
pub(super) async fn refuse(stream: TcpStream, reason: &str) {
    if let Ok(wire) = Wire::new(stream) {
        wire.close(Some(reason)).await;
    }
}

/// An agent's side of a connection.
struct Session {
    wire: Wire,
    drivers: Drivers,
    /// Not adjusted to the controller's clock yet.
    clock: RunClock,
    /// Whether the controller started this process, and may let it start others.
    may_start_programs: bool,
}

impl Session {
    async fn serve(&mut self, token: Option<&Secret<String>>) -> Result<(), String> {
        let greeted = tokio::time::timeout(SILENCE_LIMIT, self.greet(token)).await;
        greeted.map_err(|_| SILENT.to_owned())??;
        loop {
            // The controller may be busy with other agents' results.
            let message = tokio::time::timeout(BULK_PATIENCE, self.wire.receive()).await;
            match message.unwrap_or_else(|_| Err("its controller has nothing more to say".to_owned())) {
                Ok(AgentMessage::Watching) => {}
                Ok(AgentMessage::Probe) => self.tell_time().await?,
                Ok(AgentMessage::Prepare { mut plan, password, slice, move_clock_ns }) => {
                    plan.connection.password = password;
                    self.run(*plan, slice, move_clock_ns).await?;
                }
                Ok(message) => return Err(unexpected(&message)),
                // Between two requests the controller may leave.
                Err(reason) if reason == CLOSED => return Ok(()),
                Err(reason) => return Err(reason),
            }
        }
    }

    async fn greet(&mut self, token: Option<&Secret<String>>) -> Result<(), String> {
        let hello = match self.wire.receive().await? {
            AgentMessage::Hello(hello) => hello,
            message => return Err(unexpected(&message)),
        };
        hello.check_version()?;
        if let Some(token) = token {
            let given = hello.token.as_ref().ok_or("it wants a token (--token)")?;
            if given != token {
                return Err("wrong token".to_owned());
            }
        }
        self.wire.trust();
        self.wire.send(&AgentMessage::Hello(Hello::new(None))).await
    }

    async fn tell_time(&mut self) -> Result<(), String> {
        let received_ns = self.clock.at_ns(self.wire.read_at());
        // Encoding time counts as time on the way, as it does for the probe.
        self.wire.send(&AgentMessage::Answer { received_ns, answered_ns: self.clock.now_ns() }).await
    }

    /// Runs `slice` of `plan`.
    async fn run(&mut self, plan: Plan, slice: Slice, move_clock_ns: i64) -> Result<(), String> {
        let plan = Arc::new(plan);
        let layout = Layout::of(&plan).map_err(|error| error.to_string())?;
        let clock = self.clock.moved(move_clock_ns);
        let drivers = self.drivers.clone();
        let driver = drivers.get(&plan.protocol).map_err(|error| error.to_string())?;
        if driver.starts_programs_of_the_plan() && !self.may_start_programs {
            return Err(format!(
                "protocol {} starts programs, which only an agent with --stdio does",
                driver.protocol()
            ));
        }
        let assignment = Assignment { plan, layout: Arc::new(layout), slice, clock };
        let prepared = self.meanwhile(driver.prepare(assignment)).await?;
        let mut clients = prepared.map_err(|error| error.to_string())?;
        self.wire.send(&AgentMessage::Ready).await?;

        let at_unix_ns = self.wait_for_start().await?;
        if let Some(late_ns) = clock.now_ns().checked_sub(at_unix_ns) {
            return Err(format!("the word to start came {:.1} ms late", late_ns as f64 / 1e6));
        }
        clients.start(at_unix_ns);
        self.watch(&*clients).await?;
        let part = self.meanwhile(clients.finish()).await?.map_err(|error| error.to_string())?;
        self.hand_over(part).await
    }

    /// Waits for the start. Gives up if the controller is silent, so that no unwatched connections stay.
    async fn wait_for_start(&mut self) -> Result<u64, String> {
        loop {
            let message = tokio::time::timeout(SILENCE_LIMIT, self.wire.receive()).await;
            match message.map_err(|_| format!("its controller says {SILENT}"))?? {
                AgentMessage::Start { at_unix_ns } => return Ok(at_unix_ns),
                AgentMessage::Watching => {}
                message => return Err(unexpected(&message)),
            }
        }
    }

    /// Sends progress until the controller asks for the end.
    async fn watch(&mut self, clients: &dyn DriverRun) -> Result<(), String> {
        let (mut tick, mut heard, mut ticked) = (every(STATUS_INTERVAL), Instant::now(), Instant::now());
        loop {
            tokio::select! {
                message = self.wire.receive() => {
                    heard = Instant::now();
                    match message? {
                        AgentMessage::Watching => {}
                        AgentMessage::StopCutting => clients.stop_cutting(),
                        AgentMessage::StopPublishing => clients.stop_publishing(),
                        AgentMessage::Finish => return Ok(()),
                        message => return Err(unexpected(&message)),
                    }
                }
                _ = tick.tick() => {
                    if ticked.elapsed() > SUSPENDED {
                        // This process was stopped; its controller's messages wait to be read.
                        heard = Instant::now();
                    }
                    ticked = Instant::now();
                    // A load without a controller must end.
                    if heard.elapsed() > SILENCE_LIMIT {
                        return Err(format!("its controller says {SILENT}"));
                    }
                    self.wire.send(&AgentMessage::Status(clients.status())).await?;
                }
            }
        }
    }

    async fn hand_over(&mut self, part: Part) -> Result<(), String> {
        // This can take longer than the controller tolerates silence.
        let bytes = self.meanwhile(tokio::task::spawn_blocking(move || part.to_bytes())).await?;
        let bytes = bytes.map_err(|error| error.to_string())?;
        self.wire.send(&AgentMessage::Part { bytes: bytes.len() as u64 }).await?;
        self.wire.send_bulk(&bytes).await
    }

    /// Does `work` and sends [`AgentMessage::Working`] once a second; ends early if the controller leaves.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, String> {
        let (mut work, mut tick) = (pin!(work), every(WORKING_INTERVAL));
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                _ = tick.tick() => self.wire.send(&AgentMessage::Working).await?,
                message = self.wire.receive() => match message? {
                    AgentMessage::Watching => {}
                    message => return Err(unexpected(&message)),
                },
            }
        }
    }
}

fn unexpected(message: &AgentMessage) -> String {
    format!("unexpected {}", message.name())
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Shorter than all timeouts that decide when a run ends.
const STATUS_INTERVAL: Duration = Duration::from_millis(20);
const WORKING_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two ticks after which this process counts as suspended in between.
const SUSPENDED: Duration = Duration::from_secs(1);
