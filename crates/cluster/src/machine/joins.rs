//! Which node the leader copies to, and when.

use std::time::Duration;

use super::{Machine, State};
use crate::node::{Node, NodeSet};
use crate::settings::Timing;

/// Copies that have ended before they were complete, since the last complete one.
///
/// Each attempt takes two epochs. Without growing pauses, a node that cannot hold a copy would use up the distance that
/// tells a forced leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct FailedJoins {
    /// Their nodes.
    nodes: NodeSet,
    /// The node of the last one.
    last: Option<Node>,
    /// Pause after the last one.
    pause: Duration,
    /// End of this pause: none of these nodes joins before.
    until: Duration,
}

impl FailedJoins {
    /// Adds a copy that has ended.
    pub(super) fn add(&mut self, node: Node, now: Duration, timing: &Timing) {
        let is_repeated = self.nodes.contains(node);
        let longer = if is_repeated { self.pause * 2 } else { self.pause };
        self.pause = longer.min(timing.join_pause_max).max(timing.read_every);
        self.nodes.insert(node);
        (self.last, self.until) = (Some(node), now + self.pause);
    }

    /// Forgets a node, whose process is a new one.
    pub(super) fn forget(&mut self, node: Node) {
        self.nodes.remove(node);
        self.last.take_if(|last| *last == node);
        if self.nodes.is_empty() {
            *self = Self::default();
        }
    }

    /// True if this node may join now.
    pub(super) fn permit(&self, node: Node, now: Duration) -> bool {
        now >= self.until || !self.nodes.contains(node)
    }

    #[cfg(test)]
    pub(super) fn time(&mut self) -> &mut Duration {
        &mut self.until
    }
}

impl Machine {
    /// The node that had the copy before, at once; any other one after a time.
    pub(super) fn choose_joiner(&self, now: Duration) -> Option<Node> {
        let State::Leader(leader) = &self.state else { return None };
        let peers = self.peers.without(self.settings.node).without_all(self.barred_peers);
        if now < leader.join_after {
            return None;
        }
        let failed = &leader.failed_joins;
        let fresh = peers.without_all(failed.nodes);
        let permitted = if now < failed.until { fresh } else { peers };
        let is_late = now >= leader.alone_since + self.settings.timing.replace_after;
        if let Some(previous) = leader.previous.filter(|_| !is_late) {
            return permitted.contains(previous).then_some(previous);
        }
        // A node that cannot join does not keep others from it.
        let others = failed.last.map_or(permitted, |last| permitted.without(last));
        let nodes = [fresh, others, permitted].into_iter().find(|nodes| !nodes.is_empty())?;
        leader.previous.filter(|node| nodes.contains(*node)).or(nodes.first())
    }
}
