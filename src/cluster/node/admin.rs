//! Admin HTTP of the node: its state and its metrics. The server is open at every node.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tenbin_admin::{BoxFuture, Check, Exposition, Kind, LeaderView, NodeView};
use tenbin_broker::config::Config;
use tenbin_broker::hooks::{CopiesChange, LeaderChange};
use tenbin_broker::{Lease, NodeAdmin, write_process_metrics};
use tenbin_cluster::{Notice, Status, Step};
use tenbin_store::mirror::{MirrorStats, TrafficStats, WAIT_BOUNDS};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::relay::Relay;
use super::super::status::{NodeStatus, Role};
use super::report::{Counts, LOSSES, LeaderClients};
use super::{Event, Events, Node};

/// State of a node at a moment, for the thread of its admin server.
#[derive(Debug)]
pub(super) struct View {
    status: NodeStatus,
    step: Step,
    leader: Option<LeaderView>,
    /// Time since the leader was heard, if this node does not lead.
    heard: Option<Duration>,
    /// Whether clients find open listeners.
    is_listening: bool,
    /// Silence after which a node counts as dead.
    dead_after: Duration,
    clock_offset: Duration,
    counts: Counts,
    refused: Vec<(&'static str, u64)>,
    backups: Vec<(&'static str, u64)>,
    mirror: Option<MirrorStats>,
}

/// The node behind its admin server.
struct Administered {
    events: Events,
    started_at: SystemTime,
}

/// Opens admin HTTP, if it is configured.
///
/// # Errors
/// The address or the tokens cannot be used. The text names the cause.
pub(super) fn start(config: &Config, events: &Events) -> Result<Option<Arc<NodeAdmin>>, String> {
    let node = Administered { events: events.clone(), started_at: SystemTime::now() };
    let started = NodeAdmin::start(config, Arc::new(node)).map_err(|error| format!("admin: {error}"))?;
    Ok(started.map(Arc::new))
}

impl tenbin_admin::Node for Administered {
    fn view(&self) -> BoxFuture<'_, Option<NodeView>> {
        Box::pin(async {
            let (answer, answered) = oneshot::channel();
            self.events.offer(Event::View(answer));
            let view = timeout(ANSWER_WITHIN, answered).await.ok()?.ok()?;
            let mut metrics = Exposition::default();
            view.write_metrics(&mut metrics);
            write_process_metrics(&mut metrics, self.started_at);
            Some(NodeView {
                role: view.status.role.name(),
                is_leader: view.leads(),
                leader: view.leader.clone(),
                checks: view.checks(),
                metrics,
                status: serde_json::to_value(&view.status).unwrap_or(Value::Null),
            })
        })
    }
}

impl Node {
    /// The node's present state.
    pub(super) fn view(&self) -> View {
        let status = self.machine.status(Lease::now());
        let node = self.status();
        View {
            is_listening: self.relay.is_some() || node.role == Role::Leader,
            status: node,
            step: status.step,
            leader: self.leader_view(),
            heard: self.heard_for(&status),
            dead_after: self.config.cluster.dead_after(),
            clock_offset: Duration::from_millis(self.report.clock_offset_ms.unsigned_abs()),
            counts: self.report.counts,
            refused: self.report.refusals.all().collect(),
            backups: self.report.backups.counts().collect(),
            mirror: self.serving.as_ref().map(|serving| serving.mirror.stats()),
        }
    }

    /// Why new clients find no leader at this node, as far as it knows; `None` = they are taken. A leader that is only silent
    /// may be there: clients wait for it.
    pub(super) fn no_clients(&self, status: &Status) -> Option<String> {
        if let Some(namesake) = self.namesake(status) {
            return Some(namesake);
        }
        let reason = match status.step {
            Step::Fenced => "it reaches neither its follower nor the engine",
            Step::HandingOver => "it hands over to its follower",
            Step::Opening => "it begins to lead",
            Step::Closing => "it ceases to lead",
            Step::Stopped => "it ends",
            Step::Leading => {
                let broker = self.serving.as_ref().and_then(|serving| serving.broker())?;
                return self
                    .report
                    .is_drained(broker.is_drained())
                    .then(|| "an operator sends clients away".to_owned());
            }
            Step::Starting | Step::Spare | Step::Joining | Step::Following | Step::Barred => {
                return self.no_leader(status);
            }
        };
        Some(reason.to_owned())
    }

    /// Why another node takes no clients of this one.
    fn no_leader(&self, status: &Status) -> Option<String> {
        let Some(leader) = status.record.map(|record| record.leader).filter(|leader| *leader != self.own) else {
            return Some("this node knows no leader".to_owned());
        };
        let reason = match (self.report.leader_clients(), self.report.heard_for()) {
            (LeaderClients::HandsOver, _) => "hands over".to_owned(),
            _ if self.machine.leader().is_none() => "has ended, or does not lead any more".to_owned(),
            (LeaderClients::Refused, _) => "takes no new clients".to_owned(),
            (LeaderClients::Taken, None) => "has not been heard yet".to_owned(),
            (LeaderClients::Taken, Some(heard)) if heard > Relay::LEADER_WITHIN => {
                format!("was heard {} s ago", heard.as_secs())
            }
            (LeaderClients::Taken, Some(_)) => return None,
        };
        Some(format!("node {} {reason}", self.names.name(leader)))
    }

    /// The leader, and its admin HTTP.
    pub(super) fn leader_view(&self) -> Option<LeaderView> {
        let record = self.machine.record()?;
        let node = self.names.name(record.leader).to_owned();
        if record.leader != self.own {
            return Some(LeaderView { node, admin: self.report.leader_admin.clone() });
        }
        self.machine.status(Lease::now()).step.leads().then(|| LeaderView { node, admin: self.admin_for_others() })
    }

    /// URL of this node's admin HTTP, if other machines reach it.
    pub(super) fn admin_for_others(&self) -> Option<String> {
        reachable(&self.admin.as_ref()?.url(), self.config.cluster.own()?.host())
    }

    /// Tells hooks that this node leads, if another one did.
    pub(super) fn tell_begin(&mut self) {
        let own = self.names.name(self.own);
        let Some(began) = self.report.serves(own) else { return };
        let epoch = self.machine.record().map_or(0, |record| record.epoch);
        if let Some(broker) = self.serving.as_ref().and_then(|serving| serving.broker()) {
            let (previous, duration) = (began.previous.as_deref(), began.duration);
            broker.leader_changed(&LeaderChange { epoch, leader: own, previous, duration });
        }
    }

    /// Tells hooks that a node has got a complete copy or has lost its own.
    pub(super) fn tell_copies(&self, notice: &Notice) {
        let (Notice::CopyComplete { node } | Notice::CopyLost { node, .. }) = *notice else { return };
        let status = self.machine.status(Lease::now());
        let copies = match notice {
            Notice::CopyComplete { .. } => 2,
            // The record changes next, and the leader goes on alone. A joiner was no copy yet.
            _ if status.record.is_some_and(|record| record.copies() > 1) => 1,
            _ => return,
        };
        let epoch = status.record.map_or(0, |record| record.epoch);
        if let Some(broker) = self.serving.as_ref().and_then(|serving| serving.broker()) {
            broker.copies_changed(&CopiesChange { epoch, copies, node: self.names.name(node) });
        }
    }
}

/// URL by which other machines reach an address that is open at the host `host`. `None` = they do not.
fn reachable(url: &str, host: &str) -> Option<String> {
    let (scheme, address) = url.split_once("://")?;
    let address: SocketAddr = address.parse().ok()?;
    let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    // Nodes on one machine, as of `tenbin cluster dev`.
    let is_one_machine = host == "localhost" || host.parse().is_ok_and(is_loopback);
    match address.ip() {
        ip if ip.is_unspecified() && host.contains(':') => Some(format!("{scheme}://[{host}]:{}", address.port())),
        ip if ip.is_unspecified() => Some(format!("{scheme}://{host}:{}", address.port())),
        ip if is_loopback(ip) && !is_one_machine => None,
        _ => Some(url.to_owned()),
    }
}

impl View {
    fn leads(&self) -> bool {
        self.status.role == Role::Leader
    }

    /// Whether the node leads, or hears the leader.
    fn has_leader(&self) -> bool {
        self.leads() && self.step != Step::Fenced
            || self.leader.is_some() && !self.leads() && self.heard.is_some_and(|heard| heard < self.dead_after)
    }

    /// Whether clients should be sent here.
    fn checks(&self) -> Vec<Check> {
        let leader = self.status.no_clients.clone();
        let listeners = (!self.is_listening).then(|| "they are not open".to_owned());
        vec![Check::new("cluster", leader), Check::new("listeners", listeners)]
    }

    fn write_metrics(&self, into: &mut Exposition) {
        let Self { status, counts, .. } = self;
        for role in Role::ALL {
            let help = "1 for the present role of this node.";
            let value = f64::from(u8::from(role == status.role));
            into.add("tenbin_cluster_role", Kind::Gauge, help, &[("role", role.name())], value);
        }
        let flag = |is_so: bool| Some(f64::from(u8::from(is_so)));
        let heard = self.heard.or_else(|| self.leads().then_some(Duration::ZERO));
        let epoch = status.record.as_ref().map(|record| record.epoch as f64);
        let join = status.peers.iter().find_map(|peer| peer.copied_bytes.zip(peer.log_bytes));
        for (name, help, value) in [
            ("epoch", "Number of the record that this node knows.", epoch),
            ("copies", "Nodes that have everything acknowledged, as this node knows.", Some(f64::from(status.copies))),
            ("has_leader", "1 while this node leads or hears the leader.", flag(self.has_leader())),
            ("may_act", "1 while this node leads and its lease holds.", flag(status.serving)),
            ("leader_heard_seconds", "Time since the leader was heard; 0 at the leader.", seconds(heard)),
            ("clock_offset_seconds", "Difference from the leader's clock.", seconds(Some(self.clock_offset))),
            ("agreement_up", "1 while the engine has answered last.", flag(status.engine.error.is_none())),
            (
                "takeover_seconds",
                "Time of the last takeover by this node.",
                status.takeover_ms.map(|ms| ms as f64 / 1e3),
            ),
            ("join_bytes", "Bytes that the present join has copied or compared.", join.map(|(done, _)| done as f64)),
            ("join_log_bytes", "Bytes of the log that it has to copy or compare.", join.map(|(_, all)| all as f64)),
            ("relay_open", "Clients that this node passes on.", status.relay.map(|relay| relay.open as f64)),
        ] {
            value
                .into_iter()
                .for_each(|value| into.add(&format!("tenbin_cluster_{name}"), Kind::Gauge, help, &[], value));
        }
        for (name, help, value) in [
            (
                "agreement_errors",
                "Requests to the engine without a usable answer.",
                Some(counts.agreement_errors as f64),
            ),
            ("joins", "Copies that have become complete while this node led.", Some(counts.joins as f64)),
            ("checks", "Comparisons that found this node's copy equal.", Some(counts.checks as f64)),
            ("damages", "Comparisons that found damage at this node.", Some(counts.damages as f64)),
            ("takeovers", "Times that this node began to lead.", Some(counts.takeovers as f64)),
            ("pauses", "Times that the leader might not act for a while.", Some(counts.pauses as f64)),
            ("pause_seconds", "Time in which the leader might not act.", seconds(Some(counts.paused))),
            ("relay_connections", "Clients that the relay has accepted.", status.relay.map(|relay| relay.total as f64)),
            ("relay_refused", "Clients closed for want of a leader.", status.relay.map(|relay| relay.refused as f64)),
            ("relay_bytes", "Bytes that the relay has passed on.", status.relay.map(|relay| relay.bytes as f64)),
        ] {
            let name = format!("tenbin_cluster_{name}_total");
            value.into_iter().for_each(|value| into.add(&name, Kind::Counter, help, &[], value));
        }
        for ((_, reason), count) in LOSSES.iter().zip(counts.losses) {
            let help = "Copies that the leader has gone on without, by reason.";
            into.add("tenbin_cluster_copies_lost_total", Kind::Counter, help, &[("reason", reason)], count as f64);
        }
        for (reason, count) in &self.refused {
            let help = "Connections that the cluster port has refused or closed, by reason.";
            into.add("tenbin_cluster_refused_total", Kind::Counter, help, &[("reason", reason)], *count as f64);
        }
        for (result, count) in &self.backups {
            let help = "Backups that commands have asked this node for, by their result.";
            into.add("tenbin_cluster_backups_total", Kind::Counter, help, &[("result", result)], *count as f64);
        }
        if let Some(MirrorStats { log, state, log_behind, state_behind, .. }) = &self.mirror {
            write_traffic(into, "messages", log, *log_behind);
            write_traffic(into, "state", state, *state_behind);
        }
    }
}

/// Writes the figures of one part of the mirror.
fn write_traffic(into: &mut Exposition, part: &str, traffic: &TrafficStats, behind: u64) {
    let labels = [("part", part)];
    let mut add = |name, kind, help, value: u64| into.add(name, kind, help, &labels, value as f64);
    let help = "Operations that the copy has not confirmed.";
    add("tenbin_cluster_mirror_behind", Kind::Gauge, help, behind);
    let help = "Operations sent to the copy.";
    add("tenbin_cluster_mirror_operations_total", Kind::Counter, help, traffic.operations);
    add("tenbin_cluster_mirror_bytes_total", Kind::Counter, "Bytes sent to the copy.", traffic.bytes);
    let bounds = WAIT_BOUNDS.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
    let help = "Time that commits waited for the copy after their own disk had them.";
    let (counts, sum) = (bounds.zip(traffic.waits), traffic.waited.as_secs_f64());
    into.add_histogram("tenbin_cluster_mirror_wait_seconds", help, &labels, counts, sum);
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

/// Time for the node to answer its admin server.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_address_is_told_if_others_reach_it() {
        for (url, host, expected) in [
            ("http://0.0.0.0:9883", "10.0.0.1", Some("http://10.0.0.1:9883")),
            ("http://[::]:9883", "2001:db8::1", Some("http://[2001:db8::1]:9883")),
            ("http://[::]:9883", "a.example", Some("http://a.example:9883")),
            ("http://10.0.0.7:9883", "10.0.0.1", Some("http://10.0.0.7:9883")),
            ("http://127.0.0.1:9883", "10.0.0.1", None),
            ("http://127.0.0.1:9883", "127.0.0.1", Some("http://127.0.0.1:9883")),
            ("https://0.0.0.0:9883", "10.0.0.1", Some("https://10.0.0.1:9883")),
            ("unix:/run/tenbin.sock", "10.0.0.1", None),
        ] {
            assert_eq!(reachable(url, host).as_deref(), expected, "{url} at {host}");
        }
    }
}
