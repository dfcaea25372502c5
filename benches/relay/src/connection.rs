//! One connection: its socket, the start of an incomplete frame, and the bytes to write.

use std::io::{self, Read as _, Write as _};

use mio::net::TcpStream;

use crate::CHUNK;

pub(crate) struct Connection {
    stream: TcpStream,
    /// Start of an incomplete frame.
    pub(crate) rest: Vec<u8>,
    /// Bytes to write, and how many of them are written.
    pub(crate) out: Vec<u8>,
    written: usize,
    /// Packet Identifier of the last message above QoS 0 for the client.
    pub(crate) id: u16,
    /// Whether the client speaks MQTT 5.0, whose packets have properties.
    pub(crate) is_v5: bool,
    /// Whether the client has closed its side, so that a read behind the last byte tells the end.
    pub(crate) is_closed: bool,
    /// Whether the connection is to be read in this lap.
    pub(crate) is_read: bool,
    /// Whether the connection is to be written at the end of this lap.
    pub(crate) is_written: bool,
}

/// Result of a read.
pub(crate) enum Read {
    /// There are no bytes.
    Nothing,
    /// The buffer begins with this many bytes. `is_all`: the socket has no more.
    Bytes { count: usize, is_all: bool },
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        let (rest, out) = Default::default();
        Self { stream, rest, out, written: 0, id: 0, is_v5: false, is_read: false, is_written: false, is_closed: false }
    }

    /// Reads once into `input`, behind the rest of an earlier read.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn read(&mut self, input: &mut Vec<u8>) -> io::Result<Read> {
        let kept = self.rest.len();
        if input.len() < kept + CHUNK {
            input.resize(kept + CHUNK, 0);
        }
        let read = match self.stream.read(&mut input[kept..kept + CHUNK]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Read::Nothing),
            Err(error) => return Err(error),
        };
        input[..kept].copy_from_slice(&self.rest);
        self.rest.clear();
        Ok(Read::Bytes { count: kept + read, is_all: read < CHUNK && !self.is_closed })
    }

    /// Writes once. Bytes that the socket does not take stay until it can take some.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        match self.stream.write(&self.out[self.written..]) {
            Ok(written) => self.written += written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
        Ok(())
    }
}
