//! Events of a node.

use std::path::PathBuf;
use std::sync::Arc;

use tenbin_broker::Broker;
use tenbin_cluster::{Input, LinkEnd, Node as NodeNumber, Record, StoredRecord};
use tenbin_store::mirror::{self, Copy, CopyEvent};
use tokio::sync::{mpsc, oneshot};

use super::super::agreement::{Read, Swapped};
use super::super::control::{ControlAnswer, ControlRequest};
use super::super::link::listen::Accepted;
use super::links::{FromLeaderLink, FromLink, LinkId};
use super::{admin, operators};

/// Something that happened to a node.
#[derive(Debug)]
pub(super) enum Event {
    Accepted(Accepted),
    FromStandby {
        node: NodeNumber,
        id: LinkId,
        message: FromLink,
    },
    FromLeader {
        leader: NodeNumber,
        id: LinkId,
        message: FromLeaderLink,
    },
    Probed {
        node: NodeNumber,
        end: LinkEnd,
    },
    Read(Read),
    Swapped(Swapped),
    /// Another node was asked for the record that it knows.
    Asked {
        node: String,
        record: Result<Option<StoredRecord>, String>,
    },
    /// The mark of this record could not be written.
    MarkAgain(Record),
    MarkDone {
        input: Input,
        result: Result<(), String>,
    },
    CopyBegun {
        session: u64,
        copy: Result<Copy, String>,
    },
    CopySaid {
        session: u64,
        event: CopyEvent,
    },
    /// A copy at this node has ended, and its directory is free.
    Sealed,
    /// The old store was moved, or could not be. `then`: the mark that waits for that.
    SetAside {
        result: Result<PathBuf, String>,
        then: Option<Record>,
    },
    NotJoined {
        session: u64,
        error: String,
    },
    Mirror(mirror::Event),
    BrokerStarted(Result<Arc<Broker>, String>),
    BrokerClosed,
    Command(ControlRequest, oneshot::Sender<ControlAnswer>),
    /// The other nodes were asked for their status, for a command.
    OthersAsked {
        request: ControlRequest,
        others: Vec<operators::Other>,
        answer: oneshot::Sender<ControlAnswer>,
    },
    /// Another process with this node's name answers at this address, which is the node's own.
    Namesake(String),
    /// The admin server asks for the node's state.
    View(oneshot::Sender<admin::View>),
    Stop,
}

/// Sends events to the node. They are lost once the node has ended.
#[derive(Debug, Clone)]
pub(super) struct Events(mpsc::Sender<Event>);

impl Events {
    /// Returns the two ends of a node's queue.
    pub(super) fn channel() -> (Self, mpsc::Receiver<Event>) {
        let (events, received) = mpsc::channel(EVENTS_MAX);
        (Self(events), received)
    }

    /// Sends an event of this node. Each action causes one at most, so that there is room.
    ///
    /// A node that is so far behind lost its lease long ago. It must not lose an event, so its process ends.
    pub(super) fn send(&self, event: Event) {
        if let Err(mpsc::error::TrySendError::Full(event)) = self.0.try_send(event) {
            tracing::error!(?event, "ending the process: the node does not keep up with its events");
            std::process::abort();
        }
    }

    /// Sends an event that another party causes, or drops it if the node is behind.
    pub(super) fn offer(&self, event: Event) {
        let _ = self.0.try_send(event);
    }

    /// Sends an event of another node, once there is room.
    pub(super) async fn pass(&self, event: Event) {
        let _ = self.0.send(event).await;
    }
}

/// Events that wait for the node.
const EVENTS_MAX: usize = 4096;
