//! Streams of connections.

use tokio::io::{AsyncRead, AsyncWrite};

/// A stream of any kind.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}
