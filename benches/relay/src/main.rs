//! A relay of MQTT frames: the cost of moving messages between sockets without any broker logic.
//!
//! In comparisons it is the upper bound that no broker can exceed with readiness events of the kernel (epoll) and one
//! thread. A lap of the loop waits for events, reads each readable connection once, and copies whole frames into the
//! receivers' write buffers: to all subscribers without `$share`, and in rotation to those with it. At the end of the
//! lap one system call for each receiver writes all its bytes. So under load many messages of many publishers share a
//! write.
//!
//! **It is no broker.** It does not look at topics and filters (one share group, and one topic for all), nor at
//! properties, rights, sizes and Keep Alive; has no sessions, Wills, retained messages and UNSUBSCRIBE; lowers no QoS
//! (both sides have to request the same); enforces no limits (a receiver that does not read makes it grow); sends
//! nothing again. Above QoS 0 it acknowledges at once, gives each receiver's copies Packet Identifiers that count
//! upwards, and answers PUBREC with PUBREL, without tracking messages in flight. Both sides must speak the
//! same version.
//!
//! ```text
//! tenbin-relay [ADDRESS:PORT]      # 127.0.0.1:1883 by default; port 0 selects a free one, which is printed
//! ```
#![forbid(unsafe_code)]

mod connection;
mod frame;
mod receivers;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};

use connection::{Connection, Read};
use receivers::Receivers;

fn main() -> ExitCode {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:1883".to_owned());
    let parsed = address.parse().map_err(|_| io::Error::other(format!("{address:?}: want ADDRESS:PORT")));
    match parsed.and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "tenbin-relay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(address: SocketAddr) -> io::Result<()> {
    let mut relay = Relay::bind(address)?;
    writeln!(io::stdout(), "tenbin-relay listening on {}", relay.listener.local_addr()?)?;
    let mut events = Events::with_capacity(EVENTS);
    loop {
        relay.lap(&mut events)?;
    }
}

/// The listener and all connections. A connection's token is its index.
struct Relay {
    poll: Poll,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    receivers: Receivers,
    /// Connections to read in this lap, and to write at its end.
    to_read: Vec<usize>,
    to_write: Vec<usize>,
    input: Vec<u8>,
}

impl Relay {
    fn bind(address: SocketAddr) -> io::Result<Self> {
        let (poll, mut listener) = (Poll::new()?, TcpListener::bind(address)?);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let (connections, receivers) = Default::default();
        let (to_read, to_write) = Default::default();
        Ok(Self { poll, listener, connections, receivers, to_read, to_write, input: vec![0; CHUNK] })
    }

    /// Waits for events, reads once from each connection that has bytes, and writes once to each that gets some.
    fn lap(&mut self, events: &mut Events) -> io::Result<()> {
        let timeout = (!self.to_read.is_empty()).then_some(Duration::ZERO);
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &*events {
            match event.token() {
                LISTENER => self.accept()?,
                Token(index) => {
                    let Some(connection) = &mut self.connections[index] else { continue };
                    connection.is_closed |= event.is_read_closed();
                    if event.is_readable() && !std::mem::replace(&mut connection.is_read, true) {
                        self.to_read.push(index);
                    }
                    if event.is_writable() && !std::mem::replace(&mut connection.is_written, true) {
                        self.to_write.push(index);
                    }
                }
            }
        }
        for index in std::mem::take(&mut self.to_read) {
            self.read(index);
        }
        for index in std::mem::take(&mut self.to_write) {
            self.write(index);
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nodelay(true)?;
            let index = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
            self.poll.registry().register(&mut stream, Token(index), Interest::READABLE | Interest::WRITABLE)?;
            if index == self.connections.len() {
                self.connections.push(None);
            }
            self.connections[index] = Some(Connection::new(stream));
        }
    }

    fn read(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        connection.is_read = false;
        match connection.read(&mut self.input) {
            Ok(Read::Nothing) => return,
            Ok(Read::Bytes { count, is_all }) => {
                if !is_all {
                    connection.is_read = true;
                    self.to_read.push(index);
                }
                let Self { connections, receivers, to_write, input, .. } = self;
                if receivers.take(index, &input[..count], connections, to_write).is_ok() {
                    return;
                }
            }
            Err(_) => {}
        }
        // The peer knows why the connection ended.
        self.end(index);
    }

    fn write(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        connection.is_written = false;
        if connection.write().is_err() {
            self.end(index);
        }
    }

    fn end(&mut self, index: usize) {
        self.connections[index] = None;
        self.receivers.leave(index);
    }
}

const LISTENER: Token = Token(usize::MAX);
/// Bytes of one read, as in the broker, and the longest rest of an earlier read.
const CHUNK: usize = 64 * 1024;
/// Events of one lap.
const EVENTS: usize = 1024;

#[cfg(test)]
mod tests;
