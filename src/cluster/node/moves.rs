//! Clients that go to another node: slow receivers between the leader and its follower, and clients of a broker that ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenbin_broker::ClientAddresses;
use tenbin_cluster::{Node as NodeNumber, Step};

use super::serving::Serving;
use super::{CopyTask, Node};

impl Node {
    /// Shows the relay this node's copy, while it is complete.
    pub(super) fn show_copy(&self) {
        let follows = self.machine.status(self.last_input).step == Step::Following;
        let copy = match &self.copy {
            CopyTask::Present { copy, .. } if follows => Some(copy.reader()),
            _ => None,
        };
        self.complete_copy.send_if_modified(|old| {
            let is_same = match (&*old, &copy) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (old, new) => old.is_none() && new.is_none(),
            };
            if !is_same {
                *old = copy;
            }
            !is_same
        });
    }

    /// Ports of this node for clients, by the names of listeners in headers of relayed clients.
    pub(super) fn ports_by_name(&self) -> BTreeMap<String, u16> {
        self.ports.iter().map(|(_, name, port)| (name.to_string(), *port)).collect()
    }

    /// Tells the broker the follower to which it moves slow receivers.
    pub(super) fn show_follower(&mut self) {
        if !self.config.cluster.move_slow_receivers {
            return;
        }
        let status = self.machine.status(self.last_input);
        let follower = status.record.filter(|_| status.step == Step::Leading).and_then(|record| record.follower);
        let Some(broker) = self.serving.as_ref().and_then(Serving::broker) else { return };
        if self.moves_to == Some(follower) {
            return;
        }
        let between = follower.and_then(|follower| {
            let leader = self.client_addresses(self.own, &self.ports_by_name())?;
            let follower = self.client_addresses(follower, self.peer_ports.get(&follower)?)?;
            Some(ClientAddresses { leader, follower })
        });
        broker.move_slow_receivers(between);
        self.moves_to = Some(follower);
    }

    /// Addresses of another node for clients of a broker that ends, by the names of this node's listeners.
    pub(super) fn other_servers(&self) -> BTreeMap<String, String> {
        let other = self.machine.leader().or_else(|| self.machine.record().and_then(|record| record.follower));
        let Some(other) = other else { return BTreeMap::new() };
        let known = self.peer_ports.get(&other).filter(|ports| !ports.is_empty());
        // A node that has not told its ports has the same as this one, unless both are on one machine.
        let same = || Some(self.ports_by_name()).filter(|_| self.host(other) != self.host(self.own));
        let ports = known.cloned().or_else(same);
        ports.and_then(|ports| self.client_addresses(other, &ports)).unwrap_or_default()
    }

    /// Addresses of a node with these `ports`, by the names of this node's listeners.
    fn client_addresses(&self, node: NodeNumber, ports: &BTreeMap<String, u16>) -> Option<BTreeMap<String, String>> {
        let host = self.host(node)?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let ports = self.ports.iter().filter_map(|(name, relayed, _)| Some((name, ports.get(&**relayed)?)));
        Some(ports.map(|(name, port)| (name.to_string(), format!("{host}:{port}"))).collect())
    }

    fn host(&self, node: NodeNumber) -> Option<&str> {
        let name = self.names.name(node);
        Some(self.config.cluster.nodes.iter().find(|known| known.name == name)?.host())
    }
}
