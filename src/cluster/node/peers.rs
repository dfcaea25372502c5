//! Other nodes: their connections, and what they say.

use std::sync::Arc;

use tenbin_broker::Lease;
use tenbin_cluster::{Hello as NodeHello, Input, LinkEnd, Record, Unreachable};
use tokio::net::TcpStream;

use super::super::agreement::Read;
use super::super::link::{self, FromLeader, FromStandby, Hello, HelloAnswer, HelloKind, Welcome};
use super::links::{self, FromLeaderLink, FromLink};
use super::{Confirmed, Event, Node, NodeNumber, StoredRecord, clock_ms};

impl Node {
    /// Handles the first line of another node.
    pub(super) fn hello_of(&mut self, hello: Hello, mut stream: TcpStream) -> Option<Input> {
        let refuse = |reason: String, record| HelloAnswer::Refused { reason, record };
        let record = self.machine.record();
        let stored = record.map(|record| self.stored(&record));
        let answer = match (hello.kind, self.known(&hello.node)) {
            (HelloKind::Status, _) => match serde_json::to_value(self.status()) {
                Ok(status) => HelloAnswer::Status { status },
                Err(error) => refuse(error.to_string(), None),
            },
            (_, None) => refuse(format!("node {:?} is not in `nodes` of [cluster]", hello.node), None),
            (_, Some(_)) if record.is_none_or(|record| record.leader != self.own) => {
                refuse("this node does not lead".to_owned(), stored)
            }
            (HelloKind::Link, Some(node)) => {
                let welcome = self.welcome();
                self.links.open(node, stream, welcome, &self.events);
                let Hello { epoch, may_take_over, .. } = hello;
                return Some(Input::PeerUp(NodeHello { node, epoch, may_take_over }));
            }
            (HelloKind::Log | HelloKind::State, Some(node)) => {
                self.copies.add(node, &hello, stream);
                self.join_if_complete();
                return None;
            }
            (HelloKind::Unknown, _) => return None,
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
            FromLink::Message(_) => None,
            FromLink::Ended(reason) => {
                tracing::info!(node = self.names.name(node), reason, "link ended");
                self.links.close(node);
                let (address, events) = (self.address(node), self.events.clone());
                tokio::spawn(async move {
                    if links::probe(&address).await == Some(LinkEnd::Refused) {
                        events.send(Event::Probed { node, end: LinkEnd::Refused });
                    }
                });
                Some(Input::PeerDown { node, end: LinkEnd::Broken })
            }
        }
    }

    pub(super) async fn leader_said(&mut self, leader: NodeNumber, message: FromLeaderLink) -> bool {
        let input = match message {
            FromLeaderLink::Up => {
                tracing::info!(leader = self.names.name(leader), "link open");
                self.report.link_up();
                Input::LinkUp { leader }
            }
            FromLeaderLink::Down(end, reason) => {
                if self.report.link_down() {
                    tracing::info!(leader = self.names.name(leader), reason, "link ended");
                }
                Input::LinkDown { leader, end }
            }
            FromLeaderLink::Refused(record) => match record.and_then(|record| self.record_of(&record)) {
                Some(record) if self.engine.is_none() => Input::PeerRecord(record),
                _ => return false,
            },
            FromLeaderLink::Message(FromLeader::Beacon { number, record, clock_ms: theirs }) => {
                self.report.note_clock(theirs, clock_ms());
                let Some(record) = self.record_of(&record) else { return false };
                Input::Beacon { number, record }
            }
            FromLeaderLink::Message(_) => return false,
        };
        self.input(input).await
    }

    pub(super) fn record_read(&mut self, read: Read) -> Result<Option<Record>, Unreachable> {
        self.report.engine_error = None;
        match read {
            Read::Absent => Ok(None),
            Read::Record(record) => self.record_of(&record).map(Some).ok_or(Unreachable),
            Read::Unreachable(error) => {
                self.report.engine_error = Some(error);
                Err(Unreachable)
            }
        }
    }

    pub(super) fn record_of(&mut self, record: &StoredRecord) -> Option<Record> {
        record.record(&mut self.names).inspect_err(|error| tracing::error!(%error, "cannot use a record")).ok()
    }
}
