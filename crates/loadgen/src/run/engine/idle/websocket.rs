use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};

use tenbin_websocket::ClientConnection;

use super::socket::Socket;

/// WebSocket on a socket. Its upgrade advances with each write, up to the first that succeeds.
pub(super) struct WebSocket {
    socket: Socket,
    connection: ClientConnection,
}

impl WebSocket {
    /// Begins the upgrade to `path` of `host` ("host:port").
    pub(super) fn new(socket: Socket, host: &str, path: &str) -> Self {
        let seed = RandomState::new().hash_one(host);
        Self { socket, connection: ClientConnection::new(host, path, seed) }
    }

    pub(super) fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    fn write_output(&mut self) -> io::Result<()> {
        while !self.connection.output().is_empty() {
            let written = self.socket.write(self.connection.output())?;
            self.connection.wrote(written);
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.socket.read(buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.connection.receive(&mut buffer[..count]).map_err(io::Error::other)
    }
}

impl Read for WebSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.connection.end().is_some() {
                return Ok(0);
            }
            match self.receive(buffer) {
                Ok(0) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                received => return received,
            }
            // A pong that does not leave now leaves with the next write.
            let _ = self.write_output();
        }
    }
}

impl Write for WebSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_output()?;
        while self.connection.is_upgrading() {
            self.receive(&mut [0; 256])?;
        }
        let taken = self.connection.send(bytes);
        if taken == 0 && !bytes.is_empty() && self.connection.end().is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match self.write_output() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_output()?;
        self.socket.flush()
    }
}
