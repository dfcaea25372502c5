//! Other nodes: their connections and messages.

use std::sync::Arc;

use tenbin_broker::Lease;
use tenbin_cluster::{Hello as NodeHello, Input, LinkEnd, Record, Step, SwitchRefused, Unreachable};
use tokio::sync::oneshot;

use super::super::agreement::Read;
use super::super::control::{ControlAnswer, SWITCH_TIMEOUT};
use super::super::link::listen::Refusal;
use super::super::link::stream::NodeStream;
use super::super::link::{self, Formats, FromLeader, FromStandby, Hello, HelloAnswer, HelloKind, Readable, Welcome};
use super::links::{self, FromLeaderLink, FromLink};
use super::{Confirmed, Event, Node, NodeNumber, StoredRecord, clock_ms};

impl Node {
    /// Handles the first line of another node.
    pub(super) fn hello_of(&mut self, hello: Hello, mut stream: NodeStream) -> Option<Input> {
        if hello.kind == HelloKind::Switch {
            let (answer, answered) = oneshot::channel();
            tokio::spawn(async move {
                let answer = match answered.await {
                    Ok(ControlAnswer::Done { message }) => HelloAnswer::Done { message },
                    Ok(ControlAnswer::Failed { error }) => HelloAnswer::refused(error),
                    _ => HelloAnswer::refused("the node has ended".to_owned()),
                };
                // The operator may have left.
                let _ = link::lines::write(&mut stream, &answer).await;
            });
            return self.switch(hello.to, hello.node.is_empty(), answer);
        }
        let refusals = Arc::clone(&self.report.refusals);
        let refuse = |kind, reason: String, record| {
            refusals.count(kind);
            let (not_leading, namesake) = (kind == Refusal::NotLeading, kind == Refusal::Namesake);
            HelloAnswer::Refused { reason, not_leading, namesake, record }
        };
        let record = self.machine.record();
        let stored = record.map(|record| self.stored(&record));
        let unreadable = hello.reads.unreadable(&Formats::OWN);
        let known = self.known(&hello.node);
        let leads = self.machine.is_named();
        let is_of_leader = leads && matches!(hello.kind, HelloKind::Link | HelloKind::Log | HelloKind::State);
        let namesake = known.filter(|_| is_of_leader);
        let namesake = namesake.and_then(|node| self.refuses_namesake(node, &hello, &stream.host()));
        let answer = match (hello.kind, known) {
            (HelloKind::Status, _) => match serde_json::to_value(self.status()) {
                Ok(status) => HelloAnswer::Status { status },
                Err(error) => HelloAnswer::refused(error.to_string()),
            },
            (_, None) => {
                tracing::warn!(node = hello.node, "refusing a node: it is not in `nodes` of [cluster]");
                refuse(Refusal::Node, format!("node {:?} is not in `nodes` of [cluster]", hello.node), None)
            }
            // The record may name another process of this node's name.
            (_, Some(_)) if !leads => refuse(Refusal::NotLeading, "this node does not lead".to_owned(), stored),
            (_, Some(_)) if namesake.is_some() => refuse(Refusal::Namesake, namesake.unwrap_or_default(), stored),
            (HelloKind::Link, Some(node)) => {
                let unfit = (!hello.may_join).then(|| "its broker or disk has failed. Look at its status".to_owned());
                let obstacle = unreadable.map(|reason| format!("{reason}. Upgrade it")).or(unfit);
                let may_join = obstacle.is_none();
                self.report.gets_copy(&hello.node, obstacle);
                let welcome = self.welcome();
                self.links.open(node, &hello, stream, welcome, &self.events);
                let Hello { epoch, may_take_over, is_first, directory, ports, .. } = hello;
                self.peer_ports.insert(node, ports);
                return Some(Input::PeerUp(NodeHello { node, epoch, may_take_over, may_join, is_first, directory }));
            }
            (HelloKind::Log | HelloKind::State, Some(_)) if unreadable.is_some() => refuse(
                Refusal::Formats,
                format!("node {} gets no copy: {}", hello.node, unreadable.unwrap_or_default()),
                stored,
            ),
            (HelloKind::Log | HelloKind::State, Some(node)) => {
                self.copies.add(node, &hello, stream);
                self.join_if_complete();
                return None;
            }
            (HelloKind::Switch | HelloKind::Unknown, _) => return None,
        };
        tokio::spawn(async move {
            // The other node may have left.
            let _ = link::lines::write(&mut stream, &answer).await;
        });
        None
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            node: self.names.name(self.own).to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            record: self.machine.record().map(|record| self.stored(&record)),
            formats: Formats::OWN,
            admin: self.admin_for_others(),
        }
    }

    /// Lets the accepted joiner join, if both connections are there.
    pub(super) fn join_if_complete(&mut self) {
        let Some(serving) = &self.serving else { return };
        let Some(pair) = self.copies.take() else { return };
        let (mirror, welcome) = (Arc::clone(&serving.mirror), self.welcome());
        self.confirmed = Some(Confirmed { session: pair.session, numbers: [0; 2], at: Lease::now() });
        let (events, rate) = (self.events.clone(), self.config.cluster.copy_bytes_per_second());
        tokio::spawn(async move {
            let session = pair.session;
            if let Err(error) = pair.join(mirror, welcome, rate).await {
                events.send(Event::NotJoined { session, error });
            }
        });
    }

    pub(super) fn standby_said(&mut self, node: NodeNumber, message: FromLink) -> Option<Input> {
        match message {
            FromLink::Message(FromStandby::Answer { number, is_marked, .. }) => {
                Some(Input::Answer { node, number, is_marked })
            }
            FromLink::Message(FromStandby::Moment { number }) => {
                self.mark(node, number);
                None
            }
            FromLink::Message(FromStandby::Here | FromStandby::Unknown) => None,
            FromLink::Ended(reason) => {
                tracing::info!(node = self.names.name(node), reason, "link ended");
                self.links.close(node);
                self.probe(node);
                Some(Input::PeerDown { node, end: LinkEnd::Broken })
            }
        }
    }

    /// Tells when the node's port refuses a connection.
    fn probe(&self, node: NodeNumber) {
        let (address, events) = (self.address(node), self.events.clone());
        tokio::spawn(async move {
            if links::probe(&address).await == Some(LinkEnd::Refused) {
                events.send(Event::Probed { node, end: LinkEnd::Refused });
            }
        });
    }

    /// A follower that takes over has no link. Its end shows at its port.
    pub(super) fn probe_taking_follower(&self) {
        if self.machine.status(Lease::now()).step == Step::HandingOver
            && let Some(follower) = self.machine.record().and_then(|record| record.follower)
            && !self.links.contains(follower)
        {
            self.probe(follower);
        }
    }

    /// Lets the follower lead. A node that does not lead passes a command on to the leader.
    pub(super) fn switch(
        &mut self,
        to: Option<String>,
        is_command: bool,
        answer: oneshot::Sender<ControlAnswer>,
    ) -> Option<Input> {
        let own = self.names.name(self.own).to_owned();
        let is_known = |name: &String| self.config.cluster.nodes.iter().any(|node| node.name == *name);
        let failed = |error: String| ControlAnswer::Failed { error };
        if let Some(unknown) = to.as_ref().filter(|name| !is_known(name)) {
            let _ = answer.send(failed(format!("node {unknown:?} is not in `nodes` of [cluster]")));
            return None;
        }
        let Some(record) = self.machine.record() else {
            let _ = answer.send(failed("this node knows no leader yet".to_owned()));
            return None;
        };
        if is_command && record.leader != self.own {
            let (address, cluster) = (self.address(record.leader), self.config.cluster.name.clone());
            let tls = self.tls.clone();
            tokio::spawn(async move {
                let asked = link::ask_switch(&address, tls.as_deref(), &cluster, &own, to, SWITCH_TIMEOUT).await;
                let _ = answer.send(match asked {
                    Ok(message) => ControlAnswer::Done { message },
                    Err(error) => failed(error.to_string()),
                });
            });
            return None;
        }
        if self.machine.status(Lease::now()).step == Step::HandingOver {
            let _ = answer.send(failed(self.switch_refusal(SwitchRefused::UnderWay)));
            return None;
        }
        let to = to.and_then(|name| self.names.number(&name).ok());
        self.switches.push(answer);
        Some(Input::Switch { to })
    }

    pub(super) async fn leader_said(&mut self, leader: NodeNumber, message: FromLeaderLink) -> bool {
        let input = match message {
            FromLeaderLink::Up(formats, admin) => {
                tracing::info!(leader = self.names.name(leader), "link open");
                self.report.link_up(Readable::OWN.unreadable(&formats), admin);
                Input::LinkUp { leader }
            }
            FromLeaderLink::Down(end, reason) => {
                self.report.link_down();
                tracing::info!(leader = self.names.name(leader), reason, "link ended");
                Input::LinkDown { leader, end }
            }
            FromLeaderLink::Failed { end, reason, is_lasting, is_namesake } => {
                if self.report.link_fails(&reason, is_lasting, is_namesake) {
                    tracing::warn!(leader = self.names.name(leader), reason, "cannot open the link to the leader");
                }
                Input::LinkDown { leader, end }
            }
            FromLeaderLink::Refused(record) => match record.and_then(|record| self.record_of(&record)) {
                Some(record) if self.engine.is_none() => Input::PeerRecord(record),
                _ => return false,
            },
            FromLeaderLink::Message(FromLeader::Beacon { number, record, clock_ms: theirs, takes_clients }) => {
                self.report.heard(theirs, clock_ms(), takes_clients);
                let Some(record) = self.record_of(&record) else { return false };
                Input::Beacon { number, record }
            }
            FromLeaderLink::Message(FromLeader::Handover { record }) => {
                self.report.leader_leaves();
                let Some(record) = self.record_of(&record) else { return false };
                Input::HandedOver { record }
            }
            FromLeaderLink::Message(_) => return false,
        };
        self.input(input).await
    }

    pub(super) fn record_read(&mut self, read: Read) -> Result<Option<Record>, Unreachable> {
        match read {
            Read::Absent => {
                self.report.engine_answers();
                Ok(None)
            }
            Read::Record(record) => {
                self.report.engine_answers();
                self.record_of(&record).map(Some).ok_or(Unreachable)
            }
            Read::Unreachable(error) => {
                self.report.engine_fails(error);
                Err(Unreachable)
            }
        }
    }

    pub(super) fn record_of(&mut self, record: &StoredRecord) -> Option<Record> {
        record.record(&mut self.names).inspect_err(|error| tracing::error!(%error, "cannot use a record")).ok()
    }
}
