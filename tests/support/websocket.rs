use std::io::{self, Read, Write};

use tenbin_websocket::ClientConnection;

use super::ClientStream;

/// WebSocket on a stream.
pub(crate) struct WebSocketClient {
    stream: ClientStream,
    connection: ClientConnection,
}

impl WebSocketClient {
    /// `fields`: further ones of the request, each after a line break.
    pub(crate) fn new(stream: ClientStream, fields: &str) -> Self {
        // They go behind the field `Host`, which ends with the name.
        Self { stream, connection: ClientConnection::new(&format!("localhost{fields}"), "/mqtt", 1) }
    }

    pub(crate) fn below(&self) -> &ClientStream {
        &self.stream
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.stream.read(buffer)? {
            0 => Ok(None),
            read => self.connection.receive(&mut buffer[..read]).map(Some).map_err(io::Error::other),
        }
    }
}

impl Read for WebSocketClient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.flush()?;
            if self.connection.end().is_some() {
                return Ok(0);
            }
            match self.receive(buffer)? {
                None => return Ok(0),
                Some(0) => {}
                Some(received) => return Ok(received),
            }
        }
    }
}

impl Write for WebSocketClient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        while self.connection.is_upgrading() {
            if self.receive(&mut [0; 256])?.is_none() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let taken = self.connection.send(bytes);
        self.flush()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.connection.output().is_empty() {
            let written = self.stream.write(self.connection.output())?;
            self.connection.wrote(written);
        }
        self.stream.flush()
    }
}
