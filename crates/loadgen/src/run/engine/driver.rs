use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::watch;

use super::addresses::{Addresses, place};
use super::control::Control;
use super::handshake::{Client, Connected, Greeting};
use super::link::Link;
use super::pacer::Pacer;
use super::shared::{Counters, Phase, Shared};
use crate::LoadgenError;
use crate::run::clock::RunClock;
use crate::run::{CutWhose, Layout, Plan, Recorder, Spread};

/// What all driver threads begin with.
#[derive(Debug, Clone)]
pub(super) struct Common {
    pub(super) plan: Arc<Plan>,
    pub(super) layout: Arc<Layout>,
    pub(super) clock: RunClock,
    pub(super) greeting: Arc<Greeting>,
    pub(super) addresses: Arc<Addresses>,
    pub(super) shared: Arc<Shared>,
    pub(super) stages: watch::Receiver<Stage>,
}

/// What is asked of all threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Subscribers connect and subscribe.
    Subscribe,
    /// Publishers connect, and whoever else there is.
    Connect,
    /// The load begins when the clock shows this.
    Run { start_ns: u64 },
    /// Nothing new is published.
    Drain,
    /// Connections are closed.
    End,
}

/// A driver thread, as its connections see it.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) common: Common,
    /// Its number.
    pub(super) thread: usize,
    /// What all connections read into.
    pub(super) buffer: RefCell<Vec<u8>>,
    pub(super) pacer: Pacer,
    recorder: RefCell<Recorder>,
    start_ns: Cell<u64>,
    /// By the number that connections have in the thread.
    controls: RefCell<Vec<Rc<Control>>>,
    /// Publishers that wait for the window to open.
    gate: RefCell<Vec<usize>>,
}

impl Driver {
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
            gate: RefCell::default(),
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.common.plan
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.common.layout
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.common.shared
    }

    pub(super) fn phase(&self) -> Phase {
        self.shared().phase()
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared().counters[self.thread]
    }

    /// The run's clock, now.
    pub(super) fn now_ns(&self) -> u64 {
        self.common.clock.now_ns()
    }

    /// When the load begins; `u64::MAX` until that is known.
    pub(super) fn start_ns(&self) -> u64 {
        self.start_ns.get()
    }

    /// The load begins when the clock shows `start_ns`.
    pub(super) fn start(&self, start_ns: u64) {
        self.start_ns.set(start_ns);
        self.recorder().start(start_ns);
    }

    /// This thread's recorder. Not to be kept across an `await`.
    pub(super) fn recorder(&self) -> RefMut<'_, Recorder> {
        self.recorder.borrow_mut()
    }

    /// All that was recorded.
    pub(super) fn into_recorder(self) -> Recorder {
        self.recorder.into_inner()
    }

    /// A client that connects to `broker`; `number` is that among its kind.
    pub(super) fn client(&self, id: String, broker: usize, number: u32, spread: Spread) -> Client {
        // Where connections are dealt over brokers, each broker's own are counted for the turns of its addresses.
        let turn = match spread {
            Spread::InTurns => number / self.plan().brokers.len().max(1) as u32,
            Spread::Broker(_) => number,
        };
        Client {
            id,
            place: place(&self.plan().brokers[broker]),
            host: self.plan().brokers[broker].host.clone(),
            addresses: self.common.addresses.in_turns(broker, turn).collect(),
            subscription: None,
            has_will: false,
        }
    }

    /// Connects `client` for the first time.
    ///
    /// # Errors
    /// As [`Greeting::open`].
    pub(super) async fn open(&self, client: &Client) -> Result<Connected, LoadgenError> {
        let connected = self.common.greeting.open(client).await.inspect_err(|_| self.recorder().refused())?;
        self.recorder().connected(connected.took, self.now_ns());
        Ok(connected)
    }

    /// Connects `client` again, with its session if it has one.
    ///
    /// # Errors
    /// As [`Greeting::open`].
    pub(super) async fn reopen(&self, client: &Client) -> Result<Connected, LoadgenError> {
        let connected = self.common.greeting.reopen(client).await.inspect_err(|_| self.recorder().refused())?;
        self.recorder().came_back(connected.connack.session_present);
        Ok(connected)
    }

    /// Closes the connection of `client`, if it has one, and leaves nothing of it at the broker.
    pub(super) async fn retire(&self, client: &Client, link: Option<Link>) {
        let greeting = &self.common.greeting;
        // Only a DISCONNECT of 5.0 can end a session.
        let is_over = !greeting.keeps_sessions() || (greeting.version().is_v5() && link.is_some());
        if let Some(link) = link {
            link.close(Some(&greeting.goodbye())).await;
        }
        if !is_over {
            // What a broker keeps that is not there any more is nobody's business.
            let _ = greeting.forget(client).await;
        }
    }

    /// Enters a connection under the number that it has in this thread.
    pub(super) fn enter(&self, whose: CutWhose, number: u32) -> (Rc<Control>, usize) {
        let control = Rc::new(Control::new(whose, number));
        let mut controls = self.controls.borrow_mut();
        controls.push(Rc::clone(&control));
        (control, controls.len() - 1)
    }

    /// The connections of this thread that can be cut.
    pub(super) fn controls(&self) -> Vec<Rc<Control>> {
        self.controls.borrow().clone()
    }

    /// Wakes connection `number`.
    pub(super) fn wake(&self, number: usize) {
        self.controls.borrow()[number].wake();
    }

    /// Wakes everybody, as where a new phase has begun.
    pub(super) fn wake_all(&self) {
        self.controls.borrow().iter().for_each(|control| control.wake());
    }

    /// Has connection `number` woken when the window opens.
    pub(super) fn wait_for_window(&self, number: usize) {
        self.gate.borrow_mut().push(number);
    }

    /// Wakes publishers whenever the window opens. Returns at once where there is none.
    pub(super) async fn keep_gate(&self) {
        let Some(window) = &self.shared().window else { return };
        let mut waiting = Vec::new();
        loop {
            window.rung(self.thread).await;
            std::mem::swap(&mut waiting, &mut self.gate.borrow_mut());
            waiting.drain(..).for_each(|number| self.wake(number));
        }
    }

    /// Ends when connections are to be closed.
    pub(super) async fn is_over(&self) {
        let mut stages = self.common.stages.clone();
        // Nobody is left to say more: it is over then.
        let _ = stages.wait_for(|stage| *stage == Stage::End).await;
    }

    /// Tells how much processor time the thread has used.
    pub(super) fn note_cpu(&self) {
        self.counters().note_cpu();
    }
}

/// Bytes that are read at once at most: large, so that one read takes all that has come, but not larger than the
/// processor's cache.
const BUFFER_SIZE: usize = 256 * 1024;
