use std::io::{self, Read, Write};

use mio::net::TcpStream;
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

/// What an idle connection goes over. Nobody waits for it.
pub(super) enum Socket {
    /// As it is.
    Tcp(TcpStream),
    /// Under TLS, whose handshake goes on with each read and each write. What was written may wait in it until the next
    /// one.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    /// What is below TLS, if that is there.
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
