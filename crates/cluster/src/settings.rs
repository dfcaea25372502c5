//! Settings of a node's machine.

use std::time::Duration;

use crate::node::Node;

/// Settings of a node's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// This node.
    pub node: Node,
    /// Where the record is kept.
    pub agreement: Agreement,
    /// True if every acknowledged message is synced first (`sync = "always"`).
    pub is_sync_always: bool,
    /// Copies below which acknowledgements wait: 1 or 2.
    pub copies_minimum: u8,
    /// Times.
    pub timing: Timing,
    /// Random number of this process: no two processes of a cluster may have the same.
    pub nonce: u64,
    /// Random number of this node's data directory, which outlives the process. One process at a time has the directory. 0:
    /// there is none, and names alone tell nodes.
    pub directory: u64,
    /// The rule that a test removes.
    #[cfg(test)]
    pub(crate) without: Option<Rule>,
}

impl Settings {
    /// Settings with `sync = "interval"`, one copy at least and default times.
    pub fn new(node: Node, agreement: Agreement, nonce: u64) -> Self {
        Self {
            node,
            agreement,
            is_sync_always: false,
            copies_minimum: 1,
            timing: Timing::default(),
            nonce,
            directory: 0,
            #[cfg(test)]
            without: None,
        }
    }

    /// False if a test has removed the rule.
    #[cfg(test)]
    pub(crate) fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Always true: only tests can remove a rule.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests remove rules by a field")]
    pub(crate) fn has(&self, _rule: Rule) -> bool {
        true
    }
}

/// Where the record is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Agreement {
    /// In an engine with linearizable reads and compare-and-swap.
    Engine,
    /// In the mark of each node. A follower takes over only by command.
    Manual {
        /// The node that leads at the first start.
        first: Node,
    },
}

/// Times of a node's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// The promise in each answer to a beacon: no takeover before this time has passed.
    pub lease: Duration,
    /// Silence of the follower after which the leader goes on without it.
    pub dead_after: Duration,
    /// Added to `dead_after`: silence of the leader after which the follower takes over.
    pub follower_later: Duration,
    /// Time from the follower's seal, in a handover, after which the leader takes its lead back.
    pub takes_over_within: Duration,
    /// Time alone after which a node joins that did not have the copy before.
    pub replace_after: Duration,
    /// Longest pause between two copies at a node that are not completed. The first pause is `read_every`.
    pub join_pause_max: Duration,
    /// Time between two beacons.
    pub beacon_every: Duration,
    /// Time between two reads of the record.
    pub read_every: Duration,
    /// The same, while there is no leader or an outcome is unknown.
    pub read_often: Duration,
}

impl Timing {
    /// Times by the configured ones.
    pub fn new(lease: Duration, dead_after: Duration, replace_after: Duration) -> Self {
        Self {
            lease,
            dead_after,
            follower_later: Duration::from_millis(250),
            takes_over_within: Duration::from_secs(10),
            replace_after,
            join_pause_max: Duration::from_secs(60),
            beacon_every: lease / 8,
            read_every: Duration::from_secs(1),
            read_often: Duration::from_millis(50),
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::new(Duration::from_millis(400), Duration::from_millis(750), Duration::from_secs(10))
    }
}

/// The rules of the cluster. Comments `Rule 1: …` stand where the machine follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// 1: after an unknown outcome the node reads.
    ReadAfterUnknown,
    /// 2: to go on without the follower, the leader first changes the record.
    ChangeBeforeAlone,
    /// 3: a follower accepts and grants nothing once it takes over.
    Seal,
    /// 4: a joiner has confirmed everything before it becomes the follower.
    ConfirmBeforeFollower,
    /// 5: a node acts only with the mark of the record's epoch.
    Mark,
    /// 6: a node that was booted since may lack its tail.
    Boot,
    /// 7: a node syncs before it is the only copy.
    SyncBeforeAlone,
    /// 7: no acknowledgement leaves between that sync and the change of the record.
    HoldBeforeAlone,
    /// 8: a restarted leader begins an epoch without followers.
    RestartAlone,
    /// 8: a restarted follower waits for the end of a lease that it may have granted.
    RestartWait,
    /// 9: a takeover waits for the end of the granted lease.
    LeaseWait,
    /// 9: the leader counts from when it sent the beacon.
    LeaseFromSent,
    /// 9: a leader that hands over does not act.
    HandoverPause,
    /// 10: a deposed leader drops its broker.
    DropBroker,
    /// 11: a node acts only by a record that names its own directory.
    OwnDirectory,
    /// A forced leader waits until a leader that reaches the engine has learnt of it.
    ForceWait,
}
