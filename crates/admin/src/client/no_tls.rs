//! Stands in for TLS in a build without the feature `tls`.

use std::io;
use std::path::Path;

use tenbin_kit::tls::ClientFiles;
use tokio::net::TcpStream;

/// TLS to a server, which no client has.
#[derive(Clone)]
pub(super) enum Tls {}

impl Tls {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub(super) fn new(_: &str, _: &ClientFiles, _: Option<&Path>) -> Result<Self, String> {
        Err("https:// needs a build with TLS (feature `tls`)".to_owned())
    }

    pub(super) async fn connect(&self, _: TcpStream) -> io::Result<TcpStream> {
        match *self {}
    }
}
