//! Inputs and actions of the machine: the contract with its driver.
//!
//! The driver performs the actions in their order. Actions marked *at once* have taken effect before the driver performs
//! the next one. All others may take time; their end is an input where the documentation names one.

use std::time::Duration;

use crate::node::Node;
use crate::record::Record;

/// Something that happened. `now` of [`Machine::handle`](crate::Machine::handle) must have been read after it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// The time of [`Machine::next_tick`](crate::Machine::next_tick) is reached.
    Tick,
    /// End of [`Action::Read`], with the engine's record. Never with manual agreement.
    RecordRead(Result<Option<Record>, Unreachable>),
    /// End of [`Action::Swap`].
    Swapped(Swapped),
    /// Another node's record. Manual agreement only: an answer to [`Action::Read`], or unasked.
    PeerRecord(Record),
    /// End of [`Action::WriteMark`].
    MarkWritten,

    /// A node has opened a link to this node.
    PeerUp(Hello),
    /// The link from this node has ended, or a probe of the node after its end has.
    PeerDown {
        /// The node at the other end.
        node: Node,
        /// How it ended. After `Broken`, the driver tries once to connect to the node's cluster port. If the port
        /// refuses, the driver reports `Refused` as well.
        end: LinkEnd,
    },
    /// A node has answered a beacon.
    Answer {
        /// The node that answered.
        node: Node,
        /// The beacon's number.
        number: u64,
        /// True if the node's mark says that it is the follower.
        is_marked: bool,
    },
    /// The joiner has everything that was there, and all operations are being forwarded to it.
    CaughtUp {
        /// The copy's session.
        session: u64,
    },
    /// After [`Action::Require`]: the copy has confirmed everything that had been sent to it.
    Confirmed {
        /// The copy's session.
        session: u64,
    },
    /// The copy at the other node has ended, could not begin, or does not confirm in time.
    CopyFailed {
        /// The copy's session.
        session: u64,
    },
    /// End of [`Action::SyncDisk`].
    Synced,
    /// [`Action::SyncDisk`] has failed.
    DiskFailed,
    /// This leader's disk has failed for 2 s, or is full while the follower's is not. The driver repeats it while that
    /// lasts. A standby's disk is reported as [`Input::CopyBroken`] instead.
    DiskUnusable,

    /// The link to the leader is open. The driver has sent [`Machine::hello`](crate::Machine::hello).
    LinkUp {
        /// The node at the other end.
        leader: Node,
    },
    /// The link to the leader has ended, or an attempt to open it has failed. The driver goes on trying.
    LinkDown {
        /// The node at the other end.
        leader: Node,
        /// How it ended.
        end: LinkEnd,
    },
    /// The leader has sent a beacon.
    Beacon {
        /// The beacon's number, to be returned.
        number: u64,
        /// The leader's record.
        record: Record,
    },
    /// The leader of this record hands over, see [`Action::SendHandover`]. Beacons that it had sent before were reported
    /// before.
    HandedOver {
        /// The leader's record.
        record: Record,
    },
    /// This node's copy has ended, or an operation of it has failed. Nothing more is written to it.
    CopyBroken {
        /// The copy's session.
        session: u64,
    },

    /// The broker of [`Action::OpenBroker`] has loaded its state and waits for [`Action::Serve`].
    BrokerOpened,
    /// The broker could not be opened, and nothing of it is left.
    BrokerFailed,
    /// End of [`Action::StopBroker`]: nothing writes to the directory any more.
    BrokerClosed,

    /// An operator wants this node to lead. The answer is [`Action::Promotion`].
    Promote {
        /// True if messages may be lost which only the other node has.
        accept_loss: bool,
    },
    /// An operator wants the follower to lead instead of this node. The answer is [`Action::Switched`], or
    /// [`Action::StopBroker`] if this node ends before.
    Switch {
        /// The node that is to lead; `None`: the follower, whichever it is.
        to: Option<Node>,
    },
    /// An operator wants this node to lead, although the record names nodes that are gone for ever. The driver has found
    /// that none of these answers. The answer is [`Action::Promotion`].
    Force {
        /// True if there is a store in the directory.
        has_store: bool,
        /// True if messages may be lost, and the operator knows that no other node leads.
        accept_loss: bool,
    },
    /// Another process answers at this node's own address, with this node's name.
    NamesakeFound,
    /// The process is to end. The answer is [`Action::Stopped`]. A leader hands over first, unless it is asked again.
    Stop,
}

/// The engine did not answer a read, in time or at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unreachable;

/// Outcome of a compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swapped {
    /// The record is the new one.
    Done,
    /// This request was not executed and never will be: the epoch was another one, or nothing was sent.
    Refused,
    /// Anything else, such as a timeout. The request may still be executed later.
    Unknown,
}

/// How a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkEnd {
    /// Closed, reset or timed out; or a new one could not be opened, without a refusal.
    Broken,
    /// A new one was refused.
    Refused,
    /// The other end has sent its farewell: it does not act.
    Farewell,
}

/// Introduction of a node, for a link that it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// The node.
    pub node: Node,
    /// Epoch of the record that it knows; 0 if none.
    pub epoch: u64,
    /// False is a promise: the node never takes over in this epoch.
    pub may_take_over: bool,
    /// False if the node gets no copy: it cannot read the leader's formats, or could not lead with the copy.
    pub may_join: bool,
    /// True if the node has had no link to this leader yet: its process is a new one, or has led or opened its broker in
    /// between.
    pub is_first: bool,
    /// Number of its data directory; 0: not told.
    pub directory: u64,
}

/// Something that the driver has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read the record, linearizably, and report [`Input::RecordRead`] exactly once, within about a second. With manual
    /// agreement: ask all other nodes for their record, and report each as [`Input::PeerRecord`].
    Read,
    /// Replace the record if its epoch is `expected` (0: if there is none), and report [`Input::Swapped`] exactly once.
    /// No other `Read` or `Swap` is under way. Never with manual agreement.
    Swap {
        /// Epoch of the record that is replaced.
        expected: u64,
        /// The new record.
        record: Record,
    },
    /// Write the mark with this record and the present boot id, sync it and its directory, and report
    /// [`Input::MarkWritten`]. One mark is written at a time.
    WriteMark(Record),
    /// Move the content of the directory and its mark aside, never delete it: it may have data which no other node has. At
    /// once.
    SetAside,

    /// Keep a link to this leader: open it, and again when it ends. It replaces the link to another node, of which
    /// nothing more is reported.
    Connect {
        /// The node at the other end.
        leader: Node,
    },
    /// Close the link to the leader and open no other.
    Disconnect,
    /// Begin a copy from the leader: open the mirror's connections with this session. Nothing in the directory changes
    /// before the leader has accepted them. The end is [`Input::CopyBroken`].
    StartCopy {
        /// The node that is copied from.
        leader: Node,
        /// The copy's session: the epoch that made this node the joiner.
        session: u64,
    },
    /// End the copy at this node: no operation is accepted or confirmed any more. At once; without a copy, nothing.
    Seal,
    /// Answer a beacon on the link.
    AnswerBeacon {
        /// The beacon's number.
        number: u64,
        /// True if this node's mark says that it is the follower.
        is_marked: bool,
    },

    /// Start the broker with a lease that has not begun, and report [`Input::BrokerOpened`] or [`Input::BrokerFailed`].
    /// It reads no packet, answers no client and publishes no Will, and its acknowledgements are not held back. If [`Action::StopBroker`] comes first, only
    /// [`Input::BrokerClosed`] is reported.
    OpenBroker,
    /// Open the listeners and let the broker act under the lease of the last [`Action::SetLease`].
    Serve,
    /// End all clients with a reference to the other nodes, and close the listeners. [`Action::Serve`] reverses it.
    Fence,
    /// Close the broker, and report [`Input::BrokerClosed`].
    StopBroker,
    /// Set the time from which the broker must not act; `None`: no limit. At once: one atomic store.
    SetLease {
        /// End, by the clock of `now`.
        until: Option<Duration>,
    },
    /// Hold all acknowledgements back. At once.
    Hold,
    /// Release the acknowledgements that are held back.
    Unhold,

    /// Accept one pair of the mirror's connections from this node, with this session, and copy to it. Refuse all other
    /// ones, and a second pair of this session.
    AcceptCopy {
        /// The joiner.
        node: Node,
        /// The copy's session.
        session: u64,
    },
    /// From now on confirm no operation before the copy has. Report [`Input::Confirmed`] once everything sent before is
    /// confirmed, or [`Input::CopyFailed`]. A broken connection changes nothing here: operations wait.
    Require {
        /// The copy's session.
        session: u64,
    },
    /// Stop waiting for the copy, and close its connections.
    Release {
        /// The copy's session.
        session: u64,
    },
    /// Sync everything that the broker has written, and report [`Input::Synced`] or [`Input::DiskFailed`].
    SyncDisk,
    /// Send a beacon to all nodes that have a link to this one.
    SendBeacon {
        /// The beacon's number.
        number: u64,
        /// This leader's record.
        record: Record,
    },
    /// Tell all nodes that have a link to this one that it hands over: the follower may take over at once. In order with
    /// beacons.
    SendHandover {
        /// This leader's record.
        record: Record,
    },
    /// Send a farewell to all nodes that have a link to this one, and close the links. Nothing more is reported of
    /// these links. At once.
    Farewell,

    /// Answer to [`Input::Promote`] and [`Input::Force`].
    Promotion(Result<(), PromotionRefused>),
    /// Answer to [`Input::Switch`]. `Ok`: another node leads.
    Switched(Result<(), SwitchRefused>),
    /// Something to log.
    Notice(Notice),
    /// The process may end.
    Stopped,
}

/// Why a node is not promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PromotionRefused {
    /// The node leads already, or is about to.
    Leads,
    /// The node has no complete copy.
    NoCopy,
    /// The broker or the disk has failed: the node does not lead until it is restarted.
    Unfit,
    /// Another process has the name of this node.
    Namesake,
    /// The leader may have gone on alone: the copy may be behind. `accept_loss` takes it nevertheless.
    MayBeBehind,
    /// The record's leader was heard a moment ago.
    LeaderLives,
    /// The node knows no record of the engine, so there is nothing to force.
    NoRecord,
}

/// Why a leader does not hand over, or has not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwitchRefused {
    /// This node does not lead.
    NotLeader,
    /// The node that is to lead leads already.
    Leads,
    /// The agreement is manual.
    Manual,
    /// There is no second copy.
    NoFollower,
    /// The copy of this node is not complete yet.
    Incomplete(Node),
    /// Another node is the follower.
    NotFollower(Node),
    /// This follower does not answer, or is being replaced.
    Silent(Node),
    /// The engine does not answer: the follower cannot take over.
    EngineAway,
    /// Another handover is under way.
    UnderWay,
    /// The follower has not taken over in time: this node leads as before.
    Failed,
}

/// Something to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The node has a mark, but there is no record. `adopt` creates one.
    RecordMissing,
    /// The record is older than one that this node knows: the engine has lost data.
    RecordOlder {
        /// Epoch of the engine's record.
        found: u64,
        /// Epoch that this node knows.
        known: u64,
    },
    /// The engine does not answer.
    EngineAway,
    /// The engine answers again.
    EngineBack,
    /// The record names this node as leader, but its directory may lack data.
    Barred {
        /// The follower that is to take over.
        follower: Option<Node>,
    },
    /// Another process has the name of this node.
    Namesake(Namesake),
    /// The follower takes over.
    TakingOver {
        /// Epoch of the record whose leader is replaced.
        epoch: u64,
        /// True if that leader wants it.
        is_handover: bool,
    },
    /// This node leads.
    Leads {
        /// Epoch.
        epoch: u64,
    },
    /// Another node leads.
    Deposed {
        /// The new epoch.
        epoch: u64,
        /// The new leader.
        leader: Node,
    },
    /// A node is the second copy now.
    CopyComplete {
        /// The follower.
        node: Node,
    },
    /// The leader goes on without its follower or joiner.
    CopyLost {
        /// The node that had the copy.
        node: Node,
        /// Why.
        loss: Loss,
    },
    /// This leader hands over to its follower.
    HandingOver {
        /// The follower.
        node: Node,
    },
    /// The follower has not taken over: this node goes on.
    HandoverFailed,
    /// The broker could not be opened.
    BrokerFailed,
    /// The disk has failed.
    DiskFailed,
}

/// Another process with the name of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Namesake {
    /// The record's leader has this node's name and another directory: a namesake leads, or this directory is a new one.
    Named,
    /// It answers at this node's own address. This process does not act until it is restarted.
    Answers,
    /// It leads with the number of this node's directory, so it has a copy of the directory. This process does not act until it
    /// is restarted.
    HasCopy,
}

/// Why the leader goes on without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The node did not answer for `dead_after`.
    Silent,
    /// The node's link has ended and a new connection was refused.
    Refused,
    /// The copy has failed.
    Failed,
    /// The node says that it cannot take over.
    Restarted,
}
