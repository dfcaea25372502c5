//! Streams between nodes: TCP, or TLS on it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream as BlockingTcp};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tenbin_broker::RelayedStream;
use tenbin_store::mirror;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::Connection;
use tokio_rustls::{client, server};

use super::secure::NodeTls;

/// A stream to another node.
#[derive(Debug)]
pub(crate) enum NodeStream {
    Plain(TcpStream),
    /// This node has connected.
    Client(Box<client::TlsStream<TcpStream>>),
    /// The other node has connected.
    Server(Box<server::TlsStream<TcpStream>>),
}

impl NodeStream {
    /// Connects to the cluster port `address`.
    ///
    /// # Errors
    /// There is no connection. [`io::ErrorKind::ConnectionRefused`] is of TCP alone.
    pub(crate) async fn connect(address: &str, tls: Option<&NodeTls>) -> io::Result<Self> {
        Self::begin(address, connect(address).await?, tls).await
    }

    /// Performs the handshake of TLS, if there is TLS, over a new connection to the cluster port `address`.
    ///
    /// # Errors
    /// The handshake fails.
    pub(super) async fn begin(address: &str, stream: TcpStream, tls: Option<&NodeTls>) -> io::Result<Self> {
        Ok(match tls {
            Some(tls) => Self::Client(Box::new(tls.connect(address, stream).await?)),
            None => Self::Plain(stream),
        })
    }

    /// The first byte, which stays unread; `None` at the end.
    pub(super) async fn peek(&mut self) -> io::Result<Option<u8>> {
        let mut first = [0];
        match self {
            Self::Plain(stream) => Ok((stream.peek(&mut first).await? == 1).then_some(first[0])),
            Self::Client(stream) => Ok(stream.fill_buf().await?.first().copied()),
            Self::Server(stream) => Ok(stream.fill_buf().await?.first().copied()),
        }
    }

    /// Host of the other end.
    pub(crate) fn host(&self) -> String {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Client(stream) => stream.get_ref().0,
            Self::Server(stream) => stream.get_ref().0,
        };
        stream.peer_addr().map_or_else(|_| "?".to_owned(), |peer| peer.ip().to_canonical().to_string())
    }

    /// The stream as one of a relay. `None`: this node has opened it.
    pub(super) fn relayed(self) -> Option<RelayedStream> {
        match self {
            Self::Plain(stream) => Some(RelayedStream::Plain(stream)),
            Self::Server(stream) => Some(RelayedStream::Tls(stream)),
            Self::Client(_) => None,
        }
    }

    /// The stream for threads that block. All that was written is sent already.
    ///
    /// # Errors
    /// The system refuses to change the socket.
    pub(crate) fn into_blocking(self) -> io::Result<Box<dyn mirror::Stream>> {
        let (stream, session) = match self {
            Self::Plain(stream) => (stream, None),
            Self::Client(stream) => {
                let (stream, session) = stream.into_inner();
                (stream, Some(Connection::from(session)))
            }
            Self::Server(stream) => {
                let (stream, session) = stream.into_inner();
                (stream, Some(Connection::from(session)))
            }
        };
        let socket = stream.into_std()?;
        socket.set_nonblocking(false)?;
        Ok(match session {
            Some(session) => Box::new(BlockingTls::new(socket, session)),
            None => Box::new(socket),
        })
    }
}

/// Opens a connection to the cluster port `address`, without TLS yet.
pub(super) async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Calls the stream in `$node`, of any kind.
macro_rules! each {
    ($node:expr, $stream:ident => $call:expr) => {
        match $node {
            NodeStream::Plain($stream) => $call,
            NodeStream::Client($stream) => $call,
            NodeStream::Server($stream) => $call,
        }
    };
}

impl AsyncRead for NodeStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(context))
    }
}

/// TLS for threads that block: one reads while others write. Handles share the connection.
///
/// A thread that waits for the socket holds only the locks of its direction.
struct BlockingTls(Arc<Shared>);

struct Shared {
    socket: BlockingTcp,
    session: Mutex<Connection>,
    received: Mutex<Received>,
    /// Records of the present write. The lock keeps records in order.
    records: Mutex<Vec<u8>>,
}

/// Received bytes that the session does not have yet: `bytes[begin..end]`.
struct Received {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
}

impl BlockingTls {
    fn new(socket: BlockingTcp, session: Connection) -> Self {
        let received = Received { bytes: vec![0; RECEIVE_BYTES].into(), begin: 0, end: 0 };
        let (session, received, records) = (Mutex::new(session), Mutex::new(received), Mutex::default());
        Self(Arc::new(Shared { socket, session, received, records }))
    }
}

impl Read for BlockingTls {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut received = lock(&self.0.received);
        loop {
            {
                let mut session = lock(&self.0.session);
                match session.reader().read(out) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                }
                let Received { bytes, begin, end } = &mut *received;
                if begin < end {
                    *begin += session.read_tls(&mut &bytes[*begin..*end])?;
                    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
                    // An answer of the session, such as new keys, leaves with the next write.
                    session.process_new_packets().map_err(invalid)?;
                    continue;
                }
            }
            received.begin = 0;
            received.end = (&self.0.socket).read(&mut received.bytes)?;
            if received.end == 0 {
                return Ok(0);
            }
        }
    }
}

impl Write for BlockingTls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut records = lock(&self.0.records);
        records.clear();
        let written = {
            let mut session = lock(&self.0.session);
            let written = session.writer().write(bytes)?;
            while session.wants_write() {
                session.write_tls(&mut *records)?;
            }
            written
        };
        (&self.0.socket).write_all(&records)?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl mirror::Stream for BlockingTls {
    fn duplicate(&self) -> io::Result<Box<dyn mirror::Stream>> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }

    fn set_write_timeout(&self, patience: Duration) -> io::Result<()> {
        self.0.socket.set_write_timeout(Some(patience))
    }

    fn hang_up(&self) {
        // An error means that it has ended already.
        let _ = self.0.socket.shutdown(Shutdown::Both);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under these locks ends the connection.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that are received at a time: some records.
const RECEIVE_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

    use super::super::super::tls;
    use super::*;

    /// Both ends of a connection. Their handshake has not begun.
    fn pair() -> [BlockingTls; 2] {
        let own = rcgen::generate_simple_self_signed(["a".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key");
        let mut roots = RootCertStore::empty();
        roots.add(own.cert.der().clone()).expect("a certificate");
        let server = ServerConfig::builder_with_provider(tls::provider()).with_safe_default_protocol_versions();
        let server = server.expect("versions").with_no_client_auth();
        let server = server.with_single_cert(vec![own.cert.der().clone()], key).expect("they belong together");
        let client = ClientConfig::builder_with_provider(tls::provider()).with_safe_default_protocol_versions();
        let client = client.expect("versions").with_root_certificates(roots).with_no_client_auth();
        let mut client: Connection =
            ClientConnection::new(Arc::new(client), ServerName::try_from("a").expect("a name")).expect("legal").into();
        let mut server: Connection = ServerConnection::new(Arc::new(server)).expect("legal").into();
        let port = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = BlockingTcp::connect(port.local_addr().expect("an address")).expect("the port is open");
        let mut far = port.accept().expect("a connection").0;
        let other = thread::spawn(move || {
            server.complete_io(&mut far).expect("a handshake");
            BlockingTls::new(far, server)
        });
        client.complete_io(&mut near).expect("a handshake");
        [BlockingTls::new(near, client), other.join().expect("no panic")]
    }

    fn sends(mut to: Box<dyn mirror::Stream>, seed: u8) {
        for block in 0..BLOCKS {
            let bytes: Vec<u8> = (0..block % 3 * 40_000 + 7).map(|at| (at as u8).wrapping_mul(seed)).collect();
            to.write_all(&bytes).expect("the other end reads");
        }
    }

    fn receives(mut from: BlockingTls, seed: u8) {
        for block in 0..BLOCKS {
            let mut bytes = vec![0; block % 3 * 40_000 + 7];
            from.read_exact(&mut bytes).expect("all bytes");
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == (at as u8).wrapping_mul(seed)), "block {block}");
        }
    }

    #[test]
    fn both_ends_send_and_receive_at_once() {
        let [near, far] = pair();
        let threads = [
            {
                let to = mirror::Stream::duplicate(&near).expect("a handle");
                thread::spawn(move || sends(to, 3))
            },
            {
                let to = mirror::Stream::duplicate(&far).expect("a handle");
                thread::spawn(move || sends(to, 5))
            },
            thread::spawn(move || receives(near, 5)),
            thread::spawn(move || receives(far, 3)),
        ];
        for thread in threads {
            thread.join().expect("no panic");
        }
    }

    #[test]
    fn hang_up_ends_a_read_that_blocks() {
        let [mut near, far] = pair();
        let handle = mirror::Stream::duplicate(&near).expect("a handle");
        let read = thread::spawn(move || near.read(&mut [0]));
        handle.hang_up();
        assert!(read.join().expect("no panic").map_or(true, |read| read == 0));
        let mut far = far;
        assert!(far.read(&mut [0]).map_or(true, |read| read == 0), "the other end sees it");
    }

    const BLOCKS: usize = 300;
}
