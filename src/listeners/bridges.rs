//! Bridges of `tenbin broker`, with streams in memory.

use std::sync::Arc;

use tenbin_bridge::{Bridge, Dropped, Side, Status};
use tenbin_broker::config::Bridge as Table;
use tenbin_broker::gateways::{BridgeState, Entrance, OpenBridge};

use super::Opened;
use crate::bridge;

/// Runs bridges for a broker.
#[derive(Debug, Clone)]
pub(crate) struct Bridges(Arc<Opened<Open>>);

/// A running bridge.
#[derive(Debug)]
pub(super) struct Open(Bridge);

/// What the broker holds.
#[derive(Debug)]
struct OfBroker(Arc<Open>);

impl Bridges {
    pub(super) fn none() -> Self {
        Self(Arc::new(Opened::none()))
    }

    pub(super) fn open(&self, table: &Table, entrance: Entrance) -> Result<Box<dyn OpenBridge>, String> {
        let table = table.clone();
        let settings = move || bridge::embedded(&table, entrance.clone());
        let open = Bridge::start(settings()?, settings).map_err(|error| error.to_string())?;
        Ok(Box::new(OfBroker(self.0.add(Open(open)))))
    }

    /// Ends the bridges in order, so that the remote brokers learn of it.
    pub(crate) async fn finish(&self) {
        let all = self.0.all();
        all.iter().for_each(|open| open.0.stop());
        for open in all {
            let _ = tokio::task::spawn_blocking(move || open.0.finish()).await;
        }
    }
}

impl OpenBridge for OfBroker {
    fn state(&self) -> BridgeState {
        let status: &Status = self.0.0.status();
        BridgeState {
            connected: Side::BOTH.map(|side| status.is_connected(side)),
            messages: Side::BOTH.map(|side| status.messages(side)),
            in_flight: Side::BOTH.map(|side| status.in_flight(side)),
            dropped: Dropped::ALL.map(|reason| (reason.name(), status.dropped(reason))).to_vec(),
            error: status.error(),
        }
    }

    fn stop(&self) {
        self.0.0.stop();
    }

    fn finish(&self) {
        self.0.0.finish();
    }
}
