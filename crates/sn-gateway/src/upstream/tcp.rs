use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::Stream;

/// Address of the broker.
pub(super) enum Address {
    Ip(SocketAddr),
    /// Looked up for each connection.
    Name(String),
}

impl Address {
    pub(super) fn new(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Ip)
    }

    pub(super) async fn connect(&self) -> io::Result<Stream> {
        let stream = match self {
            Self::Ip(address) => TcpStream::connect(address).await?,
            Self::Name(name) => TcpStream::connect(name.as_str()).await?,
        };
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}
