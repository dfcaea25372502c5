use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::addresses::Addresses;
use super::control::Control;
use super::handshake::{ANSWER_LIMIT, Client, Connected, Connector, Door};
use super::link::Link;
use super::pacer::Pacer;
use super::shared::{Phase, SharedEngine};
use crate::LoadgenError;
use crate::run::clock::RunClock;
use crate::run::{Counters, CutWhose, Doors, Layout, OnLost, Plan, Recorder, Spread};

/// Common inputs of all driver threads.
#[derive(Debug, Clone)]
pub(super) struct Common {
    pub(super) plan: Arc<Plan>,
    pub(super) layout: Arc<Layout>,
    pub(super) clock: RunClock,
    pub(super) connector: Arc<Connector>,
    pub(super) addresses: Arc<Addresses>,
    pub(super) shared: Arc<SharedEngine>,
    pub(super) stages: watch::Receiver<RunStage>,
}

/// Stage of a run, as the engine commands it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RunStage {
    /// Subscribers connect and subscribe.
    Subscribe,
    /// Publishers and all remaining clients connect.
    Connect,
    /// The load begins at `start_ns` of the run's clock.
    Run { start_ns: u64 },
    /// Publishers send no new messages.
    Drain,
    /// Connections are closed.
    End,
}

/// State of a driver thread that its connections share.
#[derive(Debug)]
pub(super) struct DriverThread {
    pub(super) common: Common,
    /// Number of the thread.
    pub(super) thread: usize,
    /// Read buffer of all connections.
    pub(super) buffer: RefCell<Vec<u8>>,
    pub(super) pacer: Pacer,
    recorder: RefCell<Recorder>,
    start_ns: Cell<u64>,
    /// By the connection's number in the thread.
    controls: RefCell<Vec<Rc<Control>>>,
    /// Publishers that wait for the window to open.
    window_waiters: RefCell<Vec<usize>>,
}

impl DriverThread {
    pub(super) fn new(common: Common, thread: usize) -> Self {
        let recorder = Recorder::new(Arc::clone(&common.layout), &common.plan, u64::MAX);
        Self {
            common,
            thread,
            buffer: RefCell::new(vec![0; BUFFER_SIZE]),
            pacer: Pacer::default(),
            recorder: RefCell::new(recorder),
            start_ns: Cell::new(u64::MAX),
            controls: RefCell::default(),
            window_waiters: RefCell::default(),
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.common.plan
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.common.layout
    }

    pub(super) fn shared(&self) -> &SharedEngine {
        &self.common.shared
    }

    pub(super) fn phase(&self) -> Phase {
        self.shared().phase()
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared().counters[self.thread]
    }

    /// Current time of the run's clock.
    pub(super) fn now_ns(&self) -> u64 {
        self.common.clock.now_ns()
    }

    /// Start of the load; `u64::MAX` until it is known.
    pub(super) fn start_ns(&self) -> u64 {
        self.start_ns.get()
    }

    /// Sets the start of the load, by the run's clock.
    pub(super) fn start(&self, start_ns: u64) {
        self.start_ns.set(start_ns);
        self.recorder().start(start_ns);
    }

    /// This thread's recorder. Do not hold it across an `await`.
    pub(super) fn recorder(&self) -> RefMut<'_, Recorder> {
        self.recorder.borrow_mut()
    }

    /// Ends the driver; returns its recorder.
    pub(super) fn into_recorder(self) -> Recorder {
        self.recorder.into_inner()
    }

    /// A client that connects to `broker`; `number` is its number among its kind.
    pub(super) fn client(&self, id: String, broker: usize, number: u32, spread: Spread) -> Client {
        // If connections are dealt over brokers, each broker rotates its addresses over its own connections.
        let turn = match spread {
            Spread::InTurns => number / self.plan().brokers.len().max(1) as u32,
            Spread::Broker(_) => number,
        };
        let door = |broker: usize| Door {
            place: self.plan().brokers[broker].address(),
            host: self.plan().brokers[broker].host.clone(),
            addresses: self.common.addresses.in_turns(broker, turn).collect(),
        };
        let brokers = self.plan().brokers.len();
        let doors: Vec<_> = match self.plan().doors {
            Doors::Independent => vec![door(broker)],
            Doors::OneSystem => (broker..broker + brokers).map(|broker| door(broker % brokers)).collect(),
        };
        let answer_limit = match self.plan().on_lost {
            OnLost::Reconnect { most, .. } if doors.len() > 1 => most.clamp(FAIL_OVER_LIMIT, ANSWER_LIMIT),
            OnLost::Reconnect { .. } | OnLost::Fail => ANSWER_LIMIT,
        };
        let expects_answers = self.plan().on_lost.reconnects();
        let (turn, subscription, has_will, keep_alive) = (Cell::new(0), None, false, None);
        Client { id, doors, turn, answer_limit, expects_answers, subscription, has_will, keep_alive }
    }

    /// Connects `client` for the first time.
    ///
    /// # Errors
    /// As [`Connector::open`].
    pub(super) async fn open(&self, client: &Client) -> Result<Connected, LoadgenError> {
        let connected =
            self.common.connector.open(client).await.inspect_err(|_| self.recorder().refused(self.now_ns()))?;
        self.recorder().connected(connected.took, self.now_ns());
        Ok(connected)
    }

    /// Connects `client` again, with its session if it has one.
    ///
    /// # Errors
    /// As [`Connector::open`].
    pub(super) async fn reopen(&self, client: &Client) -> Result<Connected, LoadgenError> {
        let connected =
            self.common.connector.reopen(client).await.inspect_err(|_| self.recorder().refused(self.now_ns()))?;
        self.recorder().reconnected(connected.connack.session_present, self.now_ns());
        Ok(connected)
    }

    /// Closes the connection of `client`, if any, and removes its session from the broker.
    pub(super) async fn retire(&self, client: &Client, link: Option<Link>) {
        let connector = &self.common.connector;
        // Only a DISCONNECT of MQTT 5.0 can end a session.
        let is_over = !connector.keeps_sessions() || (connector.version().is_v5() && link.is_some());
        if let Some(link) = link {
            link.close(Some(&connector.goodbye())).await;
        }
        if !is_over {
            // An unreachable broker's sessions do not matter.
            let _ = connector.forget(client).await;
        }
    }

    /// Registers a connection; returns its handle and its number in this thread.
    pub(super) fn enter(&self, whose: CutWhose, number: u32) -> (Rc<Control>, usize) {
        let control = Rc::new(Control::new(whose, number));
        let mut controls = self.controls.borrow_mut();
        controls.push(Rc::clone(&control));
        (control, controls.len() - 1)
    }

    /// Handles of the connections of this thread.
    pub(super) fn controls(&self) -> Vec<Rc<Control>> {
        self.controls.borrow().clone()
    }

    /// Wakes connection `number`.
    pub(super) fn wake(&self, number: usize) {
        self.controls.borrow()[number].wake();
    }

    /// Wakes all connections, as at a new phase.
    pub(super) fn wake_all(&self) {
        self.controls.borrow().iter().for_each(|control| control.wake());
    }

    /// Registers connection `number` to be woken when the window opens.
    pub(super) fn wait_for_window(&self, number: usize) {
        self.window_waiters.borrow_mut().push(number);
    }

    /// Wakes waiting publishers whenever the window opens. Returns at once if there is no window.
    pub(super) async fn wake_window_waiters(&self) {
        let Some(window) = &self.shared().window else { return };
        let mut waiting = Vec::new();
        loop {
            window.opened(self.thread).await;
            std::mem::swap(&mut waiting, &mut self.window_waiters.borrow_mut());
            waiting.drain(..).for_each(|number| self.wake(number));
        }
    }

    /// Waits until the end of the run.
    pub(super) async fn is_over(&self) {
        let mut stages = self.common.stages.clone();
        // An error means that the engine is gone, which ends the run too.
        let _ = stages.wait_for(|stage| *stage == RunStage::End).await;
    }

    /// Records the thread's processor time.
    pub(super) fn note_cpu(&self) {
        self.counters().note_cpu();
    }
}

/// Shortest time limit of an attempt to connect, after which a client turns to another broker.
const FAIL_OVER_LIMIT: Duration = Duration::from_secs(1);

/// Size of the read buffer in bytes: large enough for all that has arrived, but no larger than the processor's cache.
const BUFFER_SIZE: usize = 256 * 1024;
