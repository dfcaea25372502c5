use std::time::{Duration, Instant};

use dimpl::{Dtls, Output as Event};
use ring::digest::{SHA256, digest};
use tenbin_kit::digits::hexadecimal;

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
    /// The other side has returned the cookie, so that its address is no forged one.
    is_proven: bool,
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
        Self {
            engine,
            judge,
            claimed: None,
            proven: None,
            is_proven: false,
            is_open: false,
            is_closed: false,
            deadline: None,
        }
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
        let _of_another_session = keys::take_looked_up();
        self.engine.handle_timeout(now)?;
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

    /// Repeats datagrams that are due.
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

    /// Whether the other side has shown that datagrams reach it at its address. Until then a server's only output is a
    /// cookie for each ClientHello, and repetitions of it must not be sent (RFC 6347, 4.2.1).
    pub fn is_proven(&self) -> bool {
        self.is_proven
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
                Event::Packet(datagram) => {
                    self.is_proven |= !records(datagram).all(is_cookie);
                    output(Output::Datagram(datagram));
                }
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
                // The peer is unknown before the end of the handshake.
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
    /// Text that differs for different identities.
    pub fn key(&self) -> String {
        match self {
            Self::PreSharedKey(identity) => format!("p{identity}"),
            Self::Certificate(certificate) => format!("c{}", hexadecimal(digest(&SHA256, certificate).as_ref())),
        }
    }

    /// Certificate in DER, if it proves the identity.
    pub fn certificate(&self) -> Option<&[u8]> {
        match self {
            Self::PreSharedKey(_) => None,
            Self::Certificate(certificate) => Some(certificate),
        }
    }

    /// Name of the client: the identity of its key, or the Common Name of its certificate if that has exactly one.
    pub fn name(&self) -> Option<String> {
        match self {
            Self::PreSharedKey(identity) => Some(identity.clone()),
            Self::Certificate(certificate) => certificates::common_name(certificate),
        }
    }
}

/// A ClientHello that is not encrypted, or its first fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Random of the client, the same in both ClientHellos of a handshake.
    pub random: [u8; 32],
    /// Whether it is the first one of its handshake, without a cookie.
    pub is_first: bool,
}

impl Hello {
    /// The ClientHello at the begin of a datagram.
    pub fn of(datagram: &[u8]) -> Option<Self> {
        if handshake_type(datagram)? != CLIENT_HELLO || datagram.get(FRAGMENT_OFFSET)? != [0; 3] {
            return None;
        }
        let random = datagram.get(RANDOM_AT..)?.first_chunk().copied()?;
        Some(Self { random, is_first: datagram.get(MESSAGE_SEQUENCE)? == [0; 2] })
    }
}

/// Whether a datagram has an alert that is not encrypted, which anybody may have sent.
pub fn has_plain_alert(datagram: &[u8]) -> bool {
    const ALERT: u8 = 21;
    records(datagram).any(|record| matches!(record, [ALERT, 0xFE, _, 0, 0, ..]))
}

/// Records of a datagram. The last one may be cut, or encrypted with a short header.
fn records(mut datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let size = match datagram {
            [] => return None,
            [_, 0xFE, _, _, _, _, _, _, _, _, _, high, low, ..] => {
                RECORD_HEADER + usize::from(u16::from_be_bytes([*high, *low]))
            }
            _ => datagram.len(),
        };
        let (record, rest) = datagram.split_at(size.min(datagram.len()));
        datagram = rest;
        Some(record)
    })
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const HELLO_VERIFY_REQUEST: u8 = 3;
const RECORD_HEADER: usize = 13;
/// Behind type and length of the handshake message.
const MESSAGE_SEQUENCE: std::ops::Range<usize> = RECORD_HEADER + 4..RECORD_HEADER + 6;
const FRAGMENT_OFFSET: std::ops::Range<usize> = RECORD_HEADER + 6..RECORD_HEADER + 9;
/// Behind both headers and the version.
const RANDOM_AT: usize = RECORD_HEADER + 12 + 2;
/// Random of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3).
const RETRY_REQUEST: [u8; 32] = [
    0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91, 0xC2, 0xA2, 0x11,
    0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
];

/// Type of a handshake message that is not encrypted.
fn handshake_type(record: &[u8]) -> Option<u8> {
    // Content type, version, epoch, sequence number, length.
    match record {
        [HANDSHAKE, 0xFE, _, 0, 0, _, _, _, _, _, _, _, _, kind, ..] => Some(*kind),
        _ => None,
    }
}

/// Whether a server's record asks for a ClientHello with its cookie.
fn is_cookie(record: &[u8]) -> bool {
    match handshake_type(record) {
        Some(HELLO_VERIFY_REQUEST) => true,
        Some(SERVER_HELLO) => record.get(RANDOM_AT..).is_some_and(|rest| rest.starts_with(&RETRY_REQUEST)),
        _ => false,
    }
}
