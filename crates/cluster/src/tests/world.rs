//! A small cluster around the real machines, for the search.

use std::time::Duration;

use super::happening::Event;
use crate::event::{Action, Input, LinkEnd, Swapped};
use crate::machine::Machine;
use crate::node::Node;
use crate::record::{Mark, Record};
use crate::settings::{Agreement, Rule, Settings, Timing};

/// The present of all clocks. Machines are shifted into the past instead.
pub(super) const NOW: Duration = Duration::from_secs(2);
/// A step of time: a lease. A node that is silent for two steps is lost.
pub(super) const STEP: Duration = Duration::from_secs(1);

/// Faults that are left, and the kind of cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bounds {
    pub(super) kills: u8,
    /// Power cuts and wiped directories.
    pub(super) losses: u8,
    /// Answers of the engine that are lost.
    pub(super) answers: u8,
    pub(super) cuts: u8,
    /// Handovers, and processes that end in order.
    pub(super) handovers: u8,
    pub(super) messages: u8,
    pub(super) epochs: u64,
    pub(super) is_sync_always: bool,
    /// The last member is a second process with the name of this one and with another directory. It starts later.
    pub(super) twin_of: Option<usize>,
    pub(super) without: Option<Rule>,
}

/// All of a small cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World<const N: usize> {
    pub(super) nodes: [Member; N],
    pub(super) record: Option<Record>,
    /// A request that the engine may execute later.
    pub(super) late: Option<(u64, Record)>,
    pub(super) is_cut: bool,
    /// Messages acknowledged with two copies, and with one. A message is a bit.
    pub(super) acked_two: u8,
    pub(super) acked_one: u8,
    pub(super) published: u8,
    pub(super) left: Bounds,
    /// The broken promise.
    pub(super) violation: Option<&'static str>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub(super) machine: Option<Machine>,
    pub(super) starts: u8,
    /// Messages in the directory, in memory or on the disk; and those on the disk.
    pub(super) messages: u8,
    pub(super) durable: u8,
    pub(super) mark: Option<Mark>,
    pub(super) mark_job: Option<Record>,
    pub(super) call: Option<Call>,
    pub(super) is_broker_open: bool,
    pub(super) is_held: bool,
    /// The process is about to end.
    pub(super) is_ending: bool,
    pub(super) link: Link,
    /// Copy of this leader.
    pub(super) mirror: Option<Mirror>,
    /// Copy at this node: its leader and session, and whether the leader has accepted it.
    pub(super) copy: Option<(Node, u64, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Read,
    Swap(u64, Record),
}

/// Link of a standby. Each end sees the end of the link by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) to: Option<Node>,
    pub(super) is_up_here: bool,
    pub(super) is_up_there: bool,
    pub(super) beacon: Option<(u64, Record)>,
    pub(super) answer: Option<(u64, bool)>,
    /// The leader hands over. Beacons that are sent later come later.
    pub(super) handover: Option<Record>,
}

impl Link {
    /// The link is gone at the leader, with everything on its way.
    pub(super) fn ends_there(&mut self) {
        self.is_up_there = false;
        (self.beacon, self.answer, self.handover) = (None, None, None);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mirror {
    pub(super) node: Node,
    pub(super) session: u64,
    pub(super) phase: Phase,
    pub(super) is_required: bool,
    pub(super) must_confirm: bool,
    pub(super) wire: u8,
    pub(super) confirmed: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Accepting,
    Copying,
    Live,
    Broken,
}

impl<const N: usize> World<N> {
    pub(super) fn new(bounds: Bounds) -> Self {
        let mut world = Self {
            nodes: std::array::from_fn(|_| Member::default()),
            record: None,
            late: None,
            is_cut: false,
            acked_two: 0,
            acked_one: 0,
            published: 0,
            left: bounds,
            violation: None,
        };
        for n in 0..N {
            if !world.is_twin(n) {
                world.start(n);
            }
        }
        world
    }

    /// True for a process whose name another one has. No link opens to it: the other one is at the address of the name.
    pub(super) fn is_twin(&self, n: usize) -> bool {
        self.left.twin_of.is_some() && n == N - 1
    }

    /// True for an event of two processes with one name that a driver prevents: one of them keeps the link.
    fn disturbs(&self, event: Event) -> bool {
        let has_link = |n: usize| (0..N).any(|m| self.name(m) == self.name(n) && self.nodes[m].link.is_up_there);
        match event {
            Event::Start(n) => self.is_twin(n),
            Event::LinkOpens(n) => has_link(n),
            _ => false,
        }
    }

    /// Name of a member.
    pub(super) fn name(&self, n: usize) -> Node {
        node(self.left.twin_of.filter(|_| n == N - 1).unwrap_or(n))
    }

    /// Number of a member's directory. A wiped directory keeps it, as one that was set aside does.
    pub(super) fn directory(n: usize) -> u64 {
        n as u64 + 1
    }

    /// True if `other` has a link to the member `n`, at the end there.
    fn is_linked(&self, other: usize, n: usize) -> bool {
        let link = &self.nodes[other].link;
        link.to == Some(node(n)) && link.is_up_there && !self.is_twin(n)
    }

    /// Takes events of a healthy cluster until a state.
    pub(super) fn settle(mut self, until: impl Fn(&Self) -> bool) -> Self {
        let mut taken: Vec<Event> = Vec::new();
        for _ in 0..1_000 {
            if until(&self) {
                return self;
            }
            // A standby hears of its leader each time before it is called itself.
            let order = |event: &Event| {
                let since = taken.iter().rposition(|earlier| *earlier == Event::Time).unwrap_or(0);
                let class = match *event {
                    Event::Beacon(_) | Event::BeaconAnswer(_) => 0,
                    Event::Tick(n) if self.may_act(n) && !taken[since..].contains(event) => 1,
                    Event::Tick(_) | Event::Time | Event::Answer(_) => 3,
                    _ => 2,
                };
                (class, taken.iter().rposition(|earlier| earlier == event))
            };
            let is_wanted = |event: &Event| !event.is_fault() && !self.disturbs(*event);
            let next = self.events().into_iter().filter(is_wanted).min_by_key(order);
            let next = next.unwrap_or(Event::Time);
            taken.push(next);
            self.apply(next);
        }
        panic!("the cluster does not settle: {self:?}")
    }

    /// True if the leader counts two copies.
    pub(super) fn has_two_copies(&self) -> bool {
        self.leader().is_some_and(|leader| leader.status(NOW).copies > 1 && !leader.status(NOW).is_held)
    }

    /// True if a copy has begun.
    pub(super) fn is_copying(&self) -> bool {
        self.nodes.iter().any(|member| member.mirror.is_some_and(|mirror| mirror.phase == Phase::Copying))
    }

    pub(super) fn leader(&self) -> Option<&Machine> {
        let machines = self.nodes.iter().filter_map(|member| member.machine.as_ref());
        machines.into_iter().find(|machine| machine.may_act(NOW))
    }

    pub(super) fn settings(&self, n: usize) -> Settings {
        let timing = Timing {
            lease: STEP,
            dead_after: STEP * 2,
            follower_later: Duration::ZERO,
            takes_over_within: STEP,
            replace_after: Duration::ZERO,
            join_pause_max: STEP,
            beacon_every: STEP,
            read_every: STEP,
            read_often: Duration::ZERO,
        };
        Settings {
            is_sync_always: self.left.is_sync_always,
            timing,
            directory: Self::directory(n),
            without: self.left.without,
            ..Settings::new(self.name(n), Agreement::Engine, u64::from(self.nodes[n].starts) << 8 | n as u64)
        }
    }

    pub(super) fn start(&mut self, n: usize) {
        let settings = self.settings(n);
        let member = &mut self.nodes[n];
        member.starts += 1;
        member.machine = Some(Machine::new(settings, member.mark, NOW));
        self.feed(n, Input::Tick);
    }

    pub(super) fn may_act(&self, n: usize) -> bool {
        self.nodes[n].machine.as_ref().is_some_and(|machine| machine.may_act(NOW))
    }

    /// Gives an input to a machine, and performs its actions.
    pub(super) fn feed(&mut self, n: usize, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let Some(machine) = self.nodes[n].machine.as_mut() else { return };
            let mut actions = Vec::new();
            machine.handle(NOW, input, &mut actions);
            for action in actions {
                inputs.extend(self.perform(n, action));
            }
        }
        if self.nodes[n].is_ending {
            self.end(n);
        }
        self.check();
    }

    pub(super) fn perform(&mut self, n: usize, action: Action) -> Option<Input> {
        let is_always = self.left.is_sync_always;
        let member = &mut self.nodes[n];
        match action {
            Action::Read => member.call = Some(Call::Read),
            Action::Swap { expected, record } => member.call = Some(Call::Swap(expected, record)),
            Action::WriteMark(record) => member.mark_job = Some(record),
            Action::Connect { leader } => {
                self.drop_link(n);
                self.nodes[n].link.to = Some(leader);
            }
            Action::Disconnect => {
                self.drop_link(n);
                self.nodes[n].link.to = None;
            }
            Action::StartCopy { leader, session } => {
                if member.is_broker_open {
                    self.violation = Some("a copy is written below an open broker");
                }
                member.copy = Some((leader, session, false));
            }
            Action::Seal => member.copy = None,
            Action::AnswerBeacon { number, is_marked } => {
                // A later answer says no less.
                member.link.answer = member.link.answer.or(Some((number, is_marked)));
            }
            Action::OpenBroker => {
                member.is_broker_open = true;
                return Some(Input::BrokerOpened);
            }
            Action::StopBroker => {
                member.is_broker_open = false;
                member.mirror = None;
                return Some(Input::BrokerClosed);
            }
            Action::Hold => member.is_held = true,
            Action::Unhold => member.is_held = false,
            Action::AcceptCopy { node, session } => {
                member.mirror = Some(Mirror {
                    node,
                    session,
                    phase: Phase::Accepting,
                    is_required: false,
                    must_confirm: false,
                    wire: 0,
                    confirmed: 0,
                });
            }
            Action::Require { session } => {
                if let Some(mirror) = member.mirror.as_mut().filter(|mirror| mirror.session == session) {
                    (mirror.is_required, mirror.must_confirm) = (true, true);
                }
            }
            Action::Release { .. } => member.mirror = None,
            Action::SyncDisk => {
                member.durable = member.messages;
                return Some(Input::Synced);
            }
            Action::SendBeacon { number, record } => {
                for other in 0..N {
                    if self.is_linked(other, n) && self.nodes[other].link.handover.is_none() {
                        let link = &mut self.nodes[other].link;
                        link.beacon = link.beacon.or(Some((number, record)));
                    }
                }
            }
            Action::SendHandover { record } => {
                for other in 0..N {
                    if self.is_linked(other, n) {
                        self.nodes[other].link.handover = Some(record);
                    }
                }
            }
            Action::Stopped => member.is_ending = true,
            Action::Farewell => {
                for other in 0..N {
                    if self.is_linked(other, n) {
                        let link = &mut self.nodes[other].link;
                        let is_seen = link.is_up_here && !self.is_cut;
                        *link = Link { to: link.to, ..Link::default() };
                        if is_seen {
                            self.feed(other, Input::LinkDown { leader: node(n), end: LinkEnd::Farewell });
                        }
                    }
                }
            }
            Action::Serve
            | Action::Fence
            | Action::SetLease { .. }
            | Action::SetAside
            | Action::Promotion(_)
            | Action::Switched(_)
            | Action::Notice(_) => {}
        }
        if is_always {
            self.nodes[n].durable = self.nodes[n].messages;
        }
        None
    }

    pub(super) fn drop_link(&mut self, n: usize) {
        let link = &mut self.nodes[n].link;
        (link.is_up_here, link.beacon, link.answer, link.handover) = (false, None, None, None);
    }

    pub(super) fn check(&mut self) {
        let acting = (0..N).filter(|n| self.may_act(*n)).collect::<Vec<_>>();
        if acting.len() > 1 {
            self.violation = Some("two nodes act");
        }
        for n in acting {
            if (self.acked_two | self.acked_one) & !self.nodes[n].messages != 0 {
                self.violation = Some("the leader lacks an acknowledged message");
            }
        }
    }

    /// The process ends.
    pub(super) fn end(&mut self, n: usize) {
        if let Some(Call::Swap(expected, record)) = self.nodes[n].call
            && self.late.is_none()
        {
            self.late = Some((expected, record));
        }
        self.drop_link(n);
        for other in 0..N {
            if self.is_linked(other, n) {
                self.nodes[other].link.ends_there();
            }
        }
        let member = &mut self.nodes[n];
        let Member { starts, messages, durable, mark, link, .. } = *member;
        let link = Link { to: None, is_up_there: link.is_up_there, ..Link::default() };
        *member = Member { starts, messages, durable, mark, link, ..Member::default() };
    }

    pub(super) fn execute(&mut self, expected: u64, record: Record) -> Swapped {
        if self.record.map_or(0, |record| record.epoch) != expected {
            return Swapped::Refused;
        }
        self.record = Some(record);
        Swapped::Done
    }

    /// The leader's mirror of the copy at `n`, if both belong together.
    pub(super) fn mirror_of(&self, n: usize) -> Option<(usize, Mirror)> {
        let (leader, session, _) = self.nodes[n].copy?;
        let leader = usize::from(leader.0);
        let mirror = self.nodes[leader].mirror?;
        (mirror.node == self.name(n) && mirror.session == session).then_some((leader, mirror))
    }

    pub(super) fn follower_of(&self, n: usize) -> Option<(usize, Mirror)> {
        let mirror = self.nodes[n].mirror?;
        let is_accepted =
            |m: &usize| self.name(*m) == mirror.node && self.nodes[*m].copy == Some((node(n), mirror.session, true));
        let follower = (0..N).find(is_accepted)?;
        (!self.is_cut && !self.is_twin(n)).then_some((follower, mirror))
    }
}

pub(super) fn node(n: usize) -> Node {
    Node(u8::try_from(n).unwrap_or(u8::MAX))
}
