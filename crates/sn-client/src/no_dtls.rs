//! Stands in for DTLS in a build without the feature `dtls`.

use std::io;
use std::path::PathBuf;

use tenbin_sn::NO_DTLS;
use tokio::net::UdpSocket;

/// Keys of a client for DTLS, which this build does not have: a client with keys is refused.
#[derive(Debug, Clone)]
pub enum DtlsKeys {
    /// The key of an identity in a file.
    PreShared {
        /// The client's identity.
        identity: String,
        /// The file.
        file: PathBuf,
    },
    /// Certificates.
    Certificates {
        /// PEM file with the authorities of the server's certificate.
        authorities: PathBuf,
        /// PEM files with the client's certificate and its private key, if it has one.
        own: Option<(PathBuf, PathBuf)>,
    },
}

/// A DTLS session, which no client has.
#[derive(Debug)]
pub(crate) enum Secured {}

/// Says why keys cannot be used in this build.
pub(crate) fn check_build(_: &DtlsKeys) -> Result<(), String> {
    Err(NO_DTLS.to_owned())
}

impl Secured {
    pub(crate) async fn open(_: &UdpSocket, _: &DtlsKeys, _: &str) -> io::Result<Self> {
        Err(io::Error::other(NO_DTLS))
    }

    pub(crate) async fn send(&self, _: &UdpSocket, _: &[u8]) -> io::Result<()> {
        match *self {}
    }

    pub(crate) async fn receive(&self, _: &UdpSocket, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn close(self, _: &UdpSocket) {
        match self {}
    }
}
