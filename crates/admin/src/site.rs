//! The subject of the server: a broker, or a node of a cluster with the broker that it has while it leads.

use std::fmt;
use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::watch;

use crate::control::{LeaderView, Node, NodeView, Plane};
use crate::problem::Problem;

/// The subject of a server.
#[derive(Clone)]
pub(crate) struct Site {
    broker: watch::Receiver<Option<Plane>>,
    /// `None` = the broker is no node of a cluster.
    node: Option<Arc<dyn Node>>,
}

/// The place of a node's broker at the node's server.
#[derive(Clone)]
pub struct BrokerSlot(watch::Sender<Option<Plane>>);

/// Tells the end of a broker at its server. Work for the broker is dropped then: it must not keep a replaced leader's
/// files open.
#[derive(Clone)]
pub(crate) struct BrokerEnd(watch::Receiver<Option<Plane>>);

impl Site {
    /// A broker that is there as long as its server.
    pub(crate) fn of_broker(broker: Plane) -> Self {
        Self { broker: watch::channel(Some(broker)).1, node: None }
    }

    /// A node without a broker, and the slot for one.
    pub(crate) fn of_node(node: Arc<dyn Node>) -> (Self, BrokerSlot) {
        let (slot, broker) = watch::channel(None);
        (Self { broker, node: Some(node) }, BrokerSlot(slot))
    }

    /// The present broker.
    pub(crate) fn broker(&self) -> Option<(Plane, BrokerEnd)> {
        let mut seen = self.broker.clone();
        let broker = seen.borrow_and_update().clone()?;
        Some((broker, BrokerEnd(seen)))
    }

    pub(crate) fn node(&self) -> Option<&dyn Node> {
        self.node.as_deref()
    }

    /// State of the node; `None` = it does not answer, or there is none.
    pub(crate) async fn view(&self) -> Option<NodeView> {
        self.node()?.view().await
    }

    /// Answer to a request that only a leader can answer.
    pub(crate) async fn misdirected(&self) -> Problem {
        let leader = self.view().await.and_then(|view| view.leader.filter(|_| !view.is_leader));
        let detail = match &leader {
            None => "this node does not lead, and knows no leader".to_owned(),
            Some(LeaderView { node, admin: None }) => format!("this node does not lead: ask node {node}"),
            Some(LeaderView { node, admin: Some(url) }) => format!("this node does not lead: ask node {node} at {url}"),
        };
        Problem { leader, ..Problem::new(StatusCode::MISDIRECTED_REQUEST, detail) }
    }
}

impl BrokerSlot {
    /// Shows a broker.
    pub fn show(&self, broker: Plane) {
        self.0.send_replace(Some(broker));
    }

    /// Shows no broker any more. Requests that wait for the old one end.
    pub fn clear(&self) {
        self.0.send_replace(None);
    }
}

impl fmt::Debug for BrokerSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerSlot").field("is_taken", &self.0.borrow().is_some()).finish()
    }
}

impl BrokerEnd {
    /// Does `work`, and drops it when the broker ends. `None` = it was dropped.
    pub(crate) async fn unless_ended<T>(mut self, work: impl Future<Output = T>) -> Option<T> {
        let end = async {
            // Without a slot, the broker stays as long as the server.
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            done = work => Some(done),
            () = end => None,
        }
    }
}
