//! What operators see of a node.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tenbin_broker::Lease;
use tenbin_cluster::{Loss, Notice, PromotionRefused, Step};

use super::super::relay::Relay;
use super::super::status::{EngineStatus, NodeStatus, PeerStatus, Role};
use super::{CopyTask, Node};

/// Facts for the status that no other part keeps.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) engine_error: Option<String>,
    broker_error: Option<String>,
    opened_at: Option<Instant>,
    takeover: Option<Duration>,
    /// The leader's clock minus this node's, in milliseconds.
    clock_offset_ms: i64,
    set_aside: Option<PathBuf>,
    listen_error: Option<String>,
    is_link_up: bool,
}

impl Report {
    pub(super) fn opens(&mut self) {
        self.opened_at = Some(Instant::now());
    }

    pub(super) fn serves(&mut self) {
        if let Some(opened_at) = self.opened_at.take() {
            self.takeover = Some(opened_at.elapsed());
        }
        self.broker_error = None;
    }

    pub(super) fn note_error(&mut self, error: String) {
        self.broker_error = Some(error);
    }

    /// Logs once why the listeners cannot be opened.
    pub(super) fn not_listening(&mut self, error: &str) {
        if self.listen_error.as_deref() != Some(error) {
            tracing::warn!(error, "cannot open the listeners yet");
            self.listen_error = Some(error.to_owned());
        }
    }

    pub(super) fn note_clock(&mut self, theirs: u64, own: u64) {
        if theirs > 0 {
            self.clock_offset_ms = theirs.cast_signed().saturating_sub(own.cast_signed());
        }
    }

    pub(super) fn set_aside(&mut self, path: PathBuf) {
        self.set_aside = Some(path);
    }

    pub(super) fn link_up(&mut self) {
        self.is_link_up = true;
    }

    /// True if the link was open.
    pub(super) fn link_down(&mut self) -> bool {
        std::mem::take(&mut self.is_link_up)
    }
}

impl Node {
    /// The node's status.
    pub(super) fn status(&self) -> NodeStatus {
        let status = self.machine.status(Lease::now());
        let own = self.names.name(self.own);
        let peers = self.config.cluster.nodes.iter().filter(|node| node.name != own);
        let peers = peers.map(|node| {
            let is_leader = status.record.is_some_and(|record| self.names.name(record.leader) == node.name);
            let is_open =
                self.names.nodes().any(|number| self.names.name(number) == node.name && self.links.contains(number));
            let joiner = status.record.and_then(|record| record.joiner);
            let is_joiner = joiner.is_some_and(|joiner| self.names.name(joiner) == node.name);
            PeerStatus {
                node: node.name.clone(),
                address: node.address.clone(),
                is_linked: is_open || is_leader && self.report.is_link_up,
                copied_bytes: is_joiner.then(|| self.copied_bytes()).flatten(),
            }
        });
        NodeStatus {
            cluster: self.config.cluster.name.clone(),
            node: own.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: match status.step {
                Step::Starting | Step::Opening | Step::Closing | Step::Stopped => Role::Starting,
                Step::Leading | Step::Fenced => Role::Leader,
                Step::Following => Role::Follower,
                Step::Joining => Role::Joiner,
                Step::Spare | Step::Barred => Role::Spare,
            },
            serving: status.may_act,
            record: status.record.map(|record| self.stored(&record)),
            copies: status.copies,
            engine: EngineStatus {
                kind: if self.engine.is_some() { "etcd" } else { "manual" }.to_owned(),
                error: self.report.engine_error.clone(),
            },
            peers: peers.collect(),
            relay: self.relay.as_ref().map(Relay::figures),
            takeover_ms: self.report.takeover.map(|took| took.as_millis() as u64),
            findings: self.findings(&status),
        }
    }

    fn copied_bytes(&self) -> Option<u64> {
        self.serving.as_ref().map(|serving| serving.mirror.stats().copied_bytes)
    }

    fn findings(&self, status: &tenbin_cluster::Status) -> Vec<String> {
        let mut findings = Vec::new();
        if status.is_held {
            findings.push("Acknowledgements wait for a second copy: copies_minimum is 2.".to_owned());
        }
        if status.step == Step::Fenced {
            findings.push("This node ends all clients: it reaches neither its follower nor the engine.".to_owned());
        }
        if let Some(alone) = status.alone_for {
            findings.push(format!("This node has been the only copy for {} s.", alone.as_secs()));
        }
        if let Some(behind) = status.behind_for.filter(|behind| *behind > Duration::from_secs(1)) {
            findings.push(format!("The leader was heard {} s ago.", behind.as_secs()));
        }
        if self.report.clock_offset_ms.unsigned_abs() > CLOCK_OFFSET_MAX_MS {
            let offset = self.report.clock_offset_ms;
            findings.push(format!("The leader's clock differs by {offset} ms: use NTP on all nodes."));
        }
        if let Some(error) = &self.report.broker_error {
            findings.push(format!("The broker could not start: {error}."));
        }
        if let Some(path) = &self.report.set_aside {
            findings.push(format!("An old store was set aside in {}.", path.display()));
        }
        if let CopyTask::Beginning { .. } = self.copy {
            findings.push("Waiting for the leader to accept the copy.".to_owned());
        }
        let lasts = |notice: &Notice| match notice {
            Notice::RecordMissing | Notice::RecordOlder { .. } | Notice::BrokerFailed | Notice::DiskFailed => true,
            Notice::Barred => status.step == Step::Barred,
            Notice::EngineAway => status.is_engine_away,
            _ => false,
        };
        findings.extend(status.last_error.filter(lasts).map(|notice| self.words(notice)));
        findings
    }

    /// Why a promotion is refused.
    pub(super) fn refusal(&self, refused: PromotionRefused) -> String {
        match refused {
            PromotionRefused::Leads => "this node leads already, or is about to".to_owned(),
            PromotionRefused::NoCopy => "this node has no complete copy".to_owned(),
            PromotionRefused::MayBeBehind => {
                let behind = self.machine.status(Lease::now()).behind_for;
                let since = behind.map_or(String::new(), |behind| format!(" for {} s", behind.as_secs()));
                format!(
                    "the leader has not been heard{since}, and may have gone on alone: this copy may lack messages that it has \
                     acknowledged since; --accept-loss promotes the node nevertheless"
                )
            }
        }
    }

    /// A notice as a sentence.
    pub(super) fn words(&self, notice: Notice) -> String {
        let name = |node| self.names.name(node);
        match notice {
            Notice::RecordMissing => "The engine has no record of this cluster, but this node has a mark.".to_owned(),
            Notice::RecordOlder { found, known } => {
                format!(
                    "The engine's record has epoch {found}, but this node knows epoch {known}: the engine has lost data."
                )
            }
            Notice::EngineAway => "The engine does not answer: no takeover is possible.".to_owned(),
            Notice::EngineBack => "The engine answers again.".to_owned(),
            Notice::Barred => {
                "This node may lack messages that its machine has lost: it waits for the follower to take over."
                    .to_owned()
            }
            Notice::TakingOver { epoch } => format!("Taking over: the leader of epoch {epoch} is lost."),
            Notice::Leads { epoch } => format!("This node leads in epoch {epoch}."),
            Notice::Deposed { epoch, leader } => format!("Node {} leads in epoch {epoch}.", name(leader)),
            Notice::CopyComplete { node } => format!("Node {} has a complete copy and may take over.", name(node)),
            Notice::CopyLost { node, loss } => {
                let why = match loss {
                    Loss::Silent => "it does not answer",
                    Loss::Refused => "its process has ended",
                    Loss::Failed => "its copy has ended",
                    Loss::Restarted => "it was restarted",
                };
                format!("Going on without the copy of node {}: {why}.", name(node))
            }
            Notice::BrokerFailed => {
                "The broker could not start: this node does not lead until it is restarted.".to_owned()
            }
            Notice::DiskFailed => "The disk has failed: this node does not lead until it is restarted.".to_owned(),
        }
    }
}

/// Difference of clocks that operators should know.
const CLOCK_OFFSET_MAX_MS: u64 = 500;
