//! Lines of JSON on a stream, of bounded length.

use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Longest line, in bytes, without its end.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// Why there is no next line. The connection is of no use afterwards, except behind [`LineError::Silent`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("the connection was closed")]
    Closed,
    #[error("the connection was closed within a line")]
    Cut,
    #[error("a line has more than {0} bytes")]
    TooLong(usize),
    #[error("a line is not text in UTF-8")]
    NotText,
    #[error("a line is no message: {0}")]
    Malformed(serde_json::Error),
    #[error("nothing was received for {0:?}")]
    Silent(Duration),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Reading half of a link: messages `M`.
#[derive(Debug)]
pub(crate) struct LinkReader<R, M> {
    stream: R,
    /// Received bytes that are in no returned message yet.
    unread: Vec<u8>,
    /// Bytes of `unread` that contain no end of a line.
    searched: usize,
    messages: PhantomData<fn() -> M>,
}

impl<R: AsyncRead + Unpin, M: DeserializeOwned> LinkReader<R, M> {
    pub(crate) fn new(stream: R) -> Self {
        Self { stream, unread: Vec::new(), searched: 0, messages: PhantomData }
    }

    /// Returns the next message. Cancelling it loses nothing.
    ///
    /// # Errors
    /// The connection has ended, or the other side sends something else than messages.
    pub(crate) async fn next(&mut self) -> Result<M, LineError> {
        loop {
            if let Some(end) = self.unread[self.searched..].iter().position(|&byte| byte == b'\n') {
                let end = self.searched + end;
                let message = if end > LINE_BYTES_MAX {
                    Err(LineError::TooLong(LINE_BYTES_MAX))
                } else {
                    parse(&self.unread[..end])
                };
                self.unread.drain(..=end);
                self.searched = 0;
                return message;
            }
            self.searched = self.unread.len();
            if self.searched > LINE_BYTES_MAX {
                return Err(LineError::TooLong(LINE_BYTES_MAX));
            }
            self.unread.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Err(if self.unread.is_empty() { LineError::Closed } else { LineError::Cut });
            }
        }
    }
}

/// Writing half of a link.
#[derive(Debug)]
pub(crate) struct LinkWriter<W> {
    stream: W,
    /// Reused memory of a line.
    line: Vec<u8>,
}

impl<W: AsyncWrite + Unpin> LinkWriter<W> {
    pub(crate) fn new(stream: W) -> Self {
        Self { stream, line: Vec::new() }
    }

    /// Sends a message, and waits until the socket has it. Cancelling it may leave a part of a line: the link is then of no
    /// use.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, message)?;
        self.line.push(b'\n');
        self.stream.write_all(&self.line).await?;
        self.stream.flush().await
    }
}

/// Writes one line.
///
/// # Errors
/// The connection has ended.
pub(crate) async fn write<W: AsyncWrite + Unpin>(stream: &mut W, message: &impl Serialize) -> Result<(), LineError> {
    Ok(LinkWriter::new(stream).send(message).await?)
}

/// Reads one line of at most `bytes_max` bytes, and no byte behind it: a user of other kind may take the stream.
///
/// # Errors
/// The connection has ended, or the line is no message. Cancelling it loses bytes.
pub(crate) async fn read_exact_line<R, M>(stream: &mut R, bytes_max: usize) -> Result<M, LineError>
where
    R: AsyncRead + Unpin,
    M: DeserializeOwned,
{
    let mut line = Vec::new();
    loop {
        // One byte a call: a first line is short, and comes once in a connection.
        match stream.read_u8().await {
            Ok(b'\n') => return parse(&line),
            Ok(_) if line.len() == bytes_max => return Err(LineError::TooLong(bytes_max)),
            Ok(byte) => line.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(if line.is_empty() { LineError::Closed } else { LineError::Cut });
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn parse<M: DeserializeOwned>(line: &[u8]) -> Result<M, LineError> {
    let text = str::from_utf8(line).map_err(|_| LineError::NotText)?;
    serde_json::from_str(text).map_err(LineError::Malformed)
}

/// Room for each read.
const READ_BYTES: usize = 4096;
