//! Stage of a door: the HTTP upgrade.

use tokio::time::Instant;

use super::core::OpenConnection;
use super::door::Refused;
use super::stream::Stream;
use super::wire::Wire;
use crate::values::Origin;

/// HTTP upgrade of a listener's connections. No listener asks for one yet.
#[derive(Debug)]
pub(super) enum Upgrade {}

impl Upgrade {
    /// Answers the request, and carries MQTT in the frames that follow.
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
