//! What operators see of a node.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_broker::Lease;
use tenbin_cluster::{Loss, Notice, Step};

use super::super::agreement::Agreement as Engine;
use super::super::backups::Backups;
use super::super::link::listen::Refusals;
use super::super::relay::Relay;
use super::super::status::{EngineStatus, NodeStatus, PeerStatus, Role};
use super::look::HANGS_AFTER;
use super::{CopyTask, Node};

/// Facts for the status that no other part keeps.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) engine_error: Option<String>,
    broker_error: Option<String>,
    opened_at: Option<Instant>,
    pub(super) takeover: Option<Duration>,
    /// When this node began to lead last, in milliseconds since 1970.
    pub(super) took_over_at: Option<u64>,
    /// The leader of the record at the last opening of the broker.
    previous: Option<String>,
    /// The leader's clock minus this node's, in milliseconds.
    pub(super) clock_offset_ms: i64,
    started_at: Option<Instant>,
    /// When the last beacon of the present leader came.
    heard_at: Option<Instant>,
    /// Whether any leader was heard since the start.
    has_heard: bool,
    /// The leader's last word on new clients.
    leader_clients: LeaderClients,
    /// The last known answer of this node's broker whether all its listeners are drained.
    was_drained: Cell<bool>,
    /// Why other nodes did not answer the last question, by their names.
    silent: BTreeMap<String, String>,
    /// URL of the leader's admin HTTP.
    pub(super) leader_admin: Option<String>,
    set_aside: Option<PathBuf>,
    listen_error: Option<String>,
    is_link_up: bool,
    /// Why the link to the leader cannot be opened.
    no_link: Option<NoLink>,
    /// The leader's format that this node cannot read, in words.
    unreadable: Option<String>,
    /// Nodes that get no copy of this one, why, and what to do.
    without_copy: BTreeMap<String, String>,
    /// Damage that a comparison has found last, as a sentence.
    damage: Option<String>,
    pub(super) counts: Counts,
    pub(super) refusals: Arc<Refusals>,
    pub(super) backups: Arc<Backups>,
}

/// A leader's word on new clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LeaderClients {
    #[default]
    Taken,
    /// It takes no new ones.
    Refused,
    /// It hands over: they wait.
    HandsOver,
}

/// Why there is no link.
#[derive(Debug)]
struct NoLink {
    reason: String,
    /// The leader answers, and does not accept this node.
    is_lasting: bool,
    /// It has another process with this node's name.
    is_namesake: bool,
    since: Instant,
}

/// Counts since the start of the node.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) agreement_errors: u64,
    /// Copies at other nodes that have become complete.
    pub(super) joins: u64,
    /// Copies that the leader has gone on without, by [`LOSSES`].
    pub(super) losses: [u64; LOSSES.len()],
    pub(super) takeovers: u64,
    /// Comparisons that have found no difference of this node's copy.
    pub(super) checks: u64,
    /// Comparisons that have found damage at this node.
    pub(super) damages: u64,
    /// Times in which the broker might not act, and their sum.
    pub(super) pauses: u64,
    pub(super) paused: Duration,
}

/// Why copies are lost, with the words for metrics.
pub(super) const LOSSES: [(Loss, &str); 4] =
    [(Loss::Silent, "silent"), (Loss::Refused, "ended"), (Loss::Failed, "failed"), (Loss::Restarted, "restarted")];

/// A new leader, for hooks.
pub(super) struct Began {
    pub(super) previous: Option<String>,
    pub(super) duration: Duration,
}

impl Report {
    /// The report of a node that starts.
    pub(super) fn begin() -> Self {
        Self { started_at: Some(Instant::now()), ..Self::default() }
    }

    /// Notes that the node opens its broker. `previous`: the leader of the record that it knows.
    pub(super) fn opens(&mut self, previous: Option<String>) {
        self.opened_at = Some(Instant::now());
        self.previous = previous;
    }

    /// Notes that the node leads. `None` = it has led before.
    pub(super) fn serves(&mut self, own: &str) -> Option<Began> {
        self.broker_error = None;
        let opened_at = self.opened_at.take()?;
        self.takeover = Some(opened_at.elapsed());
        self.took_over_at = Some(super::clock_ms());
        self.counts.takeovers += 1;
        let begin = self.heard_at.take().unwrap_or(opened_at);
        let previous = self.previous.take();
        (previous.as_deref() != Some(own)).then(|| Began { previous, duration: begin.elapsed() })
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

    /// Notes a beacon, with the leader's clock and this node's.
    pub(super) fn heard(&mut self, theirs: u64, own: u64, takes_clients: bool) {
        (self.heard_at, self.has_heard) = (Some(Instant::now()), true);
        self.leader_clients = if takes_clients { LeaderClients::Taken } else { LeaderClients::Refused };
        if theirs > 0 {
            self.clock_offset_ms = theirs.cast_signed().saturating_sub(own.cast_signed());
        }
    }

    /// Notes that the leader hands over. Its next beacon says that it goes on.
    pub(super) fn leader_leaves(&mut self) {
        self.leader_clients = LeaderClients::HandsOver;
    }

    pub(super) fn leader_clients(&self) -> LeaderClients {
        self.leader_clients
    }

    /// Whether all listeners of the leader are drained. `now`: the word of its broker; `None` = it cannot tell just now.
    pub(super) fn is_drained(&self, now: Option<bool>) -> bool {
        let is_drained = now.unwrap_or(self.was_drained.get());
        self.was_drained.set(is_drained);
        is_drained
    }

    /// Notes whether another node has answered a question. The log has the first error of each silence.
    pub(super) fn asked(&mut self, node: &str, error: Option<&String>) {
        match error {
            None => drop(self.silent.remove(node)),
            Some(error) => {
                if self.silent.insert(node.to_owned(), error.clone()).is_none() {
                    tracing::warn!(node, error, "cannot ask a node for its status");
                }
            }
        }
    }

    /// Silence of the leader as a sentence. `behind`: how long the node has waited for it.
    fn silence(&self, leader: &str, behind: Duration) -> String {
        let seconds = |since: Option<Instant>| since.map_or(behind, |at| at.elapsed()).as_secs();
        match self.heard_at {
            Some(at) => format!("The leader was heard {} s ago.", seconds(Some(at))),
            None if self.has_heard => {
                format!("Node {leader} leads, and was not heard yet, for {} s.", behind.as_secs())
            }
            None => format!("No leader was heard since the start, {} s ago.", seconds(self.started_at)),
        }
    }

    /// Notes damage that a comparison has found.
    pub(super) fn damaged(&mut self, sentence: String) {
        self.damage = Some(sentence);
        self.counts.damages += 1;
    }

    pub(super) fn set_aside(&mut self, path: PathBuf) {
        self.set_aside = Some(path);
    }

    /// Time since the leader was heard.
    pub(super) fn heard_for(&self) -> Option<Duration> {
        self.heard_at.map(|at| at.elapsed())
    }

    /// Whether the link to the leader is open.
    pub(super) fn is_linked(&self) -> bool {
        self.is_link_up
    }

    pub(super) fn engine_answers(&mut self) {
        self.engine_error = None;
    }

    pub(super) fn engine_fails(&mut self, error: String) {
        self.engine_error = Some(error);
        self.counts.agreement_errors += 1;
    }

    /// Notes a time in which the broker might not act.
    pub(super) fn paused(&mut self, time: Duration) {
        self.counts.pauses += 1;
        self.counts.paused += time;
    }

    pub(super) fn note(&mut self, notice: &Notice) {
        match notice {
            Notice::CopyComplete { .. } => self.counts.joins += 1,
            Notice::CopyLost { loss, .. } => {
                let at = LOSSES.iter().position(|(known, _)| known == loss);
                at.into_iter().for_each(|at| self.counts.losses[at] += 1);
            }
            _ => {}
        }
    }

    /// Notes that the link is open. `unreadable`: the leader's format that this node cannot read. `admin`: URL of its admin
    /// HTTP.
    pub(super) fn link_up(&mut self, unreadable: Option<String>, admin: Option<String>) {
        self.is_link_up = true;
        self.no_link = None;
        self.leader_admin = admin;
        if let Some(reason) = unreadable.as_ref().filter(|_| self.unreadable != unreadable) {
            tracing::error!(reason, "this node gets no copy: it cannot read the leader's formats");
        }
        self.unreadable = unreadable;
    }

    /// Notes whether a node gets a copy of this one, or why not and what to do.
    pub(super) fn gets_copy(&mut self, node: &str, obstacle: Option<String>) {
        match obstacle {
            None => drop(self.without_copy.remove(node)),
            Some(reason) if self.without_copy.get(node) == Some(&reason) => {}
            Some(reason) => {
                tracing::warn!(node, reason, "the node gets no copy");
                self.without_copy.insert(node.to_owned(), reason);
            }
        }
    }

    /// Notes that the open link has ended.
    pub(super) fn link_down(&mut self) {
        self.is_link_up = false;
    }

    /// Notes that the node opens a link to another leader.
    pub(super) fn connects(&mut self) {
        (self.leader_admin, self.no_link, self.is_link_up) = (None, None, false);
        (self.heard_at, self.leader_clients) = (None, LeaderClients::Taken);
    }

    /// Notes why the link cannot be opened. True: the leader has not refused it for this reason before.
    pub(super) fn link_fails(&mut self, reason: &str, is_lasting: bool, is_namesake: bool) -> bool {
        let before = self.no_link.take();
        let is_known = before.as_ref().is_some_and(|before| before.is_lasting && before.reason == reason);
        let since = before.map_or_else(Instant::now, |before| before.since);
        self.no_link = Some(NoLink { reason: reason.to_owned(), is_lasting, is_namesake, since });
        is_lasting && !is_known
    }

    /// Why there is no link, if that is more than a moment between two leaders.
    fn no_link(&self) -> Option<&str> {
        let told = |no_link: &&NoLink| no_link.is_lasting || no_link.since.elapsed() > MOMENT;
        self.no_link.as_ref().filter(told).map(|no_link| &no_link.reason[..])
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
            let join = self.serving.as_ref().filter(|_| is_joiner && is_open).map(|serving| serving.mirror.stats());
            PeerStatus {
                node: node.name.clone(),
                address: node.address.clone(),
                is_linked: is_open || is_leader && self.report.is_link_up,
                // Small files count as well.
                copied_bytes: join.map(|stats| stats.copied_bytes.min(stats.log_bytes)),
                log_bytes: join.map(|stats| stats.log_bytes),
                error: self.report.silent.get(&node.name).cloned(),
            }
        });
        NodeStatus {
            cluster: self.config.cluster.name.clone(),
            node: own.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: match status.step {
                Step::Starting | Step::Opening | Step::Closing | Step::Stopped => Role::Starting,
                Step::Leading | Step::HandingOver | Step::Fenced => Role::Leader,
                Step::Following => Role::Follower,
                Step::Joining => Role::Joiner,
                Step::Spare | Step::Barred => Role::Spare,
            },
            serving: status.may_act,
            record: status.record.map(|record| self.stored(&record)),
            known_epoch: self.machine.known().map_or(0, |record| record.epoch),
            copies: status.copies,
            engine: EngineStatus {
                kind: self.engine.as_ref().map_or("manual", Engine::name).to_owned(),
                error: self.report.engine_error.clone(),
            },
            peers: peers.collect(),
            relay: self.relay.as_ref().map(Relay::figures),
            takeover_ms: self.report.takeover.map(|took| took.as_millis() as u64),
            took_over_at_ms: self.report.took_over_at,
            leader_admin: self.leader_view().and_then(|leader| leader.admin),
            heard_ms: self.heard_for(&status).map(|time| time.as_millis() as u64),
            process: self.namesakes.process,
            namesake: self.namesake(&status),
            no_clients: self.no_clients(&status),
            findings: self.findings(&status),
        }
    }

    /// Why this process does not act beside another one with the node's name, as a sentence.
    pub(super) fn namesake(&self, status: &tenbin_cluster::Status) -> Option<String> {
        let refused = self.report.no_link.as_ref().filter(|no_link| no_link.is_namesake && self.link.is_some());
        let refused = refused.map(|no_link| format!("No link to the leader: {}.", no_link.reason));
        status.namesake.map(|namesake| self.namesake_words(namesake)).or(refused)
    }

    /// Time since the leader was heard; `None` = it was not, or is this node.
    pub(super) fn heard_for(&self, status: &tenbin_cluster::Status) -> Option<Duration> {
        self.report.heard_for().filter(|_| !status.step.leads())
    }

    fn findings(&self, status: &tenbin_cluster::Status) -> Vec<String> {
        let mut findings = Vec::new();
        if status.is_held {
            findings.push("Acknowledgements wait for a second copy: copies_minimum is 2.".to_owned());
        }
        if status.step == Step::Fenced {
            findings.push("This node ends all clients: it reaches neither its follower nor the engine.".to_owned());
        }
        if status.step == Step::HandingOver {
            findings.push("This node hands over to its follower: clients wait.".to_owned());
        }
        if let Some(alone) = status.alone_for {
            findings.push(format!("This node has been the only copy for {} s.", alone.as_secs()));
        }
        if let Some(behind) = status.behind_for.filter(|behind| *behind > MOMENT) {
            let leader = status.record.map_or("?", |record| self.names.name(record.leader));
            findings.push(self.report.silence(leader, behind));
        }
        findings.extend(status.namesake.map(|namesake| self.namesake_words(namesake)));
        findings.extend(self.namesakes.findings());
        if let Some(reason) = self.report.no_link().filter(|_| self.link.is_some()) {
            findings.push(format!("No link to the leader: {reason}."));
        }
        if self.report.clock_offset_ms.unsigned_abs() > CLOCK_OFFSET_MAX_MS {
            let offset = self.report.clock_offset_ms;
            findings.push(format!("The leader's clock differs by {offset} ms: use NTP on all nodes."));
        }
        if let Some(tls) = &self.tls {
            let days = CERTIFICATE_ENDS_WITHIN.as_secs() / 86_400;
            if let Some(error) = tls.refusal(Duration::ZERO) {
                findings.push(format!("This node's certificate is not valid: {error}."));
            } else if let Some(error) = tls.refusal(CERTIFICATE_ENDS_WITHIN) {
                findings.push(format!("This node's certificate is not valid for {days} more days: {error}."));
            }
        }
        if let Some(error) = self.make.fault() {
            findings.push(format!("The configuration file cannot be used, and the node keeps its last one: {error}."));
        }
        let waits = self.serving.as_ref().and_then(|serving| serving.mirror.disk_waits());
        if let Some(time) = waits.filter(|time| *time >= HANGS_AFTER) {
            findings.push(format!("The disk has not answered for {} s.", time.as_secs()));
        }
        if let Some(error) = &self.report.broker_error {
            findings.push(format!("The broker could not start: {error}."));
        }
        if let Some(path) = &self.report.set_aside {
            findings.push(format!("An old store was set aside in {}.", path.display()));
        }
        findings.extend(self.report.damage.clone());
        if let Some(reason) = self.report.unreadable.as_ref().filter(|_| self.serving.is_none()) {
            findings.push(format!("This node gets no copy: {reason}. Upgrade it."));
        }
        if self.serving.is_some() {
            let gets_none = |(node, reason)| format!("Node {node} gets no copy: {reason}.");
            findings.extend(self.report.without_copy.iter().map(gets_none));
        }
        if let CopyTask::Beginning { .. } = self.copy {
            findings.push("Waiting for the leader to accept the copy.".to_owned());
        }
        let lasts = |notice: &Notice| match notice {
            Notice::RecordMissing | Notice::RecordOlder { .. } | Notice::BrokerFailed | Notice::DiskFailed => true,
            Notice::Barred { .. } => status.step == Step::Barred,
            Notice::EngineAway => status.is_engine_away,
            _ => false,
        };
        findings.extend(status.last_error.filter(lasts).map(|notice| self.words(notice)));
        findings
    }
}

/// Silence of a leader that operators need not know.
const MOMENT: Duration = Duration::from_secs(1);
/// Validity of the node's certificate below which operators should know it.
const CERTIFICATE_ENDS_WITHIN: Duration = Duration::from_secs(10 * 86_400);
/// Difference of clocks that operators should know.
const CLOCK_OFFSET_MAX_MS: u64 = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_tells_whether_a_leader_was_ever_heard() {
        let mut report = Report::begin();
        let silence = |report: &Report| report.silence("b", Duration::from_secs(3));
        assert_eq!(silence(&report), "No leader was heard since the start, 0 s ago.");
        report.heard(0, 0, true);
        assert_eq!(silence(&report), "The leader was heard 0 s ago.");
        report.connects();
        assert_eq!(
            (silence(&report), report.heard_for()),
            ("Node b leads, and was not heard yet, for 3 s.".to_owned(), None)
        );
    }

    #[test]
    fn beacons_tell_whether_the_leader_takes_clients() {
        let mut report = Report::begin();
        assert_eq!(report.leader_clients(), LeaderClients::Taken);
        report.heard(0, 0, false);
        assert_eq!(report.leader_clients(), LeaderClients::Refused);
        report.leader_leaves();
        assert_eq!(report.leader_clients(), LeaderClients::HandsOver);
        report.heard(0, 0, true);
        assert_eq!(report.leader_clients(), LeaderClients::Taken, "it goes on");
        report.leader_leaves();
        report.connects();
        assert_eq!(report.leader_clients(), LeaderClients::Taken, "another leader");
        assert!(report.is_drained(Some(true)) && report.is_drained(None) && !report.is_drained(Some(false)));
    }

    #[test]
    fn nodes_that_do_not_answer_are_known_until_they_do() {
        let mut report = Report::begin();
        let error = "cannot connect".to_owned();
        report.asked("b", Some(&error));
        assert_eq!(report.silent.get("b"), Some(&error));
        report.asked("b", None);
        assert!(report.silent.is_empty());
    }
}
