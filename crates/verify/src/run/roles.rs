//! Roles of instances at the moment, and the number of copies of a pair or cluster of Tenbin.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::stage::Stage;
use crate::line::Line;
use crate::plan::Instance;
use crate::status::{self, NodeRole, Status};
use crate::systems;
use crate::template::{InstanceRole, StartBy};

/// Pause between two looks at all nodes.
const LOOK: Duration = Duration::from_millis(50);
/// Most time until a node leads.
const LEADER: Duration = Duration::from_secs(10);
/// Most time until there are enough copies.
const COPIES: Duration = Duration::from_secs(60);

/// An instance that tells its status.
pub(crate) struct ClusterNode<'s> {
    pub(crate) instance: &'s Instance,
    /// Its unix socket, as its machine sees it.
    pub(crate) socket: PathBuf,
}

impl Stage {
    /// Instances that tell their status.
    pub(crate) fn nodes(&self) -> Vec<ClusterNode<'_>> {
        let mut nodes = Vec::new();
        for instance in self.plan.instances.iter().filter(|instance| instance.start == StartBy::Kind) {
            let Ok(system) = systems::system(instance.kind) else { continue };
            let socket = system.status_socket(instance, &self.world.data(&instance.machine));
            nodes.extend(socket.map(|socket| ClusterNode { instance, socket }));
        }
        nodes
    }

    /// Waits until a leader says that there are `copies`, or until the run is over.
    pub(crate) fn await_copies(&self, copies: u32, is_over: &AtomicBool) -> Result<(), String> {
        let (nodes, deadline) = (self.nodes(), Instant::now() + COPIES);
        loop {
            let statuses = nodes.iter().filter_map(|node| self.status(node)).filter(Status::serves);
            let most = statuses.map(|status| status.copies).max();
            if most.is_some_and(|most| most >= copies) {
                return Ok(());
            }
            if is_over.load(Ordering::Relaxed) || Instant::now() > deadline {
                let found = most.map_or("no node leads".to_owned(), |most| format!("copies is {most}"));
                return Err(format!("waited for copies {copies}: {found}"));
            }
            thread::sleep(LOOK);
        }
    }

    /// Present status of a node; `None` if it does not answer.
    fn status(&self, node: &ClusterNode<'_>) -> Option<Status> {
        if self.is_on_loopback() {
            return Status::parse(&status::ask(&node.socket).ok()?);
        }
        let machine = &node.instance.machine;
        let line = self.world.programs(machine).verify(["status".to_owned(), node.socket.display().to_string()]);
        Status::parse(&self.world.exec_beside(machine, &line).ok().filter(|output| output.is_success)?.stdout)
    }

    /// Roles of the nodes of one system, once one of them leads.
    fn roles_of_nodes(&self, nodes: &[&ClusterNode<'_>]) -> Result<HashMap<String, InstanceRole>, String> {
        let deadline = Instant::now() + LEADER;
        loop {
            let named = nodes.iter().map(|node| (node.instance.name.clone(), self.status(node)));
            if let Some(roles) = roles(named.collect()) {
                return Ok(roles);
            }
            if Instant::now() > deadline {
                return Err(format!("no node of {} leads", nodes[0].instance.system));
            }
            thread::sleep(LOOK);
        }
    }

    /// Roles of all instances whose system tells its leader.
    pub(crate) fn roles(&self) -> Result<HashMap<String, InstanceRole>, String> {
        let (mut roles, nodes) = (HashMap::new(), self.nodes());
        let mut systems = self.plan.instances.iter().map(|instance| &instance.system).collect::<Vec<_>>();
        systems.dedup();
        for system in systems {
            let instances: Vec<_> = self.plan.instances.iter().filter(|instance| &instance.system == system).collect();
            let nodes: Vec<_> = nodes.iter().filter(|node| node.instance.system == *system).collect();
            if !nodes.is_empty() {
                roles.extend(self.roles_of_nodes(&nodes)?);
                continue;
            }
            let Some(leader) = self.leader(&instances)? else { continue };
            for instance in instances {
                let role = if instance.name == leader { InstanceRole::Leader } else { InstanceRole::Follower };
                roles.insert(instance.name.clone(), role);
            }
        }
        Ok(roles)
    }

    /// Name of the leader of a system; `None` if it has no probe.
    fn leader(&self, instances: &[&Instance]) -> Result<Option<String>, String> {
        let [first, ..] = instances else { return Ok(None) };
        let own = first.probe.clone().map(Line::shell);
        let system = match (&own, &first.start) {
            (None, StartBy::Kind) => Some(systems::system(first.kind)?),
            _ => None,
        };
        let mut reason = String::new();
        // An instance that is away or paused cannot answer; another one can.
        for instance in instances {
            let programs = self.world.programs(&instance.machine);
            let output = match (&own, system.and_then(|system| system.probe(instances, &programs))) {
                (Some(own), _) => self.world.exec(&instance.machine, own)?,
                (None, Some(line)) => self.world.exec_beside(&instance.machine, &line)?,
                (None, None) => return Ok(None),
            };
            let name = output.stdout.trim();
            if output.is_success && instances.iter().any(|instance| instance.name == name) {
                return Ok(Some(name.to_owned()));
            }
            reason = format!("{name} {}", output.stderr.trim());
        }
        Err(format!("cannot find the leader of {}: {}", first.system, reason.trim()))
    }
}

/// Roles by the answers of all nodes of a system; `None` if no node leads. The highest epoch decides between leaders.
fn roles(answers: Vec<(String, Option<Status>)>) -> Option<HashMap<String, InstanceRole>> {
    let serving = answers.iter().filter_map(|(name, status)| Some((name, status.as_ref().filter(|s| s.serves())?)));
    let (leader, _) = serving.max_by_key(|(_, status)| status.epoch)?;
    let leader = leader.clone();
    let role = |(name, status): (String, Option<Status>)| {
        let role = match status.map(|status| status.role) {
            _ if name == leader => InstanceRole::Leader,
            Some(NodeRole::Follower) => InstanceRole::Follower,
            _ => InstanceRole::Spare,
        };
        (name, role)
    };
    Some(answers.into_iter().map(role).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_epoch_decides_between_leaders() {
        let answer = |name: &str, text: &str| (name.to_owned(), Status::parse(text));
        let old = answer("a", r#"{"role":"leader","epoch":3}"#);
        let new = answer("b", r#"{"role":"leader","epoch":4,"copies":2}"#);
        let others = [answer("c", r#"{"role":"follower","epoch":4}"#), answer("d", "-")];
        let roles_of = |all: &[&(String, Option<Status>)]| {
            let found = roles(all.iter().map(|&answer| answer.clone()).collect())?;
            let mut found: Vec<_> = found.into_iter().map(|(name, role)| format!("{name} {role:?}")).collect();
            found.sort();
            Some(found.join(", "))
        };
        let [c, d] = &others;
        assert_eq!(roles_of(&[&old, &new, c, d]).unwrap(), "a Spare, b Leader, c Follower, d Spare");
        assert_eq!(roles_of(&[c, d]), None);
        let stale = answer("a", r#"{"role":"leader","epoch":9,"serving":false}"#);
        assert_eq!(roles_of(&[&stale, &new]).unwrap(), "a Spare, b Leader");
    }
}
