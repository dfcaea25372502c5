use std::time::{Duration, Instant};

use bytes::BytesMut;
use tenbin_codec::Secret;
use tenbin_kit::printable::printable;
use tokio::net::TcpStream;

use super::message::{AgentMessage, Hello};
use super::stream::AgentStream;
use super::wire::{SILENCE_LIMIT, SILENT, Wire};
use crate::LoadgenError;
use crate::run::Status;
use crate::run::clock::RunClock;
use crate::run::offset::Probe;

/// A controller's connection to one agent. All errors name the agent.
#[derive(Debug)]
pub(super) struct AgentLink {
    address: String,
    wire: Wire,
    /// When the agent last sent a message.
    heard: Instant,
    /// When [`AgentLink::listen`] last ran.
    listened: Instant,
    /// The agent's last progress report.
    status: Status,
    /// Time after which a silent agent is lost.
    patience: Duration,
}

impl AgentLink {
    /// Connects, and checks that both sides have the same version.
    ///
    /// # Errors
    /// The agent cannot be reached, has another version, is busy, or rejects the token.
    pub(super) async fn open(address: &str, token: Option<&Secret<String>>) -> Result<Self, LoadgenError> {
        let fail = |reason: String| LoadgenError::agent(address, reason);
        let connected = tokio::time::timeout(SILENCE_LIMIT, TcpStream::connect(address)).await;
        let stream = connected
            .map_err(|_| fail("no connection within 10 s".to_owned()))?
            .map_err(|error| fail(error.to_string()))?;
        let wire = Wire::new(stream).map_err(|error| fail(error.to_string()))?;
        Self::greet(address.to_owned(), wire, token, SILENCE_LIMIT).await
    }

    /// As [`AgentLink::open`], over the streams of an agent that runs already.
    ///
    /// # Errors
    /// As [`AgentLink::open`].
    pub(super) async fn over(agent: AgentStream) -> Result<Self, LoadgenError> {
        let AgentStream { name, reader, writer, may_pause, .. } = agent;
        let patience = if may_pause { Duration::MAX } else { SILENCE_LIMIT };
        Self::greet(name, Wire::over(reader, writer), None, patience).await
    }

    async fn greet(
        address: String,
        wire: Wire,
        token: Option<&Secret<String>>,
        patience: Duration,
    ) -> Result<Self, LoadgenError> {
        let now = Instant::now();
        let mut link = Self { address, wire, heard: now, listened: now, status: Status::default(), patience };
        link.send(&AgentMessage::Hello(Hello::new(token))).await?;
        match link.receive().await? {
            AgentMessage::Hello(hello) => hello.check_version().map_err(|reason| link.lost(reason))?,
            message => return Err(link.unexpected(&message)),
        }
        link.wire.trust();
        Ok(link)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The agent's last progress report.
    pub(super) fn status(&self) -> &Status {
        &self.status
    }

    /// Reads the agent's clock.
    pub(super) async fn probe(&mut self, clock: RunClock) -> Result<Probe, LoadgenError> {
        let asked_ns = clock.now_ns();
        self.send(&AgentMessage::Probe).await?;
        match self.receive().await? {
            AgentMessage::Answer { received_ns, answered_ns } => {
                Ok(Probe { asked_ns, received_ns, answered_ns, heard_ns: clock.at_ns(self.wire.read_at()) })
            }
            message => Err(self.unexpected(&message)),
        }
    }

    pub(super) async fn send(&mut self, message: &AgentMessage) -> Result<(), LoadgenError> {
        self.wire.send(message).await.map_err(|reason| self.lost(reason))
    }

    /// Waits until the agent's clients are connected.
    pub(super) async fn ready(&mut self) -> Result<(), LoadgenError> {
        match self.receive().await? {
            AgentMessage::Ready => Ok(()),
            message => Err(self.unexpected(&message)),
        }
    }

    /// Handles pending messages of the agent, without waiting.
    pub(super) fn listen(&mut self) -> Result<(), LoadgenError> {
        while let Some(message) = self.wire.try_receive().map_err(|reason| self.lost(reason))? {
            match self.unless_failed(message)? {
                AgentMessage::Status(status) => self.take(status)?,
                message => return Err(self.unexpected(&message)),
            }
        }
        let now = Instant::now();
        if now - self.listened > PAUSE_MAX {
            // This process was suspended: messages sent during the suspension may not have arrived yet.
            self.heard = now;
        }
        self.listened = now;
        if now - self.heard > self.patience {
            return Err(self.lost(format!("it says {SILENT}")));
        }
        Ok(())
    }

    /// Waits for the first progress report.
    pub(super) async fn started(&mut self) -> Result<(), LoadgenError> {
        match self.receive().await? {
            AgentMessage::Status(status) => self.take(status),
            message => Err(self.unexpected(&message)),
        }
    }

    /// Receives the agent's results after it has finished.
    pub(super) async fn part(&mut self) -> Result<BytesMut, LoadgenError> {
        let bytes = loop {
            match self.receive().await? {
                AgentMessage::Part { bytes } => break bytes,
                // Progress reports sent before the agent got Finish.
                AgentMessage::Status(_) => {}
                message => return Err(self.unexpected(&message)),
            }
        };
        self.wire.receive_bulk(bytes).await.map_err(|reason| self.lost(reason))
    }

    /// Closes the connection; the agent then accepts another controller.
    pub(super) async fn close(self) {
        self.wire.close(None).await;
    }

    fn take(&mut self, mut status: Status) -> Result<(), LoadgenError> {
        self.heard = Instant::now();
        self.listened = self.heard;
        match status.failure.take() {
            Some(failure) => Err(self.lost(failure)),
            None => {
                self.status = status;
                Ok(())
            }
        }
    }

    /// Next message, skipping those that only show that the agent is alive.
    async fn receive(&mut self) -> Result<AgentMessage, LoadgenError> {
        loop {
            let message = match tokio::time::timeout(self.patience, self.wire.receive()).await {
                Ok(message) => message.map_err(|reason| self.lost(reason))?,
                Err(_) => return Err(self.lost(format!("it says {SILENT}"))),
            };
            match self.unless_failed(message)? {
                AgentMessage::Working => {}
                message => return Ok(message),
            }
        }
    }

    fn unless_failed(&self, message: AgentMessage) -> Result<AgentMessage, LoadgenError> {
        match message {
            // Error texts are one line.
            AgentMessage::Error(text) => Err(self.lost(printable(&text).into_owned())),
            message => Ok(message),
        }
    }

    fn unexpected(&self, message: &AgentMessage) -> LoadgenError {
        self.lost(format!("unexpected {}", message.name()))
    }

    fn lost(&self, reason: String) -> LoadgenError {
        LoadgenError::agent(&self.address, reason)
    }
}

/// Longest regular interval between two calls of [`AgentLink::listen`].
const PAUSE_MAX: Duration = Duration::from_secs(1);
