//! Stage of a door: the PROXY header.

use tokio::net::TcpStream;
use tokio::time::Instant;

use super::core::OpenConnection;
use super::door::Refused;
use crate::values::Origin;

/// PROXY header of a listener's connections. No listener asks for one yet.
#[derive(Debug)]
pub(super) enum Proxy {}

impl Proxy {
    /// Reads the header, and nothing behind it.
    pub(super) async fn pass(
        &self,
        _: &mut OpenConnection,
        _: &mut TcpStream,
        _: &mut Origin,
        _: Instant,
    ) -> Result<(), Refused> {
        match *self {}
    }
}
