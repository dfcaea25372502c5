use std::io::{self, Read, Write};

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use socket2::SockRef;
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

use super::websocket::WebSocket;

/// Socket of an idle connection. It never blocks.
pub(super) enum Socket {
    /// Plain TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// TLS. Its handshake advances with each read and write. It may buffer written bytes until the next call.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    /// WebSocket on one of the others.
    Framed(Box<WebSocket>),
}

impl Socket {
    /// The socket below all other layers, as a source of events.
    pub(super) fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
            Self::Tls(stream) => &mut stream.sock,
            Self::Framed(stream) => stream.socket_mut().source(),
        }
    }

    /// The socket below all other layers.
    pub(super) fn socket(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(stream) => stream.into(),
            Self::Unix(stream) => stream.into(),
            Self::Tls(stream) => (&stream.sock).into(),
            Self::Framed(stream) => stream.socket().socket(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
            Self::Framed(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
            Self::Framed(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
            Self::Framed(stream) => stream.flush(),
        }
    }
}
