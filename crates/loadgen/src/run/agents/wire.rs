use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{fmt, io};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::message::AgentMessage;

/// Framed messages between controller and agent, with a bounded length.
pub(super) struct Wire {
    reader: Reader,
    writer: Writer,
    /// Bytes read but not parsed.
    input: BytesMut,
    /// Time of the last read.
    read_at: Instant,
    /// Maximum length of a received frame, in bytes.
    limit: usize,
}

/// Byte streams of both directions.
pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("input", &self.input.len()).finish_non_exhaustive()
    }
}

impl Wire {
    /// A new connection over TCP.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Self::over(Box::new(reader), Box::new(writer)))
    }

    /// A new connection over any byte streams. Until [`Wire::trust`] it accepts only short messages, as the sender is
    /// unknown.
    pub(super) fn over(reader: Reader, writer: Writer) -> Self {
        Self { reader, writer, input: BytesMut::new(), read_at: Instant::now(), limit: STRANGER_LIMIT }
    }

    /// Accepts long messages, as the other side has identified itself.
    pub(super) fn trust(&mut self) {
        self.limit = MESSAGE_LIMIT;
    }

    /// Time of arrival of the last message.
    pub(super) fn read_at(&self) -> Instant {
        self.read_at
    }

    /// Sends `message`. Not cancel safe: half a frame may be sent.
    ///
    /// # Errors
    /// The connection's, or the other side has read nothing for 10 s.
    pub(super) async fn send(&mut self, message: &AgentMessage) -> Result<(), String> {
        let json = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        let length = u32::try_from(json.len()).ok().filter(|&length| length as usize <= MESSAGE_LIMIT);
        let length = length.ok_or_else(|| format!("a {} of {} bytes is too long", message.name(), json.len()))?;
        let mut frame = length.to_be_bytes().to_vec();
        frame.extend(json);
        self.write(&frame, SILENCE_LIMIT).await
    }

    /// Waits for the next message. Cancel safe.
    ///
    /// # Errors
    /// The connection's, its end included, and bytes that are not a message.
    pub(super) async fn receive(&mut self) -> Result<AgentMessage, String> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            self.fill().await?;
        }
    }

    /// The next message, if it has arrived.
    ///
    /// # Errors
    /// As [`Wire::receive`].
    pub(super) fn try_receive(&mut self) -> Result<Option<AgentMessage>, String> {
        loop {
            match self.take()? {
                None if self.try_fill()? => {}
                taken => return Ok(taken),
            }
        }
    }

    /// Sends results, after the [`AgentMessage::Part`] that announces them.
    ///
    /// # Errors
    /// As [`Wire::send`].
    pub(super) async fn send_bulk(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.write(bytes, BULK_PATIENCE).await
    }

    /// Receives results.
    ///
    /// # Errors
    /// As [`Wire::receive`]; also more bytes than results can have, or nothing for 10 s.
    pub(super) async fn receive_bulk(&mut self, bytes: u64) -> Result<BytesMut, String> {
        let length = usize::try_from(bytes).ok().filter(|&length| length <= BULK_LIMIT);
        let length = length.ok_or_else(|| format!("a record of {} MiB is more than fits", bytes >> 20))?;
        while self.input.len() < length {
            tokio::time::timeout(SILENCE_LIMIT, self.fill()).await.map_err(|_| SILENT.to_owned())??;
        }
        Ok(self.input.split_to(length))
    }

    /// Ends the connection after sending `reason`, if any, and waits until the other side closes too.
    ///
    /// Closing a socket with unread input would discard the last message.
    pub(super) async fn close(mut self, reason: Option<&str>) {
        let farewell = async {
            if let Some(reason) = reason {
                self.send(&AgentMessage::Error(reason.to_owned())).await?;
            }
            self.writer.shutdown().await.map_err(words)?;
            // A pipe ends only when it is dropped.
            self.writer = Box::new(tokio::io::sink());
            loop {
                self.input.clear();
                self.fill().await?;
            }
        };
        // The connection ends in any case.
        let _: Result<Result<(), String>, _> = tokio::time::timeout(FAREWELL, farewell).await;
    }

    /// Removes and returns the next message from the input.
    fn take(&mut self) -> Result<Option<AgentMessage>, String> {
        let Some(length) = self.input.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) as usize) else {
            return Ok(None);
        };
        if length > self.limit {
            return Err(format!("a message of {length} bytes instead of at most {}", self.limit));
        }
        if self.input.len() < HEAD + length {
            return Ok(None);
        }
        self.input.advance(HEAD);
        let frame = self.input.split_to(length);
        serde_json::from_slice(&frame).map(Some).map_err(|error| format!("no message of this protocol: {error}"))
    }

    /// Waits for data and reads once. Cancel safe.
    async fn fill(&mut self) -> Result<(), String> {
        self.input.reserve(READ_SIZE);
        let read = self.reader.read_buf(&mut self.input).await;
        self.note_read(read)
    }

    /// Reads once; returns `false` if there is no data.
    fn try_fill(&mut self) -> Result<bool, String> {
        self.input.reserve(READ_SIZE);
        let read = pin!(self.reader.read_buf(&mut self.input)).poll(&mut Context::from_waker(Waker::noop()));
        match read {
            Poll::Ready(read) => self.note_read(read).map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    fn note_read(&mut self, read: io::Result<usize>) -> Result<(), String> {
        self.read_at = Instant::now();
        match read.map_err(words)? {
            0 => Err(CLOSED.to_owned()),
            _ => Ok(()),
        }
    }

    /// Writes all of `bytes`; fails if none can be written within `patience`.
    async fn write(&mut self, mut bytes: &[u8], patience: Duration) -> Result<(), String> {
        while !bytes.is_empty() {
            match tokio::time::timeout(patience, self.writer.write(bytes)).await {
                Ok(written) => bytes.advance(written.map_err(words)?),
                Err(_) => return Err(format!("nothing is taken for {} s", patience.as_secs())),
            }
        }
        let flushed = tokio::time::timeout(patience, self.writer.flush()).await;
        flushed.map_err(|_| format!("nothing is taken for {} s", patience.as_secs()))?.map_err(words)
    }
}

/// Error text; all ways of closing without a message have the same one.
fn words(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => CLOSED.to_owned(),
        _ => error.to_string(),
    }
}

/// How long the other side may be silent while it has to send a message each second.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(10);
pub(super) const SILENT: &str = "nothing for 10 s";

/// Time limit of a farewell.
const FAREWELL: Duration = Duration::from_secs(1);

/// Error of a connection that the other side closed.
pub(super) const CLOSED: &str = "the connection was closed";

const HEAD: usize = size_of::<u32>();

/// Enough for a Hello with a token, in bytes.
const STRANGER_LIMIT: usize = 4 * 1024;

/// Enough for a plan with the service times of tens of thousands of workers, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// Some forty million message records, in bytes; reading them takes twice the memory.
const BULK_LIMIT: usize = 2 * 1024 * 1024 * 1024;
/// How long a controller may be busy with other agents' results.
pub(super) const BULK_PATIENCE: Duration = Duration::from_secs(120);
const READ_SIZE: usize = 64 * 1024;
