//! Commands of operators to a running node.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenbin_broker::Lease;
use tenbin_cluster::{Input, Record, Role as RecordRole};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::super::agreement::{Read, StoredRecord, Swapped};
use super::super::control::{ControlAnswer, ControlRequest, Source};
use super::super::link::{self, FromStandby};
use super::super::status::{NodeStatus, Role};
use super::{CopyTask, Event, Node, NodeNumber, clock_ms};

/// Another node of the configuration, and its status, or why it does not answer.
#[derive(Debug)]
pub(super) struct Other {
    name: String,
    status: Result<NodeStatus, String>,
}

impl Node {
    /// Asks all other processes at the addresses of nodes for their status. The end is [`Event::OthersAsked`].
    pub(super) fn ask_others(&self, request: ControlRequest, answer: oneshot::Sender<ControlAnswer>) {
        let own = self.namesakes.process;
        let mut asked = JoinSet::new();
        for node in &self.config.cluster.nodes {
            let (name, address, tls) = (node.name.clone(), node.address.clone(), self.tls.clone());
            asked.spawn(async move {
                let asked = link::ask_status(&address, tls.as_deref(), ASK_TIMEOUT).await;
                let status = asked.map_err(|error| error.to_string());
                let status =
                    status.and_then(|status| serde_json::from_value(status).map_err(|error| error.to_string()));
                let is_own = status.as_ref().is_ok_and(|status: &NodeStatus| status.process == own);
                (!is_own).then_some(Other { name, status })
            });
        }
        let events = self.events.clone();
        tokio::spawn(async move {
            let others = asked.join_all().await.into_iter().flatten().collect();
            events.offer(Event::OthersAsked { request, others, answer });
        });
    }

    /// Goes on with a command.
    pub(super) fn others_asked(
        &mut self,
        request: &ControlRequest,
        others: &[Other],
        answer: oneshot::Sender<ControlAnswer>,
    ) -> Option<Input> {
        // Where this node does not reach itself, no operator need know it.
        let own = self.names.name(self.own);
        for Other { name, status } in others.iter().filter(|other| other.name != own) {
            self.report.asked(name, status.as_ref().err());
        }
        match *request {
            ControlRequest::Force { accept_loss } => match self.lives(others) {
                Some(error) => drop(answer.send(ControlAnswer::Failed { error })),
                None => {
                    self.promotions.push(answer);
                    return Some(Input::Force { has_store: self.is_foreign, accept_loss });
                }
            },
            ControlRequest::Adopt { yes } => self.adopt(others, yes, answer),
            _ => {}
        }
        None
    }

    /// Why no other node may be forced to lead: one of the record's nodes answers.
    fn lives(&self, others: &[Other]) -> Option<String> {
        let record = self.machine.record()?;
        let named = [Some(record.leader), record.follower].into_iter().flatten();
        named.map(|node| self.names.name(node)).find_map(|name| {
            let has_answered = others.iter().any(|other| other.name == name && other.status.is_ok());
            has_answered.then(|| {
                format!("node {name} answers, so it is not gone: it leads or takes over by itself, or end it first")
            })
        })
    }

    /// Writes the newest known record into the engine.
    ///
    /// The engine then has the record that it had, so that no rule of the cluster is touched, if there was no newer one. Only
    /// the leader and the follower of a record can have changed it. So there was no newer one if this node acts as its
    /// leader, or if both have answered and know none. Otherwise the operator has to know.
    fn adopt(&self, others: &[Other], yes: bool, answer: oneshot::Sender<ControlAnswer>) {
        let checked = self.check_adoption(others, yes);
        let both = checked.and_then(|record| Ok((record, self.engine.clone().ok_or(MANUAL)?)));
        let (record, engine) = match both {
            Ok(both) => both,
            Err(error) => return drop(answer.send(ControlAnswer::Failed { error })),
        };
        let answered: Vec<String> =
            others.iter().filter(|other| other.status.is_ok()).map(|other| other.name.clone()).collect();
        let own = self.names.name(self.own).to_owned();
        let (directory, is_alone) = (self.namesakes.directory, self.has_no_namesake());
        tokio::spawn(async move {
            let known = record.epoch;
            let unasked = |found: &StoredRecord| {
                let is_here = is_alone && [0, directory].contains(&found.leader_directory);
                let is_own = found.leader == own && is_here;
                let is_unasked = !is_own && !answered.contains(&found.leader);
                is_unasked.then(|| found.leader.clone()).filter(|_| found.epoch > 1 && !yes)
            };
            let done = match engine.read().await {
                Read::Unreachable(error) => Err(format!("the engine does not answer: {error}")),
                Read::Record(found) if found.epoch >= known => Err(format!(
                    "the engine has a record of epoch {}, and this node knows epoch {known}: nothing is to be adopted",
                    found.epoch
                )),
                Read::Record(found) => match unasked(&found) {
                    Some(leader) => Err(unknown_end(&leader, None, found.epoch)),
                    None => Ok(found.epoch),
                },
                Read::Absent => Ok(0),
            };
            let done = match done {
                Ok(expected) => match engine.swap(expected, &record).await {
                    Swapped::Done => Ok(()),
                    Swapped::Refused => Err("the engine's record has changed meanwhile: try again".to_owned()),
                    Swapped::Unknown(error) => Err(format!("whether the engine has the record is unknown: {error}")),
                },
                Err(error) => Err(error),
            };
            let StoredRecord { epoch, leader, follower, .. } = record;
            let follower = follower.map_or("no follower".to_owned(), |follower| format!("follower {follower}"));
            let _ = answer.send(match done {
                Ok(()) => {
                    tracing::warn!(epoch, leader, "an operator has written the record into the engine");
                    let message = format!("the engine has the record of epoch {epoch}: leader {leader}, {follower}");
                    ControlAnswer::Done { message }
                }
                Err(error) => ControlAnswer::Failed { error },
            });
        });
    }

    /// The record to be adopted, or why there is none.
    fn check_adoption(&self, others: &[Other], yes: bool) -> Result<StoredRecord, String> {
        if self.engine.is_none() {
            return Err(MANUAL.to_owned());
        }
        let known = self.machine.known().ok_or("this node knows no record: run the command at a node that has data")?;
        let known_epoch =
            |status: &NodeStatus| status.known_epoch.max(status.record.as_ref().map_or(0, |record| record.epoch));
        for Other { name, status } in others {
            let Ok(status) = status else { continue };
            let epoch = known_epoch(status);
            if epoch > known.epoch {
                return Err(format!("node {name} knows epoch {epoch}, and this one {}: run it there", known.epoch));
            }
            if status.serving && epoch < known.epoch {
                return Err(format!("node {name} leads in epoch {epoch} of another record: end it first"));
            }
        }
        // Under its lease: a follower that has taken over would have waited for its end.
        let leads = self.machine.may_act(Lease::now());
        let of = |name: &str| others.iter().find(|other| other.name == name).map(|other| &other.status);
        let is_asked = |name: &str| of(name).is_some_and(Result::is_ok);
        let own = Some((self.own, self.namesakes.directory)).filter(|_| self.has_no_namesake());
        let unasked = to_ask(&known, own).map(|node| self.names.name(node)).find(|name| !is_asked(name));
        match unasked.filter(|_| !leads && !yes) {
            Some(name) => {
                let error = of(name).and_then(|status| status.as_ref().err());
                Err(unknown_end(name, error.map(String::as_str), known.epoch))
            }
            None => Ok(self.stored(&known)),
        }
    }

    /// Whether no other process is known to act in this node's place.
    fn has_no_namesake(&self) -> bool {
        self.machine.status(Lease::now()).namesake.is_none()
    }

    /// A backup of the store: of this leader, or of the copy at this follower.
    pub(super) fn backup(&self) -> ControlAnswer {
        let status = self.status();
        let record = status.record.as_ref();
        let about = json!({
            "cluster": status.cluster,
            "node": status.node,
            "epoch": record.map(|record| record.epoch),
            "version": status.version,
            "begun_ms": clock_ms(),
        });
        let (about, rate) = (about.to_string(), self.config.cluster.copy_bytes_per_second());
        let write: WriteBackup = match (&self.serving, &self.copy) {
            (Some(serving), _) if status.serving => {
                let mirror = Arc::clone(&serving.mirror);
                Box::new(move |out| mirror.backup(&about, rate, out))
            }
            (None, CopyTask::Present { copy, .. }) if status.role == Role::Follower => {
                let (backup, link) = match (copy.backup(), &self.link) {
                    (Ok(backup), Some(link)) => (backup, link),
                    (Err(error), _) => return ControlAnswer::Failed { error: error.to_string() },
                    (_, None) => return ControlAnswer::Failed { error: "the leader is not heard".to_owned() },
                };
                link.answer(FromStandby::Moment { number: backup.number() });
                Box::new(move |out| backup.write(&about, rate, out))
            }
            _ => {
                let with_data = record.map(|record| [Some(&record.leader), record.follower.as_ref()]);
                let own = &status.node;
                let others = with_data.into_iter().flatten().flatten().filter(|node| *node != own);
                let others = others.cloned().collect::<Vec<_>>().join(" or ");
                let error = format!("this node has no complete copy to back up: run the command at {others}");
                return ControlAnswer::Failed { error };
            }
        };
        ControlAnswer::Stream { source: Source::new(write) }
    }

    /// Marks a moment for a backup of the follower's copy.
    pub(super) fn mark(&self, node: NodeNumber, number: u64) {
        let is_follower = self.machine.record().is_some_and(|record| record.follower == Some(node));
        if let Some(serving) = self.serving.as_ref().filter(|_| is_follower)
            && let Err(error) = serving.mirror.mark(number)
        {
            tracing::warn!(%error, "cannot mark a moment for a backup");
        }
    }
}

/// Nodes that may have changed this record, other than this process. `own`: its node and its directory; `None` = another
/// process of its name may have acted. Rule 11: a record that names another directory is not this process's.
fn to_ask(record: &Record, own: Option<(NodeNumber, u64)>) -> impl Iterator<Item = NodeNumber> {
    let is_here = own.is_some_and(|(node, directory)| record.role_in(node, directory) != RecordRole::Spare);
    let here = own.map(|(node, _)| node).filter(|_| is_here);
    [Some(record.leader), record.follower].into_iter().flatten().filter(move |node| Some(*node) != here)
}

/// A node that could not be asked may have led.
fn unknown_end(name: &str, error: Option<&str>, epoch: u64) -> String {
    let why = error.map(|error| format!(" ({error})")).unwrap_or_default();
    format!(
        "node {name} cannot be asked{why}: if it has led after epoch {epoch}, messages that it acknowledged since are lost, and \
         two nodes lead if it still runs. End it, and then: --yes"
    )
}

const MANUAL: &str = "with agreement = \"manual\" each node keeps the record: there is nothing to adopt";
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes a backup.
type WriteBackup = Box<dyn Fn(&mut dyn Write) -> io::Result<()> + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namesake_is_asked_unless_the_record_names_its_directory() {
        let [a, b, c] = [0, 1, 2].map(NodeNumber);
        let record = Record {
            epoch: 5,
            leader: a,
            follower: Some(b),
            joiner: None,
            nonce: 7,
            leader_directory: 11,
            copy_directory: 12,
        };
        for (own, asked) in [
            (Some((a, 11)), &[b][..]),
            (Some((b, 12)), &[a]),
            (Some((a, 13)), &[a, b]),
            (Some((b, 13)), &[a, b]),
            (Some((c, 13)), &[a, b]),
            (None, &[a, b]),
        ] {
            assert_eq!(to_ask(&record, own).collect::<Vec<_>>(), asked, "{own:?}");
        }
        // A record of an earlier version.
        let record = Record { leader_directory: 0, copy_directory: 0, ..record };
        assert_eq!(to_ask(&record, Some((a, 13))).collect::<Vec<_>>(), [b]);
    }
}
