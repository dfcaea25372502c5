//! A node of a cluster: passes events to the role machine, and performs its actions.
//!
//! ```text
//!   cluster port, links, engine, copies, broker ── Event ──► Node ── Input ──► Machine
//!                      ▲                                      │ ◄── Action ──────┘
//!                      └──────────── tasks and threads ◄──────┘
//! ```
//!
//! The node has a thread: its beacons and answers must not wait for clients.

mod admin;
mod checks;
mod copies;
mod disk;
mod events;
mod links;
mod look;
mod mark;
mod moves;
mod namesakes;
mod operators;
mod peers;
mod perform;
mod report;
mod sealing;
mod serving;
mod words;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use tenbin_broker::config::{self, Config};
use tenbin_broker::{Broker, Lease, NodeAdmin, OpenSockets};
use tenbin_cluster::{
    Action, Agreement, Hello as NodeHello, Input, Machine, Names, Node as NodeNumber, Record, Role, Settings,
    StoredRecord, Timing,
};
use tenbin_store::mirror::{Copy, CopyReader};
use tenbin_store::state::State;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::agreement::Agreement as Engine;
use super::control::{self, ControlAnswer, ControlServer};
use super::link::listen::ClusterPort;
use super::link::secure::NodeTls;
use super::relay::Relay;
use copies::LeaderCopies;
use events::{Event, Events};
use links::{LeaderLinks, StandbyLinkTask};
use look::Confirmed;
use mark::NodeDirectory;
pub(crate) use mark::{check_directory, leave_cluster};
use serving::MakeBuilder;
use serving::Serving;
pub(crate) use serving::{MakeBroker, state_copy};

/// A running node.
#[derive(Debug)]
pub(crate) struct RunningNode {
    events: Events,
    broker: Arc<Mutex<Weak<Broker>>>,
    addresses: Vec<SocketAddr>,
    admin_url: Option<String>,
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

    /// Address of its admin HTTP; `None` = it has none.
    pub(crate) fn admin_url(&self) -> Option<&str> {
        self.admin_url.as_deref()
    }

    /// Waits for the end of the node: after [`Self::stop`], or when its thread has panicked.
    pub(crate) async fn ended(&mut self) {
        let _ = (&mut self.ended).await;
    }

    /// Asks the node to end. A leader lets its follower take over first; at the second call it ends at once.
    pub(crate) fn stop(&self) {
        self.events.send(Event::Stop);
    }
}

/// Starts the node of a configuration on a thread. `runtime` serves the broker and relayed clients.
///
/// # Errors
/// The data directory, an address or the thread cannot be had. The text names it.
pub(crate) async fn start(config: Config, make: MakeBuilder, runtime: Handle) -> Result<RunningNode, String> {
    let (events, received) = Events::channel();
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
                    let admin = node.admin.as_ref().map(|admin| admin.url());
                    let _ = has_begun.send(Ok((addresses, admin)));
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
        Ok(begun) => begun.map(|(addresses, admin_url)| RunningNode { events, broker, addresses, admin_url, ended }),
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
    namesakes: namesakes::Namesakes,
    /// The directory has a store that no mark calls a copy: a standalone broker's, which no copy may replace.
    is_foreign: bool,
    /// `None` = nodes connect without TLS.
    tls: Option<Arc<NodeTls>>,
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
    sealing: sealing::Sealing,
    serving: Option<Serving>,
    sockets: Option<OpenSockets>,
    /// Listeners of this node: see [`OpenSockets::ports`].
    ports: Vec<(Arc<str>, Arc<str>, u16)>,
    /// Ports of other nodes for clients, by the names of listeners in headers of relayed clients.
    peer_ports: HashMap<NodeNumber, BTreeMap<String, u16>>,
    /// The follower that the broker knows; `None`: it has not been told.
    moves_to: Option<Option<NodeNumber>>,
    relay: Option<Relay>,
    leader_address: watch::Sender<Option<String>>,
    /// The copy at this node while it follows: the relay reads messages from it.
    complete_copy: watch::Sender<Option<Arc<CopyReader>>>,
    /// When the copy has confirmed something last, and how much.
    confirmed: Option<Confirmed>,
    promotions: Vec<oneshot::Sender<ControlAnswer>>,
    switches: Vec<oneshot::Sender<ControlAnswer>>,
    /// The process is to end.
    is_stopping: bool,
    /// No handover for the disk's sake before.
    next_handover: Duration,
    /// When the copy is compared next; `None` = there is none.
    next_check: Option<Duration>,
    /// `None` = admin HTTP is off.
    admin: Option<Arc<NodeAdmin>>,
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
        let node = (&cluster.name[..], &own_node.name[..]);
        let mark = directory.read_mark()?;
        let mark = mark.map(|mark| mark::of_node(&mark, directory.path(), node, &boot_id, &mut names)).transpose()?;
        let namesakes = namesakes::Namesakes::in_directory(&directory, mark.map(|mark| mark.record.directory_of(own)))?;
        let has_copy = mark.is_some_and(|mark| mark.record.role_of(own) != Role::Spare);
        let is_foreign = !has_copy && !State::is_blank(directory.path()).map_err(|error| error.to_string())?;
        let tls = NodeTls::load(cluster)?;
        if let Some(error) = tls.as_ref().and_then(|tls| tls.refusal(Duration::ZERO)) {
            // It may be renewed soon, or the clock is wrong: clients are served in the meantime.
            tracing::error!(error, "nodes with the same `ca` refuse this node's certificate");
        }
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
        let engine = Engine::open(cluster)?;
        let settings = Settings {
            is_sync_always: config.store.sync() == tenbin_store::Sync::Always,
            copies_minimum: cluster.copies_minimum(),
            timing: Timing::new(cluster.lease(), cluster.dead_after(), cluster.replace_after()),
            directory: namesakes.directory,
            ..Settings::new(own, agreement, namesakes.process)
        };
        let machine = Machine::new(settings, mark, Lease::now());
        let admin = admin::start(&config, &events)?;
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
            namesakes,
            is_foreign,
            tls,
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
            sealing: sealing::Sealing::default(),
            serving: None,
            ports: sockets.ports(),
            peer_ports: HashMap::new(),
            moves_to: None,
            sockets: Some(sockets),
            relay: None,
            leader_address: watch::Sender::new(None),
            complete_copy: watch::Sender::new(None),
            confirmed: None,
            promotions: Vec::new(),
            switches: Vec::new(),
            is_stopping: false,
            next_handover: Duration::ZERO,
            next_check: None,
            admin,
            report: report::Report::begin(),
        };
        node.start_relay();
        node.look_for_namesake();
        Ok((node, port, control.ok()))
    }

    /// Runs until the machine has stopped.
    async fn run(mut self, mut events: mpsc::Receiver<Event>, port: TcpListener, control: Option<ControlServer>) {
        let cluster = &self.config.cluster;
        let rules = ClusterPort {
            cluster: cluster.name.clone(),
            plain_from: cluster.plain_from().to_vec(),
            refusals: Arc::clone(&self.report.refusals),
            tls: self.tls.clone(),
        };
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
        self.sealing.finish().await;
    }

    fn serve_commands(&self, control: ControlServer) -> tokio::task::JoinHandle<()> {
        let (events, backups) = (self.events.clone(), Arc::clone(&self.report.backups));
        tokio::spawn(async move {
            let handle = move |request| {
                let (answer, answered) = oneshot::channel();
                events.offer(Event::Command(request, answer));
                async { answered.await.unwrap_or(ControlAnswer::Failed { error: "the node has ended".to_owned() }) }
            };
            control.serve(backups, handle).await;
        })
    }

    /// Passes an input to the machine, and performs its actions. True: the node has stopped.
    async fn input(&mut self, input: Input) -> bool {
        let (mut inputs, mut actions) = (VecDeque::from([input]), Vec::new());
        let mut is_stopped = false;
        while let Some(input) = inputs.pop_front() {
            self.last_input = Lease::now();
            self.machine.handle(self.last_input, input, &mut actions);
            *self.hello.lock().unwrap_or_else(PoisonError::into_inner) = self.machine.hello();
            self.follow_leader();
            self.show_copy();
            self.show_follower();
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
                let (leader, copy) = (self.leader_address.subscribe(), self.complete_copy.subscribe());
                let (tls, of_gateways) = (self.tls.clone(), OpenSockets::of_gateways(&self.config));
                self.relay = Some(Relay::start(acceptors, of_gateways, leader, copy, tls, &self.runtime));
            }
            Err(error) => tracing::error!(%error, "cannot accept clients for the leader"),
        }
    }
}

fn clock_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

const LOOK_EVERY: Duration = Duration::from_millis(100);
