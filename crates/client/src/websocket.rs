use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tenbin_websocket::{ClientConnection, CloseCode, End};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// WebSocket on a byte stream, as a byte stream.
///
/// A flush passes written bytes to the stream below; a shutdown sends Close.
#[derive(Debug)]
pub struct WebSocketStream<S> {
    stream: S,
    connection: ClientConnection,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocketStream<S> {
    /// Performs the upgrade to `path` of `host` ("host:port").
    ///
    /// # Errors
    /// The stream's, or the server refuses.
    pub async fn connect(stream: S, host: &str, path: &str) -> io::Result<Self> {
        let seed = RandomState::new().hash_one(host);
        let mut upgrading = Self { stream, connection: ClientConnection::new(host, path, seed) };
        poll_fn(|context| upgrading.poll_upgrade(context)).await?;
        Ok(upgrading)
    }

    fn poll_upgrade(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_output(context))?;
        while self.connection.is_upgrading() {
            let mut bytes = [0; ANSWER_PART];
            let mut buffer = ReadBuf::new(&mut bytes);
            if ready!(self.poll_received(context, &mut buffer))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once. Leaves the bytes of the stream in `buffer`; returns how many bytes were read below.
    fn poll_received(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let received = &mut buffer.filled_mut()[before..];
        let read = received.len();
        let length = self.connection.receive(received).map_err(io::Error::other)?;
        buffer.set_filled(before + length);
        Poll::Ready(Ok(read))
    }

    /// Writes pongs and Close as far as the stream below takes them.
    fn write_control(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.connection.output() {
            [] => Ok(()),
            _ => match self.poll_output(context) {
                Poll::Ready(done) => done,
                Poll::Pending => Ok(()),
            },
        }
    }

    /// Writes the output of the connection.
    fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.connection.output().is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(context, self.connection.output()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.connection.wrote(written),
            }
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        loop {
            match self.connection.end() {
                Some(End::Violation(violation)) => return Poll::Ready(Err(io::Error::other(violation))),
                Some(End::Close(_)) => return Poll::Ready(Ok(())),
                None => {}
            }
            self.write_control(context)?;
            let read = ready!(self.poll_received(context, buffer))?;
            self.write_control(context)?;
            if read == 0 || buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut taken = self.connection.send_vectored(slices);
        if taken == 0 {
            ready!(self.poll_output(context))?;
            taken = self.connection.send_vectored(slices);
        }
        if taken == 0 && slices.iter().any(|slice| !slice.is_empty()) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())); // closed
        }
        match self.poll_output(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_output(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.close(Some(CloseCode::NORMAL));
        ready!(self.poll_output(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Bytes read at a time during the upgrade.
const ANSWER_PART: usize = 512;

#[cfg(test)]
mod tests {
    use tenbin_websocket::{Incoming, Mask, Opcode, Rules, Side, accept, append_frame};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// Answers the upgrade, then sends all bytes of the stream back, each read with a ping before it.
    async fn serve(mut stream: DuplexStream, rules: Rules<'static>) -> Option<End> {
        let (mut request, mut chunk) = (Vec::new(), [0; 700]);
        loop {
            let read = stream.read(&mut chunk).await.unwrap();
            request.extend_from_slice(&chunk[..read]);
            match accept(&request, rules) {
                Ok(None) => {}
                Ok(Some(accepted)) => break stream.write_all(accepted.answer.as_bytes()).await.unwrap(),
                Err(refusal) => {
                    stream.write_all(refusal.answer().as_bytes()).await.unwrap();
                    return None;
                }
            }
        }
        let mut incoming = Incoming::new(Side::Server);
        while incoming.end().is_none() {
            let read = stream.read(&mut chunk).await.unwrap();
            assert!(read > 0, "the client says Close");
            let length = incoming.unpack(&mut chunk[..read]);
            let mut out = Vec::new();
            append_frame(&mut out, Opcode::Ping, b"?", None::<Mask>);
            append_frame(&mut out, Opcode::Binary, &chunk[..length], None);
            if incoming.end().is_none() {
                stream.write_all(&out).await.unwrap();
            }
        }
        incoming.end()
    }

    #[tokio::test]
    async fn stream_is_carried_in_both_directions() {
        let (near, far) = tokio::io::duplex(300);
        let server = tokio::spawn(serve(far, Rules { path: "/mqtt", origins: &[] }));
        let stream = WebSocketStream::connect(near, "b:80", "/mqtt").await.unwrap();
        let bytes: Vec<_> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut echo = vec![0; bytes.len()];
        let (read, written) = tokio::join!(reader.read_exact(&mut echo), async {
            writer.write_all(&bytes).await?;
            writer.flush().await
        });
        assert_eq!((read.unwrap(), written.unwrap()), (bytes.len(), ()));
        assert!(echo == bytes);
        let (closed, _) = tokio::join!(writer.shutdown(), reader.read_to_end(&mut echo));
        closed.unwrap();
        assert_eq!(server.await.unwrap(), Some(End::Close(Some(CloseCode::NORMAL))));
    }

    #[tokio::test]
    async fn refusal_becomes_an_error_with_its_text() {
        let (near, far) = tokio::io::duplex(300);
        tokio::spawn(serve(far, Rules { path: "/mqtt", origins: &[] }));
        let error = WebSocketStream::connect(near, "b:80", "/other").await.unwrap_err().to_string();
        assert!(error.contains("404"), "{error}");
    }
}
