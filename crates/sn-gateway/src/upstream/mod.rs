//! Streams to the broker.

mod memory;
mod tcp;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenbin_codec::WriteBuffer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::config::{Config, ConfigError};
use crate::dtls::Identity;

pub use memory::MemoryStream;

/// Byte stream that carries the packets of one client.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

pub(crate) type Stream = Box<dyn ByteStream>;
/// A stream that is being opened.
pub(crate) type Opening = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

/// Way to the broker: opens a stream for each client.
#[derive(Clone)]
pub struct Upstream(Arc<Way>);

enum Way {
    Tcp(tcp::Address),
    Memory(Box<Accept>),
}

/// Takes the broker's end of a stream in memory.
type Accept = dyn Fn(MemoryStream, &ClientOrigin) + Send + Sync;

/// Where a client comes from.
#[derive(Debug, Clone)]
pub struct ClientOrigin {
    /// Its address, or its forwarder's address.
    pub address: SocketAddr,
    /// Its identity, if it has proven one by DTLS.
    pub identity: Option<Box<Identity>>,
}

impl Upstream {
    /// TCP to a broker, `HOST:PORT`.
    pub fn tcp(broker: &str) -> Self {
        Self(Arc::new(Way::Tcp(tcp::Address::new(broker))))
    }

    /// TCP or TLS to the broker of a configuration.
    ///
    /// # Errors
    /// A file of the configuration cannot be used.
    pub fn of(config: &Config) -> Result<Self, ConfigError> {
        Ok(Self(Arc::new(Way::Tcp(tcp::Address::of(config)?))))
    }

    /// Memory: `accept` gets the broker's end of each stream, and the client. It is called on a thread of the
    /// gateway, within a tokio runtime.
    pub fn memory(accept: impl Fn(MemoryStream, &ClientOrigin) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Way::Memory(Box::new(accept))))
    }

    /// Opens a stream for a client.
    pub(crate) fn open(&self, client: ClientOrigin) -> Opening {
        let way = Arc::clone(&self.0);
        Box::pin(async move {
            match &*way {
                Way::Tcp(address) => address.connect().await,
                Way::Memory(accept) => Ok(memory::open(&**accept, &client)),
            }
        })
    }

    /// Opens a stream after the end of the client's last one: the broker must see its DISCONNECT first, even if the
    /// client leaves before.
    pub(crate) fn reopen(&self, client: ClientOrigin, last: Option<(Stream, WriteBuffer)>) -> Opening {
        let upstream = self.clone();
        let closing = last.map(|(stream, rest)| tokio::spawn(close(stream, rest)));
        Box::pin(async move {
            if let Some(closing) = closing {
                let _ = closing.await;
            }
            upstream.open(client).await
        })
    }
}

/// Time for the rest of a stream's bytes, and for the broker's end of the stream.
const CLOSE_TIME: Duration = Duration::from_secs(10);

/// Sends the rest, and closes the stream once the broker has closed its side. A stream that is dropped while unread
/// bytes wait would be reset, and the broker might miss the last packets.
pub(crate) async fn close(mut stream: Stream, mut rest: WriteBuffer) {
    let closing = async {
        stream.write_all_buf(&mut rest).await?;
        stream.shutdown().await?;
        let mut ignored = [0; 1024];
        while stream.read(&mut ignored).await? > 0 {}
        io::Result::Ok(())
    };
    // The stream is gone either way.
    let _ = tokio::time::timeout(CLOSE_TIME, closing).await;
}
