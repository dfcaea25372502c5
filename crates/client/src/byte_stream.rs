use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Byte stream that carries a connection's packets.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The application's wrapper for TCP connections.
#[derive(Clone)]
pub(crate) struct Over(Arc<dyn Fn(TcpStream) -> Wrapping + Send + Sync>);

type Wrapping = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send>>;

impl Over {
    pub(crate) fn new<S, F>(wrap: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        Self(Arc::new(move |stream| {
            let wrapping = wrap(stream);
            Box::pin(async move { wrapping.await.map(|stream| Box::new(stream) as Box<dyn ByteStream>) })
        }))
    }

    pub(crate) async fn wrap(&self, stream: TcpStream) -> io::Result<Box<dyn ByteStream>> {
        (self.0)(stream).await
    }
}

impl fmt::Debug for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Over").finish_non_exhaustive()
    }
}
