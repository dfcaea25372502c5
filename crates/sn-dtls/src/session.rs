use std::time::{Duration, Instant};

use dimpl::{Dtls, Output as Event};

use crate::SessionError;
use crate::certificates::{self, Judge};
use crate::keys;
use crate::sides::{Client, Server};

/// One end of a DTLS session. It has ended once a method returns an error.
#[derive(Debug)]
pub struct Session {
    engine: Dtls,
    judge: Judge,
    /// Identity that the other side claims, until it is proven.
    claimed: Option<Identity>,
    proven: Option<Identity>,
    is_open: bool,
    is_closed: bool,
    deadline: Option<Instant>,
}

/// Proven identity of the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// Identity of a pre-shared key.
    PreSharedKey(String),
    /// Certificate in DER.
    Certificate(Box<[u8]>),
}

/// Output of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output<'a> {
    /// A datagram for the other side.
    Datagram(&'a [u8]),
    /// A message of the other side.
    Message(&'a [u8]),
}

/// A deadline beyond it is the engine's word for none.
const DEADLINE_MAXIMUM: Duration = Duration::from_secs(24 * 3600);
/// Memory for one output.
const BUFFER_BYTES: usize = 2048;

impl Session {
    /// A session of a server. It waits for the client's first datagram.
    pub fn accept(server: &Server, now: Instant) -> Self {
        Self::new(server.engine(now), server.judge.clone())
    }

    /// A session of a client. It begins with [`handle_timeout`](Self::handle_timeout).
    pub fn connect(client: &Client, now: Instant) -> Self {
        Self::new(client.engine(now), client.judge.clone())
    }

    fn new(engine: Dtls, judge: Judge) -> Self {
        Self { engine, judge, claimed: None, proven: None, is_open: false, is_closed: false, deadline: None }
    }

    /// Handles a datagram of the other side. Datagrams that do not belong to the session are ignored. `buffer` is memory
    /// that sessions of one thread may share.
    ///
    /// # Errors
    /// The session has ended.
    pub fn receive(
        &mut self,
        datagram: &[u8],
        now: Instant,
        buffer: &mut Vec<u8>,
        output: &mut dyn FnMut(Output<'_>),
    ) -> Result<(), SessionError> {
        self.engine.handle_timeout(now)?;
        let _of_another_session = keys::take_looked_up();
        self.engine.handle_packet(datagram)?;
        if let Some(identity) = keys::take_looked_up() {
            self.claimed = Some(Identity::PreSharedKey(identity));
        }
        self.put_out(now, buffer, output)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The session has ended.
    pub fn send(
        &mut self,
        message: &[u8],
        now: Instant,
        buffer: &mut Vec<u8>,
        output: &mut dyn FnMut(Output<'_>),
    ) -> Result<(), SessionError> {
        self.engine.send_application_data(message)?;
        self.put_out(now, buffer, output)
    }

    /// Repeats datagrams whose time has come.
    ///
    /// # Errors
    /// The session has ended: the other side does not answer.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        buffer: &mut Vec<u8>,
        output: &mut dyn FnMut(Output<'_>),
    ) -> Result<(), SessionError> {
        self.engine.handle_timeout(now)?;
        self.put_out(now, buffer, output)
    }

    /// Tells the other side that the session ends.
    pub fn close(mut self, now: Instant, buffer: &mut Vec<u8>, output: &mut dyn FnMut(Output<'_>)) {
        // The session is gone either way.
        if self.is_open && self.engine.close().is_ok() {
            let _ = self.put_out(now, buffer, output);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the handshake is done.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Identity of the other side, once the handshake is done, if it has one.
    pub fn identity(&self) -> Option<&Identity> {
        self.proven.as_ref()
    }

    fn put_out(
        &mut self,
        now: Instant,
        buffer: &mut Vec<u8>,
        output: &mut dyn FnMut(Output<'_>),
    ) -> Result<(), SessionError> {
        if buffer.len() < BUFFER_BYTES {
            buffer.resize(BUFFER_BYTES, 0);
        }
        loop {
            match self.engine.poll_output(buffer) {
                Event::Packet(datagram) => output(Output::Datagram(datagram)),
                Event::BufferTooSmall { needed } => buffer.resize(needed, 0),
                Event::PeerCert(certificate) => {
                    self.judge.judge(certificate)?;
                    if self.judge.asks() {
                        self.claimed = Some(Identity::Certificate(certificate.into()));
                    }
                }
                Event::Connected => {
                    self.is_open = true;
                    self.proven = self.claimed.take();
                }
                // Nobody is known before the end of the handshake.
                Event::ApplicationData(message) if self.is_open => output(Output::Message(message)),
                Event::CloseNotify => self.is_closed = true,
                Event::Timeout(at) => {
                    self.deadline = Some(at).filter(|&at| at < now + DEADLINE_MAXIMUM);
                    return if self.is_closed { Err(SessionError::Closed) } else { Ok(()) };
                }
                _ => {}
            }
        }
    }
}

impl Identity {
    /// Name of the client: the identity of its key, or the Common Name of its certificate if that has exactly one.
    pub fn name(&self) -> Option<String> {
        match self {
            Self::PreSharedKey(identity) => Some(identity.clone()),
            Self::Certificate(certificate) => certificates::common_name(certificate),
        }
    }
}

/// Whether a datagram may begin a session: a ClientHello that is not encrypted.
pub fn begins_session(datagram: &[u8]) -> bool {
    const HANDSHAKE: u8 = 22;
    const CLIENT_HELLO: u8 = 1;
    // Content type, version, epoch, sequence number, length; type of the handshake message.
    matches!(datagram, [HANDSHAKE, 0xFE, _, 0, 0, _, _, _, _, _, _, _, _, CLIENT_HELLO, ..])
}
