//! The state machine of a node.

mod agreement;
mod handover;
mod joins;
mod leader;
mod namesakes;
mod opening;
mod standby;
mod status;
#[cfg(test)]
mod times;

use std::collections::BTreeMap;
use std::time::Duration;

use self::agreement::{Call, Change};
use self::leader::Leader;
use self::opening::{Opening, PROMOTION};
use self::standby::{JoinerCopy, Link};
pub use self::status::{Status, Step};
use crate::event::{Action, Hello, Input, LinkEnd, Namesake, Notice};
use crate::node::{Node, NodeSet};
use crate::record::{Mark, Record, Role};
use crate::settings::{Agreement, Rule, Settings};

/// The state machine of a node: decides its role.
///
/// The driver feeds it with [`Input`]s and performs the [`Action`]s. It also feeds [`Input::Tick`] at
/// [`next_tick`](Self::next_tick), which changes with every input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    settings: Settings,
    /// The newest record that this node knows.
    record: Option<Record>,
    /// The mark on disk.
    mark: Option<Mark>,
    /// The mark that is being written, and the next one.
    mark_job: Option<Record>,
    mark_next: Option<Record>,
    /// Syncs of the disk that are under way.
    syncs: u8,
    /// The call of the engine that is under way.
    call: Call,
    is_engine_away: bool,
    /// When the last read began.
    read_at: Duration,
    /// A read is due regardless of `read_at`.
    must_read: bool,
    /// The change of the record that this node is making.
    change: Option<Change>,
    /// The link to the leader.
    link: Link,
    /// Nodes that have a link to this one.
    peers: NodeSet,
    /// Nodes that may not join.
    barred_peers: NodeSet,
    /// Directories that these nodes have told.
    peer_directories: BTreeMap<Node, u64>,
    /// Rule 9: end of the promise in this node's answers.
    promised: Duration,
    /// The broker or the disk has failed: the node neither leads nor has a copy until its process is restarted.
    is_unfit: bool,
    /// Another process has this node's name, until this process is restarted: see `is_unfit`.
    namesake: Option<Namesake>,
    last_error: Option<Notice>,
    state: State,
}

/// State of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Has read no record yet. With manual agreement it waits for the others' records until a time.
    Starting { until: Duration },
    /// Nominates itself at the first start of the cluster.
    Creating,
    /// Only relays.
    Spare,
    /// Is being copied to, in a session.
    Joiner { session: u64, copy: JoinerCopy },
    /// Has everything acknowledged. Without a session the copy has ended.
    Follower { session: Option<u64>, is_promoted: bool, is_handed_over: bool },
    /// The record names this node as leader, but its directory may lack data.
    Barred,
    /// Opens the broker and makes itself the leader of a new epoch.
    Opening(Opening),
    /// Runs the broker.
    Leader(Leader),
    /// Waits for the end of the broker.
    Closing { then: After },
    /// Has ended.
    Stopped,
}

/// Continuation after the end of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum After {
    /// The role in the record.
    Place,
    /// The same, with a new directory.
    SetAside,
    /// Nothing.
    Stop,
}

/// Time and output of one input.
struct Turn<'a> {
    now: Duration,
    out: &'a mut Vec<Action>,
}

impl Turn<'_> {
    fn act(&mut self, action: Action) {
        self.out.push(action);
    }
}

impl Machine {
    /// The machine of a process that has just started. The mark is the one of the node's directory.
    pub fn new(settings: Settings, mark: Option<Mark>, now: Duration) -> Self {
        // Rule 8: a restarted follower waits for the end of a lease that it may have granted.
        let may_have_granted = mark.is_some_and(|mark| mark.record.leader != settings.node);
        let waits = may_have_granted && settings.has(Rule::RestartWait);
        Self {
            settings,
            record: None,
            mark,
            mark_job: None,
            mark_next: None,
            syncs: 0,
            call: Call::None,
            is_engine_away: false,
            read_at: now,
            must_read: true,
            change: None,
            link: Link::default(),
            peers: NodeSet::default(),
            barred_peers: NodeSet::default(),
            peer_directories: BTreeMap::new(),
            promised: if waits { now + settings.timing.lease } else { now },
            is_unfit: false,
            namesake: None,
            last_error: None,
            state: State::Starting { until: now + settings.timing.dead_after },
        }
    }

    /// Takes an input, and appends the actions that follow from it.
    pub fn handle(&mut self, now: Duration, input: Input, out: &mut Vec<Action>) {
        let turn = &mut Turn { now, out };
        match input {
            Input::Tick => {}
            Input::RecordRead(answer) => self.record_read(answer, turn),
            Input::Swapped(outcome) => self.swapped(outcome, turn),
            Input::PeerRecord(record) => self.peer_record(record, turn),
            Input::MarkWritten => self.mark_written(turn),
            Input::PeerUp(hello) => self.peer_up(hello, turn),
            Input::PeerDown { node, end } => self.peer_down(node, end, turn),
            Input::Answer { node, number, is_marked } => self.answer(node, number, is_marked, turn),
            Input::CaughtUp { session } => self.caught_up(session, turn),
            Input::Confirmed { session } => self.confirmed(session, turn),
            Input::CopyFailed { session } => self.copy_failed(session),
            Input::Synced => self.synced(turn),
            Input::DiskFailed => self.disk_failed(turn),
            Input::DiskUnusable => self.disk_unusable(turn),
            Input::LinkUp { leader } => self.link_up(leader),
            Input::LinkDown { leader, end } => self.link_down(leader, end),
            Input::Beacon { number, record } => self.beacon(number, record, turn),
            Input::HandedOver { record } => self.handed_over(record),
            Input::CopyBroken { session } => self.copy_broken(session),
            Input::BrokerOpened => self.broker_opened(turn),
            Input::BrokerFailed => self.broker_failed(turn),
            Input::BrokerClosed => self.broker_closed(turn),
            Input::Promote { accept_loss } => self.promote(accept_loss, turn),
            Input::Switch { to } => self.switch(to, turn),
            Input::Force { has_store, accept_loss } => self.force(has_store, accept_loss, turn),
            Input::NamesakeFound => self.namesake_found(Namesake::Answers, turn),
            Input::Stop => self.stop(turn),
        }
        self.advance(turn);
    }

    /// Goes on, as far as the time and the last input allow.
    fn advance(&mut self, turn: &mut Turn<'_>) {
        match self.state {
            State::Starting { until } => self.starting(until, turn),
            State::Follower { .. } => self.following(turn),
            State::Opening(_) => self.opening(turn),
            State::Leader(_) => self.leading(turn),
            _ => {}
        }
        self.swap_if_possible(turn);
        self.read_if_due(turn);
    }

    /// Takes over a newer record.
    fn adopt(&mut self, record: Record, turn: &mut Turn<'_>) {
        // Rule 5: a record below a known epoch is refused.
        let known = self.known_epoch();
        let before = self.record;
        let is_fuller = before.is_some_and(|before| record.adds_directories_to(before));
        if record.epoch < known || record.epoch == known && before.is_some() && !is_fuller {
            return;
        }
        self.record = Some(record);
        if is_fuller && before.map(|before| self.role(before)) == Some(self.role(record)) {
            return self.mark_again(record, turn);
        }
        match self.state {
            State::Starting { .. } | State::Spare | State::Barred => self.place(turn),
            State::Joiner { .. } | State::Follower { .. } => self.standby_adopts(record, turn),
            State::Creating | State::Opening(_) | State::Leader(_) => self.overtaken(record, turn),
            State::Closing { .. } | State::Stopped => {}
        }
    }

    /// Highest epoch in which this node may have acted.
    fn known_epoch(&self) -> u64 {
        let of_mark = self.mark.map_or(0, |mark| mark.record.epoch);
        self.record.map_or(of_mark, |record| record.epoch.max(of_mark))
    }

    /// Takes the role that the record gives to this node. The node has neither broker nor copy.
    fn place(&mut self, turn: &mut Turn<'_>) {
        let Some(record) = self.record else { return };
        if self.may_have_more(record) {
            turn.act(Action::SetAside);
            self.mark = None;
        }
        self.state = match self.role(record) {
            Role::Leader if self.may_lead(None) => return self.open(record, turn),
            Role::Leader if self.namesake.is_none() => {
                if !self.is_unfit {
                    self.notice(Notice::Barred { follower: record.follower }, turn);
                }
                // The follower need not wait for this node.
                self.farewell(turn);
                State::Barred
            }
            // A restarted follower has no session: the leader goes on without it, or it takes over.
            Role::Follower if self.may_take_over() => {
                State::Follower { session: None, is_promoted: false, is_handed_over: false }
            }
            // A node that cannot lead is no second copy.
            Role::Joiner if self.is_fit() => State::Joiner { session: record.epoch, copy: JoinerCopy::Marking },
            // No farewell: the process that the record names may act.
            _ if record.leader == self.settings.node => {
                self.notice(Notice::Namesake(self.namesake.unwrap_or(Namesake::Named)), turn);
                State::Barred
            }
            _ => State::Spare,
        };
        self.connect(turn);
        if self.is_manual()
            && self.mark.is_none()
            && self.mark_job.is_none()
            && let Some(marked) = record.without_copy_of(self.settings.node)
        {
            // With this mark the node never creates a second cluster. It says that the directory has no copy.
            self.write_mark(marked, turn);
        }
        if matches!(self.state, State::Joiner { .. }) {
            self.begin_copy(turn);
        }
    }

    /// True if this directory may have messages that the record's leader lacks. No copy may replace them.
    fn may_have_more(&self, record: Record) -> bool {
        let Some(marked) = self.mark.map(|mark| mark.record) else { return false };
        let role = marked.role_of(self.settings.node);
        let is_jump = record.epoch >= marked.epoch + PROMOTION;
        match self.settings.agreement {
            _ if self.role(record) == Role::Leader => false,
            // A manual leader that was alone when another node was promoted.
            Agreement::Manual { .. } => {
                role == Role::Leader && marked.follower.is_none() && marked.epoch < record.epoch
            }
            // A leader or follower that was taken for gone when another node was forced to lead.
            Agreement::Engine => is_jump && matches!(role, Role::Leader | Role::Follower),
        }
    }

    /// True if this node's directory has everything that the leader named by the record needs.
    ///
    /// `excluded` is the epoch in which the follower will not take over.
    fn may_lead(&self, excluded: Option<u64>) -> bool {
        let Some(record) = self.record.filter(|record| self.role(*record) == Role::Leader) else { return false };
        if !self.is_fit() {
            return false;
        }
        let Some(mark) = self.mark else {
            // Rule 5: without a mark a node only joins. No node acts in epoch 1, so nothing is missing in it.
            return record.epoch == 1 || !self.settings.has(Rule::Mark);
        };
        let marked = mark.record;
        // Rule 5: the record may be one epoch ahead of the mark, if the mark's leader or follower made itself the leader
        // and ended before it wrote the mark. No other node can have written such a record.
        let is_next = marked.epoch + 1 == record.epoch || self.is_manual() && marked.epoch + PROMOTION == record.epoch;
        let is_own = marked.epoch == record.epoch && marked.leader == self.settings.node
            || is_next && matches!(marked.role_of(self.settings.node), Role::Leader | Role::Follower);
        // Rule 6: a node that was booted since may lack its tail, while the record has a follower that lacks nothing.
        let may_lack_tail = !self.settings.is_sync_always && !mark.is_same_boot && self.settings.has(Rule::Boot);
        let has_tail = !may_lack_tail || record.follower.is_none() || excluded == Some(record.epoch);
        (is_own || !self.settings.has(Rule::Mark)) && has_tail
    }

    /// True if this node's directory has everything acknowledged, and the record names it as follower.
    fn may_take_over(&self) -> bool {
        // Rule 4: only the record's follower may take over.
        let Some(record) = self.record.filter(|record| self.role(*record) == Role::Follower) else { return false };
        // Rule 5: without the mark of this epoch the directory is not the follower's.
        let is_marked = self.mark.is_some_and(|mark| mark.record.epoch == record.epoch);
        // Rule 6: after a boot it may lack its tail.
        let is_same_boot = self.mark.is_none_or(|mark| mark.is_same_boot) || !self.settings.has(Rule::Boot);
        (is_marked || !self.settings.has(Rule::Mark)) && (is_same_boot || self.settings.is_sync_always) && self.is_fit()
    }

    /// Introduction of this node, for a link that it opens.
    pub fn hello(&self) -> Hello {
        let may_take_over = match self.state {
            State::Starting { .. } | State::Follower { .. } | State::Opening(_) => true,
            // A joiner may be the follower already without knowing it.
            State::Joiner { .. } => true,
            _ => false,
        };
        let epoch = self.record.map_or(0, |record| record.epoch);
        let is_first = !self.link.was_up;
        let Settings { node, directory, .. } = self.settings;
        Hello { node, epoch, may_take_over, may_join: self.is_fit(), is_first, directory }
    }

    fn broker_closed(&mut self, turn: &mut Turn<'_>) {
        let State::Closing { then } = self.state else { return };
        match then {
            After::Stop => {
                self.farewell(turn);
                turn.act(Action::Stopped);
                self.state = State::Stopped;
            }
            After::Place | After::SetAside => {
                if then == After::SetAside {
                    turn.act(Action::SetAside);
                    self.mark = None;
                }
                self.farewell(turn);
                self.state = State::Spare;
                self.place(turn);
            }
        }
    }

    /// Ends the broker. Changes under way are forgotten: their outcome shows in the record. A node that is to end does so
    /// then, whatever comes first.
    fn close(&mut self, then: After, turn: &mut Turn<'_>) {
        let then = if self.is_to_stop() { After::Stop } else { then };
        self.change = None;
        turn.act(Action::SetLease { until: Some(Duration::ZERO) });
        turn.act(Action::Fence);
        turn.act(Action::StopBroker);
        self.must_read = true;
        self.state = State::Closing { then };
    }

    fn stop(&mut self, turn: &mut Turn<'_>) {
        if self.hands_over_to_stop(turn) {
            return;
        }
        match self.state {
            State::Opening(_) | State::Leader(_) => self.close(After::Stop, turn),
            State::Closing { .. } => self.state = State::Closing { then: After::Stop },
            State::Stopped => {}
            _ => {
                self.change = None;
                turn.act(Action::Seal);
                self.disconnect(turn);
                turn.act(Action::Stopped);
                self.state = State::Stopped;
            }
        }
    }

    fn peer_up(&mut self, hello: Hello, turn: &mut Turn<'_>) {
        self.peers.insert(hello.node);
        self.peer_directories.insert(hello.node, hello.directory);
        if hello.may_join {
            self.barred_peers.remove(hello.node);
        } else {
            self.barred_peers.insert(hello.node);
        }
        let epoch = self.record.map_or(0, |record| record.epoch);
        self.must_read |= hello.epoch > epoch;
        if let State::Leader(leader) = &mut self.state
            && hello.is_first
        {
            leader.failed_joins.forget(hello.node);
        }
        let is_follower = self.record.is_some_and(|record| record.follower == Some(hello.node));
        match self.state {
            State::Leader(_) if self.has_no_copy(hello) => self.follower_restarted(),
            State::Leader(_) if is_follower => self.follower_is_back(turn),
            // Only the record's leader knows that it does not act.
            State::Barred if !self.is_named() => {}
            // Rule 6: neither node has its whole tail for certain. The record's leader goes on with its own directory.
            State::Barred if is_follower && hello.epoch == epoch && !hello.may_take_over => {
                if let Some(record) = self.record.filter(|_| self.may_lead(Some(epoch))) {
                    self.open(record, turn);
                }
            }
            State::Barred if is_follower => self.farewell(turn),
            _ => {}
        }
    }

    /// Tells the standbys that this node does not act.
    fn farewell(&mut self, turn: &mut Turn<'_>) {
        self.peers.clear();
        self.peer_directories.clear();
        turn.act(Action::Farewell);
    }

    fn peer_down(&mut self, node: Node, end: LinkEnd, turn: &mut Turn<'_>) {
        self.peers.remove(node);
        self.peer_directories.remove(&node);
        self.follower_leaves(node, turn);
        if end != LinkEnd::Broken {
            self.follower_refuses(node);
        }
    }

    fn notice(&mut self, notice: Notice, turn: &mut Turn<'_>) {
        let is_repeated = matches!(
            notice,
            Notice::RecordMissing | Notice::RecordOlder { .. } | Notice::Barred { .. } | Notice::Namesake(_)
        );
        if is_repeated && self.last_error == Some(notice) {
            return;
        }
        if !is_good(notice) {
            self.last_error = Some(notice);
        }
        turn.act(Action::Notice(notice));
    }

    fn is_manual(&self) -> bool {
        matches!(self.settings.agreement, Agreement::Manual { .. })
    }
}

/// True if the notice tells of no trouble.
fn is_good(notice: Notice) -> bool {
    matches!(
        notice,
        Notice::Leads { .. } | Notice::CopyComplete { .. } | Notice::EngineBack | Notice::HandingOver { .. }
    )
}
