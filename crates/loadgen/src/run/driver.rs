//! Drivers: each runs the clients of a plan over one protocol.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use super::clock::RunClock;
use super::{Layout, Part, Plan, Slice, Status};
use crate::LoadgenError;

/// Result of an asynchronous call of a driver.
pub type DriverFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LoadgenError>> + Send + 'a>>;

/// Runs the clients of a plan over one protocol.
///
/// A driver is called a few times in a run and never for a single message, so that its own loops stay static. Its
/// clients record all events in a [`Recorder`](super::Recorder) for each thread and count their progress in
/// [`Counters`](super::Counters).
pub trait Driver: Send + Sync {
    /// Name of the protocol in [`Plan::protocol`].
    fn protocol(&self) -> &'static str;

    /// True if the driver starts programs that a plan names. An agent that listens for controllers does not let it.
    fn starts_programs_of_the_plan(&self) -> bool {
        false
    }

    /// Connects the clients, subscribers first; they wait for [`DriverRun::start`].
    ///
    /// # Errors
    /// The plan cannot be run over this protocol, or a client cannot connect or subscribe. The error names the client.
    fn prepare(&self, assignment: Assignment) -> DriverFuture<'_, Box<dyn DriverRun>>;
}

/// The clients of a plan that one process runs.
#[derive(Clone)]
pub struct Assignment {
    /// The plan of the run.
    pub plan: Arc<Plan>,
    /// The plan's layout.
    pub layout: Arc<Layout>,
    /// Which clients of the plan.
    pub slice: Slice,
    /// Clock of all times of the run.
    pub clock: RunClock,
}

/// The connected clients of one process. Dropping it closes all connections.
pub trait DriverRun: Send + Sync {
    /// Starts the load at `start_ns` of the run's clock, which is second 0 of the run.
    fn start(&mut self, start_ns: u64);

    /// Progress of the run. It is asked for every few milliseconds.
    fn status(&self) -> Status;

    /// Takes the first failure that ends the run. It is returned once.
    fn take_failure(&self) -> Option<LoadgenError>;

    /// Stops cutting connections, as all processes have sent everything. The default is for drivers without cuts.
    fn stop_cutting(&self) {}

    /// Stops publishing: publishers finish begun messages; acknowledgements go on.
    fn stop_publishing(&self);

    /// Closes all connections; returns the recorded part.
    ///
    /// # Errors
    /// A client failed, and [`DriverRun::take_failure`] has not returned the error.
    fn finish(self: Box<Self>) -> DriverFuture<'static, Part>;
}

/// The drivers of a program, by protocol. The program that starts runs registers them.
#[derive(Clone)]
pub struct Drivers(BTreeMap<&'static str, Arc<dyn Driver>>);

impl Drivers {
    /// No drivers.
    pub fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds `driver`; it replaces an earlier one of the same protocol.
    #[must_use]
    pub fn with(mut self, driver: impl Driver + 'static) -> Self {
        self.0.insert(driver.protocol(), Arc::new(driver));
        self
    }

    /// The driver of `protocol`.
    ///
    /// # Errors
    /// There is none; the error lists the known protocols.
    pub fn get(&self, protocol: &str) -> Result<&dyn Driver, LoadgenError> {
        let known = || self.0.keys().copied().collect::<Vec<_>>().join(", ");
        let driver = self.0.get(protocol).map(AsRef::as_ref);
        driver.ok_or_else(|| LoadgenError::Arguments(format!("no driver for protocol {protocol:?}, only {}", known())))
    }
}

impl fmt::Debug for Drivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::example;

    /// A driver whose clients do nothing.
    struct Idle;

    struct IdleRun(Arc<Layout>, Arc<Plan>);

    impl Driver for Idle {
        fn protocol(&self) -> &'static str {
            "idle"
        }

        fn prepare(&self, Assignment { plan, layout, .. }: Assignment) -> DriverFuture<'_, Box<dyn DriverRun>> {
            Box::pin(async move { Ok(Box::new(IdleRun(layout, plan)) as Box<dyn DriverRun>) })
        }
    }

    impl DriverRun for IdleRun {
        fn start(&mut self, _: u64) {}

        fn status(&self) -> Status {
            Status::default()
        }

        fn take_failure(&self) -> Option<LoadgenError> {
            None
        }

        fn stop_publishing(&self) {}

        fn finish(self: Box<Self>) -> DriverFuture<'static, Part> {
            let mut recorder = crate::run::Recorder::new(Arc::clone(&self.0), &self.1, 0);
            recorder.connected(std::time::Duration::from_millis(1), 1_000_000);
            Box::pin(async move { Ok(recorder.into_part()) })
        }
    }

    #[test]
    fn plan_protocol_selects_the_driver() {
        let plan = Plan { protocol: "idle".into(), ..example::plan(vec![]) };
        let drivers = Drivers::mqtt().with(Idle);
        let outcome = crate::run::run_plan_with(&plan, &drivers).unwrap();
        assert_eq!((outcome.connections.accepted, &outcome.plan.protocol[..]), (1, "idle"));
        let unknown = Plan { protocol: "smoke".into(), ..plan };
        let error = crate::run::run_plan_with(&unknown, &drivers).unwrap_err().to_string();
        assert_eq!(error, "no driver for protocol \"smoke\", only idle, mqtt");
    }
}
