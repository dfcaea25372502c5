//! Stands in for the HTTP upgrade in a build without the feature `websocket`.

use tokio::time::Instant;

use super::core::OpenConnection;
use super::door::Refused;
use super::stream::Stream;
use super::wire::Wire;
use crate::config::Listener;
use crate::values::Origin;

/// HTTP upgrade of a listener, which no listener has.
#[derive(Debug)]
pub(super) enum Upgrade {}

impl Upgrade {
    /// The configuration has refused listeners that speak WebSocket.
    pub(super) fn of(_: &Listener) -> Option<Self> {
        None
    }

    pub(super) async fn pass<S: Stream>(
        &self,
        _: &OpenConnection,
        _: S,
        _: &mut Origin,
        _: Instant,
    ) -> Result<Wire, Refused> {
        match *self {}
    }
}
