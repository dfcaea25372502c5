//! A node of a cluster: passes events to the role machine, and performs its actions.
//!
//! ```text
//!   cluster port, links, engine, copies, broker ── Event ──► Node ── Input ──► Machine
//!                      ▲                                      │ ◄── Action ──────┘
//!                      └──────────── tasks and threads ◄──────┘
//! ```
//!
//! The node has a thread: its beacons and answers must not wait for clients.

mod copies;
mod links;
mod mark;
mod peers;
mod perform;
mod report;
mod serving;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use tenbin_broker::config::{self, Config};
use tenbin_broker::{Broker, Lease, OpenSockets};
use tenbin_cluster::{
    Action, Agreement, Hello as NodeHello, Input, LinkEnd, Machine, Names, Node as NodeNumber, Record, Settings,
    StoredRecord, Timing,
};
use tenbin_store::mirror::{self, Copy, CopyEvent};
use tenbin_store::state::State;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::agreement::{Agreement as Engine, Etcd, Read, Swapped};
use super::control::{self, ControlAnswer, ControlRequest, ControlServer};
use super::link::listen::{Accepted, ClusterPort};
use super::relay::Relay;
use copies::LeaderCopies;
use links::{FromLeaderLink, FromLink, LeaderLinks, LinkId, StandbyLinkTask};
use mark::NodeDirectory;
pub(crate) use serving::MakeBuilder;
use serving::Serving;

/// Something that happened to a node.
#[derive(Debug)]
enum Event {
    Accepted(Accepted),
    FromStandby {
        node: NodeNumber,
        id: LinkId,
        message: FromLink,
    },
    FromLeader {
        leader: NodeNumber,
        id: LinkId,
        message: FromLeaderLink,
    },
    Probed {
        node: NodeNumber,
        end: LinkEnd,
    },
    Read(Read),
    Swapped(Swapped),
    /// The record that another node knows.
    PeerRecord(StoredRecord),
    MarkDone {
        input: Input,
        result: Result<(), String>,
    },
    CopyBegun {
        session: u64,
        copy: Result<Copy, String>,
    },
    CopyEnded {
        session: u64,
        event: CopyEvent,
    },
    NotJoined {
        session: u64,
        error: String,
    },
    Mirror(mirror::Event),
    BrokerStarted(Result<Arc<Broker>, String>),
    BrokerClosed,
    Command(ControlRequest, oneshot::Sender<ControlAnswer>),
    Stop,
}

/// Sends events to the node. They are lost once the node has ended.
#[derive(Debug, Clone)]
struct Events(mpsc::Sender<Event>);

impl Events {
    /// Sends an event of this node. Each action causes one at most, so that there is room.
    ///
    /// A node that is so far behind lost its lease long ago. It must not lose an event, so its process ends.
    fn send(&self, event: Event) {
        if let Err(mpsc::error::TrySendError::Full(event)) = self.0.try_send(event) {
            tracing::error!(?event, "ending the process: the node does not keep up with its events");
            std::process::abort();
        }
    }

    /// Sends an event that another party causes, or drops it if the node is behind.
    fn offer(&self, event: Event) {
        let _ = self.0.try_send(event);
    }

    /// Sends an event of another node, once there is room.
    async fn pass(&self, event: Event) {
        let _ = self.0.send(event).await;
    }
}

/// Events that wait for the node.
const EVENTS_MAX: usize = 4096;

/// A running node.
#[derive(Debug)]
pub(crate) struct RunningNode {
    events: Events,
    broker: Arc<Mutex<Weak<Broker>>>,
    addresses: Vec<SocketAddr>,
    ended: oneshot::Receiver<()>,
}

impl RunningNode {
    /// The broker, while this node leads.
    pub(crate) fn broker(&self) -> Option<Arc<Broker>> {
        self.broker.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// Addresses at which clients connect.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Waits for the end of the node: after [`Self::stop`], or when its thread has panicked.
    pub(crate) async fn ended(&mut self) {
        let _ = (&mut self.ended).await;
    }

    /// Asks the node to end. A leader ends its broker; its follower takes over at once.
    pub(crate) fn stop(&self) {
        self.events.send(Event::Stop);
    }
}

/// Starts the node of a configuration on a thread. `runtime` serves the broker and relayed clients.
///
/// # Errors
/// The data directory, an address or the thread cannot be had. The text names it.
pub(crate) async fn start(config: Config, make: MakeBuilder, runtime: Handle) -> Result<RunningNode, String> {
    let (sender, received) = mpsc::channel(EVENTS_MAX);
    let events = Events(sender);
    let broker = Arc::<Mutex<Weak<Broker>>>::default();
    let (has_begun, begun) = oneshot::channel();
    let (has_ended, ended) = oneshot::channel();
    let (of_node, current) = (events.clone(), Arc::clone(&broker));
    let work = move || {
        let own = Builder::new_current_thread().enable_all().build();
        let own = match own {
            Ok(own) => own,
            Err(error) => return drop(has_begun.send(Err(error.to_string()))),
        };
        own.block_on(async move {
            match Node::begin(config, make, runtime, of_node, current).await {
                Ok((node, port, control)) => {
                    let addresses = node.sockets.as_ref().map(OpenSockets::addresses).unwrap_or_default();
                    let _ = has_begun.send(Ok(addresses));
                    node.run(received, port, control).await;
                }
                Err(error) => drop(has_begun.send(Err(error))),
            }
        });
        // A directory that cannot be written keeps a thread busy.
        own.shutdown_background();
        let _ = has_ended.send(());
    };
    let thread = thread::Builder::new().name("tenbin-node".to_owned()).spawn(work);
    thread.map_err(|error| format!("cannot start the thread of the node: {error}"))?;
    match begun.await {
        Ok(begun) => begun.map(|addresses| RunningNode { events, broker, addresses, ended }),
        Err(_) => Err("the node has panicked".to_owned()),
    }
}

/// A node's parts.
struct Node {
    config: Config,
    names: Names,
    own: NodeNumber,
    machine: Machine,
    /// Time of the machine's last input.
    last_input: Duration,
    directory: Arc<NodeDirectory>,
    boot_id: String,
    /// The directory has a store and no mark: a standalone broker's, which no copy may replace.
    is_foreign: bool,
    /// `None` with manual agreement.
    engine: Option<Engine>,
    make: MakeBuilder,
    runtime: Handle,
    events: Events,
    current: Arc<Mutex<Weak<Broker>>>,

    links: LeaderLinks,
    link: Option<StandbyLinkTask>,
    last_link: u64,
    /// Content of the next hello.
    hello: Arc<Mutex<NodeHello>>,
    copies: LeaderCopies,
    copy: CopyTask,
    serving: Option<Serving>,
    sockets: Option<OpenSockets>,
    /// Ports of the listeners.
    ports: Vec<u16>,
    relay: Option<Relay>,
    leader_address: watch::Sender<Option<String>>,
    /// When the copy has confirmed something last, and how much.
    confirmed: Option<Confirmed>,
    promotions: Vec<oneshot::Sender<ControlAnswer>>,
    report: report::Report,
}

/// The copy at this node.
#[derive(Debug)]
enum CopyTask {
    None,
    /// Its connections are being opened.
    Beginning {
        session: u64,
        _task: links::AbortOnDrop,
    },
    Present {
        session: u64,
        copy: Copy,
    },
}

/// Confirmations of the copy that a leader waits for.
#[derive(Debug, Clone, Copy)]
struct Confirmed {
    session: u64,
    numbers: [u64; 2],
    at: Duration,
}

impl Node {
    async fn begin(
        config: Config,
        make: MakeBuilder,
        runtime: Handle,
        events: Events,
        current: Arc<Mutex<Weak<Broker>>>,
    ) -> Result<(Self, TcpListener, Option<ControlServer>), String> {
        let cluster = &config.cluster;
        let own_node = cluster.own().ok_or("cluster: node: this node is not in nodes")?.clone();
        let directory = NodeDirectory::open(&config.store.directory)?;
        let mut names = Names::new(cluster.nodes.iter().map(|node| &node.name))
            .map_err(|error| format!("cluster: nodes: {error}"))?;
        let own = names.number(&own_node.name).map_err(|error| error.to_string())?;
        let boot_id = mark::boot_id().map_err(|error| format!("cannot read the boot id: {error}"))?;
        let mark = directory.read_mark()?.map(|mark| mark.mark(&cluster.name, &own_node.name, &boot_id, &mut names));
        let mark = mark.transpose().map_err(|error| format!("{}: {error}", directory.path().display()))?;
        let is_foreign = mark.is_none() && !State::is_blank(directory.path()).map_err(|error| error.to_string())?;
        let port = TcpListener::bind(cluster.listen).await;
        let port = port.map_err(|error| format!("cluster: cannot listen on {}: {error}", cluster.listen))?;
        let sockets = OpenSockets::open(&config).await.map_err(|error| error.to_string())?;
        let agreement = match cluster.agreement {
            config::Agreement::Manual => {
                let first = names.number(&cluster.nodes[0].name).map_err(|error| error.to_string())?;
                Agreement::Manual { first }
            }
            _ => Agreement::Engine,
        };
        let engine = match agreement {
            Agreement::Engine => {
                let endpoints: Vec<String> = cluster.etcd.iter().map(|url| url.expose().to_owned()).collect();
                let etcd = Etcd::new(&endpoints, &cluster.name, ENGINE_DEADLINE);
                Some(Engine::Etcd(etcd.map_err(|error| format!("cluster: etcd: {error}"))?))
            }
            Agreement::Manual { .. } => None,
        };
        let settings = Settings {
            is_sync_always: config.store.sync() == tenbin_store::Sync::Always,
            copies_minimum: cluster.copies_minimum(),
            timing: Timing::new(cluster.lease(), cluster.dead_after(), cluster.replace_after()),
            ..Settings::new(own, agreement, nonce())
        };
        let machine = Machine::new(settings, mark, Lease::now());
        let control = ControlServer::bind(&directory.path().join(control::SOCKET));
        let control = control.inspect_err(|error| {
            tracing::warn!(%error, "cannot open the socket for `tenbin cluster status` and `promote`");
        });
        let mut node = Self {
            hello: Arc::new(Mutex::new(machine.hello())),
            config,
            names,
            own,
            machine,
            last_input: Lease::now(),
            directory: Arc::new(directory),
            boot_id,
            is_foreign,
            engine,
            make,
            runtime,
            events,
            current,
            links: LeaderLinks::default(),
            link: None,
            last_link: 0,
            copies: LeaderCopies::default(),
            copy: CopyTask::None,
            serving: None,
            ports: sockets.addresses().iter().map(SocketAddr::port).collect(),
            sockets: Some(sockets),
            relay: None,
            leader_address: watch::Sender::new(None),
            confirmed: None,
            promotions: Vec::new(),
            report: report::Report::default(),
        };
        node.start_relay();
        Ok((node, port, control.ok()))
    }

    /// Runs until the machine has stopped.
    async fn run(mut self, mut events: mpsc::Receiver<Event>, port: TcpListener, control: Option<ControlServer>) {
        let cluster = &self.config.cluster;
        let rules = ClusterPort { cluster: cluster.name.clone(), plain_from: cluster.plain_from().to_vec() };
        let sender = self.events.clone();
        let accepting = tokio::spawn(rules.serve(port, move |accepted| sender.offer(Event::Accepted(accepted))));
        let _accepting = links::AbortOnDrop(accepting.abort_handle());
        let _commands = control.map(|control| links::AbortOnDrop(self.serve_commands(control).abort_handle()));
        let mut next_look = tokio::time::interval(LOOK_EVERY);
        next_look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_stopped = self.input(Input::Tick).await;
        while !is_stopped {
            let due = self.machine.next_tick(self.last_input).map(|at| at.saturating_sub(Lease::now()));
            let tick = async {
                match due {
                    Some(due) => sleep(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(event) = events.recv() => is_stopped = self.event(event).await,
                () = tick => is_stopped = self.input(Input::Tick).await,
                _ = next_look.tick() => is_stopped = self.look().await,
            }
        }
        if let Some(relay) = self.relay.take() {
            relay.stop().await;
        }
        self.links.farewells_said().await;
    }

    fn serve_commands(&self, control: ControlServer) -> tokio::task::JoinHandle<()> {
        let events = self.events.clone();
        tokio::spawn(async move {
            let handle = move |request| {
                let (answer, answered) = oneshot::channel();
                events.offer(Event::Command(request, answer));
                async { answered.await.unwrap_or(ControlAnswer::Failed { error: "the node has ended".to_owned() }) }
            };
            control.serve(handle).await;
        })
    }

    /// Passes an input to the machine, and does what it says. True: the node has stopped.
    async fn input(&mut self, input: Input) -> bool {
        let (mut inputs, mut actions) = (VecDeque::from([input]), Vec::new());
        let mut is_stopped = false;
        while let Some(input) = inputs.pop_front() {
            self.last_input = Lease::now();
            self.machine.handle(self.last_input, input, &mut actions);
            *self.hello.lock().unwrap_or_else(PoisonError::into_inner) = self.machine.hello();
            self.follow_leader();
            for action in actions.drain(..) {
                is_stopped |= action == Action::Stopped;
                inputs.extend(self.perform(action).await);
            }
        }
        is_stopped
    }

    /// Tells the relay where the leader is.
    fn follow_leader(&self) {
        let address = self.machine.leader().map(|leader| self.address(leader));
        self.leader_address.send_if_modified(|old| {
            let is_other = *old != address;
            *old = address;
            is_other
        });
    }

    /// Address of a node's cluster port. A node that is not configured has none that could be reached.
    fn address(&self, node: NodeNumber) -> String {
        let name = self.names.name(node);
        let known = self.config.cluster.nodes.iter().find(|known| known.name == name);
        known.map_or_else(|| format!("{name}:0"), |known| known.address.clone())
    }

    fn stored(&self, record: &Record) -> StoredRecord {
        StoredRecord::new(record, &self.names)
    }

    /// The node of the configuration with this name.
    fn known(&mut self, name: &str) -> Option<NodeNumber> {
        let is_known = self.config.cluster.nodes.iter().any(|node| node.name == name);
        is_known.then(|| self.names.number(name).ok()).flatten().filter(|&node| node != self.own)
    }

    /// Starts the relay at the open sockets, unless the node has a broker.
    fn start_relay(&mut self) {
        let Some(sockets) = &self.sockets else { return };
        let _there = self.runtime.enter();
        match sockets.acceptors() {
            Ok(acceptors) => {
                self.relay = Some(Relay::start(acceptors, self.leader_address.subscribe(), &self.runtime));
            }
            Err(error) => tracing::error!(%error, "cannot accept clients for the leader"),
        }
    }

    /// What is to be looked at from time to time. True: the node has stopped.
    async fn look(&mut self) -> bool {
        if self.serving.is_none() && self.relay.is_none() {
            if self.sockets.is_none() {
                match OpenSockets::open(&self.config).await {
                    Ok(sockets) => self.sockets = Some(sockets),
                    // The broker's sockets close when its last connection ends.
                    Err(error) => self.report.not_listening(&error.to_string()),
                }
            }
            self.start_relay();
        }
        match self.stuck_copy() {
            Some(session) => {
                tracing::warn!(session, "the copy confirms nothing, although its node answers");
                self.input(Input::CopyFailed { session }).await
            }
            None => false,
        }
    }

    /// The session of a copy that owes confirmations and gives none.
    fn stuck_copy(&mut self) -> Option<u64> {
        let confirmed = self.confirmed.as_mut()?;
        let stats = self.serving.as_ref()?.mirror.stats();
        let now = Lease::now();
        let numbers = [stats.log_confirmed, stats.state_confirmed];
        let is_behind = stats.log_behind > 0 && numbers[0] == confirmed.numbers[0]
            || stats.state_behind > 0 && numbers[1] == confirmed.numbers[1];
        if !is_behind {
            (confirmed.numbers, confirmed.at) = (numbers, now);
        }
        let is_stuck = now.saturating_sub(confirmed.at) > STUCK_AFTER;
        // Once: the machine knows it then.
        self.confirmed.take_if(|_| is_stuck).map(|confirmed| confirmed.session)
    }
}

/// A number that no other process of the cluster has.
fn nonce() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one((SystemTime::now(), std::process::id()))
}

fn clock_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// Longest answer of the engine.
const ENGINE_DEADLINE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Silence of a copy's disk after which the leader goes on without it.
const STUCK_AFTER: Duration = Duration::from_secs(2);
