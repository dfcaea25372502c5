//! A cluster of three real machines in virtual time, for the simulation: processes, disks, clocks and the engine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::bits::{Bits, Random};
use crate::event::{Action, Input, Swapped, Unreachable};
use crate::machine::Machine;
use crate::node::Node;
use crate::record::{Mark, Record};
use crate::settings::{Agreement, Settings};

/// Number of nodes.
pub(super) const NODES: usize = 3;
/// A millisecond: times are in µs.
pub(super) const MS: u64 = 1_000;

/// All of a cluster.
#[derive(Debug)]
pub(super) struct Plant {
    pub(super) now: u64,
    /// Events until now.
    pub(super) steps: u64,
    queue: BinaryHeap<Reverse<Timed>>,
    pub(super) random: Random,
    pub(super) nodes: [Host; NODES],
    pub(super) record: Option<Record>,
    pub(super) is_engine_up: bool,
    /// Requests for a change that the engine may still execute.
    pub(super) changes: u64,
    /// Packets from a node to another one are lost.
    pub(super) cuts: [[bool; NODES]; NODES],
    pub(super) acked_two: Bits,
    pub(super) acked_one: Bits,
    published: usize,
    /// Answers are lost and late.
    pub(super) is_lossy: bool,
    pub(super) violation: Option<&'static str>,
    /// An operator has accepted the loss of messages.
    pub(super) is_loss_accepted: bool,
    pub(super) settings: Settings,
}

/// A node with its disk and clock.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) machine: Option<Machine>,
    /// Number of the process: events of an earlier one are void.
    pub(super) process: u64,
    pub(super) is_frozen: bool,
    /// The machine is off, so that its ports refuse nothing.
    pub(super) is_off: bool,
    pub(super) is_cut_from_engine: bool,
    /// The directory takes no copy, until the process ends.
    pub(super) is_full: bool,
    waiting: Vec<Input>,
    /// Rate of the clock, in millionths.
    rate: u64,
    /// Number of the directory.
    directory: u64,
    pub(super) messages: Bits,
    pub(super) durable: Bits,
    pub(super) mark: Option<Mark>,
    tick_at: Option<u64>,
    is_broker_open: bool,
    pub(super) is_held: bool,
    /// The link to the leader.
    pub(super) link: Option<Link>,
    pub(super) links: u64,
    /// Generations of the links to this node.
    pub(super) peers: [u64; NODES],
    /// When the last line to each standby arrives: lines of a link keep their order.
    pub(super) last_line: [u64; NODES],
    pub(super) mirror: Option<Mirror>,
    /// This node's copy: leader, session, and whether the leader has accepted it.
    pub(super) copy: Option<(usize, u64, bool)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) to: usize,
    pub(super) generation: u64,
    pub(super) is_up: bool,
}

/// The copy at another node.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    pub(super) node: usize,
    pub(super) session: u64,
    pub(super) is_used: bool,
    pub(super) is_live: bool,
    pub(super) is_failed: bool,
    pub(super) is_required: bool,
    pub(super) must_confirm: Option<Bits>,
    pub(super) confirmed: Bits,
}

#[derive(Debug)]
pub(super) enum Event {
    /// To a node's process.
    Input(usize, u64, Input),
    /// To a standby or its leader, over the link of a generation.
    ToStandby(usize, u64, Input),
    ToLeader(usize, usize, u64, Input),
    Tick(usize, u64),
    MarkDone(usize, u64, Record),
    Synced(usize, u64, Bits),
    Execute(usize, u64, Call, bool),
    Dial(usize, u64),
    BreakLink(usize, u64),
    DialCopy(usize, u64),
    CopyDone(usize, u64),
    Confirm(usize, u64, Bits),
    Publish,
    Pump,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Read,
    Swap(u64, Record),
}

#[derive(Debug)]
struct Timed(u64, u64, Event);

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Timed {}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

impl Plant {
    /// A cluster whose clocks are too fast or too slow by `drift` millionths.
    pub(super) fn new(seed: u64, settings: Settings, drift: u64) -> Self {
        let mut plant = Self {
            now: 10_000 * MS,
            steps: 0,
            queue: BinaryHeap::new(),
            random: Random(seed),
            nodes: std::array::from_fn(|_| Host::default()),
            record: None,
            is_engine_up: true,
            changes: 0,
            cuts: [[false; NODES]; NODES],
            acked_two: Bits::default(),
            acked_one: Bits::default(),
            published: 0,
            is_lossy: true,
            violation: None,
            is_loss_accepted: false,
            settings,
        };
        for n in 0..NODES {
            plant.nodes[n].directory = n as u64 + 1;
            plant.nodes[n].rate = 1_000_000 - drift + plant.random.below(2) * 2 * drift;
            plant.start(n);
        }
        plant.after(0, Event::Publish);
        plant.after(0, Event::Pump);
        plant
    }

    pub(super) fn after(&mut self, delay: u64, event: Event) {
        self.changes += u64::from(matches!(event, Event::Execute(_, _, Call::Swap(..), _)));
        self.steps += 1;
        self.queue.push(Reverse(Timed(self.now + delay, self.steps, event)));
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, time: u64) {
        let until = self.now + time;
        while self.queue.peek().is_some_and(|Reverse(next)| next.0 <= until) && self.violation.is_none() {
            let Some(Reverse(Timed(at, _, event))) = self.queue.pop() else { return };
            self.now = at;
            self.happen(event);
        }
        self.now = until;
    }

    /// The present of a node's clock.
    pub(super) fn clock(&self, n: usize) -> Duration {
        Duration::from_micros(self.now * self.nodes[n].rate / 1_000_000) + Duration::from_secs(n as u64)
    }

    pub(super) fn start(&mut self, n: usize) {
        let host = &mut self.nodes[n];
        host.process += 1;
        host.is_off = false;
        let nonce = host.process << 8 | n as u64;
        let (mark, directory) = (host.mark, host.directory);
        let settings = Settings { node: node(n), nonce, directory, ..self.settings };
        let now = self.clock(n);
        self.nodes[n].machine = Some(Machine::new(settings, mark, now));
        self.feed(n, Input::Tick);
    }

    /// Ends a process. Its requests to the engine go on.
    pub(super) fn kill(&mut self, n: usize) {
        self.break_links(n);
        let host = &mut self.nodes[n];
        let process = host.process + 1;
        let (messages, durable) = (std::mem::take(&mut host.messages), std::mem::take(&mut host.durable));
        let Host { rate, directory, mark, links, is_off, is_cut_from_engine, .. } = *host;
        *host = Host {
            process,
            messages,
            durable,
            rate,
            directory,
            mark,
            links: links + 1,
            is_off,
            is_cut_from_engine,
            ..Host::default()
        };
    }

    /// Deletes the directory of a node whose process has ended.
    pub(super) fn wipe(&mut self, n: usize) {
        let host = &mut self.nodes[n];
        (host.messages, host.durable, host.mark) = Default::default();
        host.directory += 1 << 8;
    }

    pub(super) fn thaw(&mut self, n: usize) {
        self.nodes[n].is_frozen = false;
        for input in std::mem::take(&mut self.nodes[n].waiting) {
            self.feed(n, input);
        }
        self.feed(n, Input::Tick);
    }

    pub(super) fn may_act(&self, n: usize) -> bool {
        let host = &self.nodes[n];
        !host.is_frozen && host.machine.as_ref().is_some_and(|machine| machine.may_act(self.clock(n)))
    }

    /// Copies that the leader counts.
    pub(super) fn copies(&self) -> u8 {
        let leader = (0..NODES).find(|n| self.may_act(*n));
        let machine = leader.and_then(|n| self.nodes[n].machine.as_ref().map(|machine| (n, machine)));
        machine.map_or(0, |(n, machine)| machine.status(self.clock(n)).copies)
    }

    /// State of all nodes, for failed tests.
    pub(super) fn summary(&self) -> String {
        let host = |n: usize| {
            let host = &self.nodes[n];
            let status = host.machine.as_ref().map(|machine| machine.status(self.clock(n)));
            format!(
                "{n}: {status:?} mark {:?} link {:?} peers {:?} copy {:?}",
                host.mark, host.link, host.peers, host.copy
            )
        };
        format!("record {:?}\n{}", self.record, (0..NODES).map(host).collect::<Vec<_>>().join("\n"))
    }

    pub(super) fn input(&mut self, n: usize, delay: u64, input: Input) {
        let process = self.nodes[n].process;
        self.after(delay, Event::Input(n, process, input));
    }

    /// Gives an input to a machine, and performs its actions.
    pub(super) fn feed(&mut self, n: usize, input: Input) {
        let now = self.clock(n);
        let host = &mut self.nodes[n];
        if host.is_frozen {
            host.waiting.push(input);
            return;
        }
        let Some(machine) = host.machine.as_mut() else { return };
        let mut actions = Vec::new();
        machine.handle(now, input, &mut actions);
        for action in actions {
            self.perform(n, action);
        }
        self.check();
        let Some(at) = self.nodes[n].machine.as_ref().and_then(|machine| machine.next_tick(now)) else { return };
        let host = &mut self.nodes[n];
        let local = u64::try_from(at.saturating_sub(Duration::from_secs(n as u64)).as_micros()).unwrap_or(0);
        let at = (local * 1_000_000).div_ceil(host.rate).max(self.now + 1);
        if host.tick_at.is_none_or(|earlier| at < earlier) {
            host.tick_at = Some(at);
            let process = host.process;
            self.after(at - self.now, Event::Tick(n, process));
        }
    }

    fn check(&mut self) {
        let mut acting = (0..NODES).filter(|n| self.may_act(*n));
        let Some(leader) = acting.next() else { return };
        if self.is_manual() {
            return;
        }
        if acting.next().is_some() {
            self.violation = Some("two nodes act");
        }
        let messages = &self.nodes[leader].messages;
        if self.is_loss_accepted {
            return;
        }
        if !messages.has_all(&self.acked_two) || !messages.has_all(&self.acked_one) {
            self.violation = Some("the leader lacks an acknowledged message");
        }
    }

    pub(super) fn is_manual(&self) -> bool {
        matches!(self.settings.agreement, Agreement::Manual { .. })
    }

    fn perform(&mut self, n: usize, action: Action) {
        let process = self.nodes[n].process;
        let is_slow = self.is_lossy && self.random.percent(2);
        let disk = if is_slow { self.random.below(500 * MS) } else { self.random.below(8 * MS) };
        let is_manual = self.is_manual();
        let host = &mut self.nodes[n];
        match action {
            Action::Read if is_manual => self.exchange_records(n),
            Action::Read => self.call(n, Call::Read),
            Action::Swap { expected, record } => self.call(n, Call::Swap(expected, record)),
            Action::WriteMark(record) => self.after(disk, Event::MarkDone(n, process, record)),
            Action::OpenBroker => {
                host.is_broker_open = true;
                let open = self.random.between(20 * MS, 300 * MS);
                self.input(n, open, Input::BrokerOpened);
            }
            Action::StopBroker => {
                (host.is_broker_open, host.mirror) = (false, None);
                self.input(n, disk, Input::BrokerClosed);
            }
            Action::SyncDisk => {
                let messages = host.messages.clone();
                self.after(disk, Event::Synced(n, process, messages));
            }
            Action::Hold => host.is_held = true,
            Action::Unhold => host.is_held = false,
            Action::StartCopy { .. } if host.is_broker_open => {
                self.violation = Some("a copy is written below an open broker");
            }
            Action::Stopped => self.kill(n),
            Action::SetAside => (host.messages, host.durable, host.mark) = Default::default(),
            _ => self.perform_between(n, action),
        }
    }

    /// Calls the engine. Some answers are lost, and some requests are executed late.
    fn call(&mut self, n: usize, call: Call) {
        let process = self.nodes[n].process;
        let is_away = !self.is_engine_up || self.nodes[n].is_cut_from_engine;
        let is_lost = self.is_lossy && self.random.percent(3);
        if !is_away && !is_lost {
            let delay = self.random.between(MS, 15 * MS);
            return self.after(delay, Event::Execute(n, process, call, true));
        }
        let latest = if self.random.percent(50) { 15 * MS } else { 3_000 * MS };
        let delay = self.random.below(latest);
        if self.is_lossy && self.random.percent(if is_away { 10 } else { 60 }) {
            self.after(delay, Event::Execute(n, process, call, false));
        }
        let answer = match call {
            Call::Read => Input::RecordRead(Err(Unreachable)),
            Call::Swap(..) => Input::Swapped(Swapped::Unknown),
        };
        self.input(n, 150 * MS, answer);
    }

    fn execute(&mut self, n: usize, process: u64, call: Call, is_answered: bool) {
        self.changes -= u64::from(matches!(call, Call::Swap(..)));
        if !self.is_engine_up {
            let answer = match call {
                Call::Read => Input::RecordRead(Err(Unreachable)),
                Call::Swap(..) => Input::Swapped(Swapped::Unknown),
            };
            return if is_answered {
                self.after(150 * MS, Event::Input(n, process, answer))
            };
        }
        let answer = match call {
            Call::Read => Input::RecordRead(Ok(self.record)),
            Call::Swap(expected, record) if self.record.map_or(0, |record| record.epoch) == expected => {
                self.record = Some(record);
                Input::Swapped(Swapped::Done)
            }
            Call::Swap(..) => Input::Swapped(Swapped::Refused),
        };
        if is_answered {
            let delay = self.random.below(10 * MS);
            self.after(delay, Event::Input(n, process, answer));
        }
    }

    fn happen(&mut self, event: Event) {
        let is_current = |n: usize, process: u64| self.nodes[n].process == process;
        match event {
            Event::Input(n, process, input) if is_current(n, process) => self.feed(n, input),
            Event::Tick(n, process) if is_current(n, process) => {
                self.nodes[n].tick_at = None;
                if !self.nodes[n].is_frozen {
                    self.feed(n, Input::Tick);
                }
            }
            Event::MarkDone(n, process, record) if is_current(n, process) => {
                self.nodes[n].mark = Some(Mark { record, is_same_boot: true });
                self.feed(n, Input::MarkWritten);
            }
            Event::Synced(n, process, messages) if is_current(n, process) => {
                self.nodes[n].durable.add(&messages);
                self.feed(n, Input::Synced);
            }
            Event::Execute(n, process, call, is_answered) => self.execute(n, process, call, is_answered),
            Event::Publish => self.publish(),
            Event::Pump => {
                (0..NODES).for_each(|n| self.pump(n));
                self.after(8 * MS, Event::Pump);
            }
            event => self.happen_between(event),
        }
    }

    /// Clients publish to each node that takes packets.
    fn publish(&mut self) {
        for n in 0..NODES {
            if self.may_act(n) {
                let host = &mut self.nodes[n];
                if self.random.percent(10) {
                    host.durable = host.messages.clone();
                }
                host.messages.insert(self.published);
                self.published += 1;
            }
        }
        self.after(20 * MS, Event::Publish);
    }

    /// The leader acknowledges messages.
    pub(super) fn acknowledge(&mut self, n: usize) {
        let host = &self.nodes[n];
        if !self.may_act(n) || host.is_held || self.acked_two.has_all(&host.messages) {
            return;
        }
        let mut messages = host.messages.clone();
        if let Some(mirror) = host.mirror.as_ref().filter(|mirror| mirror.is_required) {
            messages.keep(&mirror.confirmed);
        }
        if self.settings.is_sync_always {
            self.nodes[n].durable.add(&messages);
        }
        if self.copies() > 1 {
            self.acked_two.add(&messages);
        } else {
            self.acked_one.add(&messages);
        }
        let is_stale = self.record.is_none_or(|record| record.leader != node(n));
        if !self.is_manual() && !self.is_loss_accepted && is_stale {
            self.violation = Some("a stale leader acknowledges");
        }
    }
}

pub(super) fn node(n: usize) -> Node {
    Node(u8::try_from(n).unwrap_or(u8::MAX))
}
