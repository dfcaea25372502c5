use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpSocket;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::WebSocketClient;

/// Stream of a client: TCP, TLS on it, or WebSocket on either.
pub(crate) enum ClientStream {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    WebSocket(Box<WebSocketClient>),
}

impl ClientStream {
    /// Connects to "localhost" at this address; the handshake happens with the first byte.
    pub(crate) fn tls(address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        Self::tls_to("localhost", address, config)
    }

    /// As [`ClientStream::tls`], with another name of the broker.
    pub(crate) fn tls_to(name: &'static str, address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        Self::tls_on(TcpStream::connect(address).expect("the broker listens"), name, config)
    }

    /// As [`ClientStream::tls`], from this loopback address.
    pub(crate) fn tls_from(source: IpAddr, address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        Self::tls_on(Self::tcp_from(source, address), "localhost", config)
    }

    /// A TCP connection from this loopback address.
    pub(crate) fn tcp_from(source: IpAddr, address: SocketAddr) -> TcpStream {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind((source, 0).into()).expect("a loopback address");
            socket.connect(address).await.expect("the broker listens").into_std().expect("a socket")
        });
        stream.set_nonblocking(false).expect("a socket");
        stream
    }

    /// As [`ClientStream::tls_to`], on an open connection.
    pub(crate) fn tls_on(stream: TcpStream, name: &'static str, config: &Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from(name).expect("a name");
        let connection = ClientConnection::new(Arc::clone(config), name).expect("a configuration");
        Self::Tls(Box::new(StreamOwned::new(connection, stream)))
    }

    /// Begins the handshake, and does not read the answer.
    pub(crate) fn send_hello(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) | Self::WebSocket(_) => Ok(()),
            Self::Tls(stream) => stream.conn.write_tls(&mut stream.sock).map(|_| ()),
        }
    }

    /// Upgrades this stream to WebSocket at the path "/mqtt". The exchange happens with the first byte.
    pub(crate) fn upgraded(self) -> Self {
        self.upgraded_with("")
    }

    /// As [`ClientStream::upgraded`], with further fields of the request, each after a line break.
    pub(crate) fn upgraded_with(self, fields: &str) -> Self {
        Self::WebSocket(Box::new(WebSocketClient::new(self, fields)))
    }

    /// Connects to a unix socket, which has the same calls as a TCP connection.
    pub(crate) fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("the broker listens");
        Self::Tcp(OwnedFd::from(stream).into())
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => &stream.sock,
            Self::WebSocket(stream) => stream.below().tcp(),
        }
    }

    /// The broker's certificate, once the handshake is over.
    pub(crate) fn certificate(&self) -> Option<Vec<u8>> {
        match self {
            Self::Tcp(_) => None,
            Self::WebSocket(stream) => stream.below().certificate(),
            Self::Tls(stream) => Some(stream.conn.peer_certificates()?.first()?.to_vec()),
        }
    }
}

impl Read for ClientStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
            Self::WebSocket(stream) => stream.read(buffer),
        }
    }
}

impl Write for ClientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
            Self::WebSocket(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
            Self::WebSocket(stream) => stream.flush(),
        }
    }
}

impl From<TcpStream> for ClientStream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}
