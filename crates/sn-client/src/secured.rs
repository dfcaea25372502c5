//! DTLS of a client's socket.

use std::collections::VecDeque;
use std::future::pending;
use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

pub use tenbin_sn_dtls::ClientKeys as DtlsKeys;
use tenbin_sn_dtls::{Client, Output, Session, SessionError};
use tokio::net::UdpSocket;
use tokio::time::sleep_until;

/// A DTLS session on a socket.
#[derive(Debug)]
pub(crate) struct Secured(Mutex<State>);

#[derive(Debug)]
struct State {
    session: Session,
    buffer: Vec<u8>,
    /// Memory for a received datagram.
    datagram: Vec<u8>,
    /// Messages that were not taken yet.
    messages: VecDeque<Vec<u8>>,
}

/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// Says why keys cannot be used in this build: they can.
pub(crate) fn check_build(_: &DtlsKeys) -> Result<(), String> {
    Ok(())
}

impl Secured {
    /// Opens a session with the gateway `host` that the socket is connected to. The files of the keys are read anew.
    ///
    /// # Errors
    /// A file cannot be used, the gateway does not answer, or one side refuses the keys of the other.
    pub(crate) async fn open(socket: &UdpSocket, keys: &DtlsKeys, host: &str) -> io::Result<Self> {
        let client = Client::new(keys, host).map_err(io::Error::other)?;
        // A new socket does not know yet that it has room.
        socket.writable().await?;
        let session = Session::connect(&client, Instant::now());
        let datagram = vec![0; DATAGRAM_BYTES_MAX];
        let secured = Self(Mutex::new(State { session, buffer: Vec::new(), datagram, messages: VecDeque::new() }));
        secured.call(socket, |session, buffer, output| session.handle_timeout(Instant::now(), buffer, output))?;
        while !secured.state().session.is_open() {
            secured.step(socket).await?;
        }
        Ok(secured)
    }

    /// Sends a message.
    pub(crate) async fn send(&self, socket: &UdpSocket, message: &[u8]) -> io::Result<()> {
        socket.writable().await?;
        self.call(socket, |session, buffer, output| session.send(message, Instant::now(), buffer, output))
    }

    /// Receives one message. Cancel safe.
    pub(crate) async fn receive(&self, socket: &UdpSocket, message: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(next) = self.state().messages.pop_front() {
                let size = next.len().min(message.len());
                message[..size].copy_from_slice(&next[..size]);
                return Ok(size);
            }
            self.step(socket).await?;
        }
    }

    /// Tells the gateway that the session ends.
    pub(crate) fn close(self, socket: &UdpSocket) {
        let State { session, mut buffer, .. } = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        session.close(Instant::now(), &mut buffer, &mut |output| {
            if let Output::Datagram(datagram) = output {
                // If it is lost, the gateway ends the session by a timeout.
                drop(socket.try_send(datagram));
            }
        });
    }

    /// Handles one datagram or deadline. Cancel safe.
    async fn step(&self, socket: &UdpSocket) -> io::Result<()> {
        let deadline = self.state().session.deadline();
        let due = async {
            match deadline {
                Some(at) => sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            ready = socket.readable() => {
                ready?;
                let mut datagram = std::mem::take(&mut self.state().datagram);
                let result = match socket.try_recv(&mut datagram) {
                    Ok(size) => self.call(socket, |session, buffer, output| {
                        session.receive(&datagram[..size], Instant::now(), buffer, output)
                    }),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
                    Err(error) => Err(error),
                };
                self.state().datagram = datagram;
                result
            }
            () = due => {
                self.call(socket, |session, buffer, output| session.handle_timeout(Instant::now(), buffer, output))
            }
        }
    }

    fn call(
        &self,
        socket: &UdpSocket,
        call: impl FnOnce(&mut Session, &mut Vec<u8>, &mut dyn FnMut(Output<'_>)) -> Result<(), SessionError>,
    ) -> io::Result<()> {
        let State { session, buffer, messages, .. } = &mut *self.state();
        let mut sent = Ok(());
        let result = call(session, buffer, &mut |output| match output {
            Output::Datagram(datagram) => match socket.try_send(datagram) {
                // Of an earlier datagram, instead of sending this one.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    sent = socket.try_send(datagram).and(Err(error));
                }
                // A full socket loses it, as the network may.
                _ => {}
            },
            Output::Message(message) => messages.push_back(message.to_vec()),
        });
        result.map_err(|error| io::Error::new(ErrorKind::ConnectionReset, format!("DTLS: {error}")))?;
        sent
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
