use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::wire::{Reader, Wire, Writer};
use crate::run::ClientKinds;

/// Byte streams to an agent that was started with `--stdio`: its standard input and output, directly or through `ssh`.
pub struct AgentStream {
    pub(super) name: String,
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) clients: ClientKinds,
    pub(super) may_pause: bool,
    /// Protocol and settings of its clients; `None` for the plan's.
    pub(super) driver: Option<(String, BTreeMap<String, String>)>,
}

impl AgentStream {
    /// The agent that writes to `reader` and reads from `writer`; errors of the run call it `name`.
    ///
    /// The agent ends when `writer` is dropped, which happens at the end of the run.
    pub fn new(
        name: impl Into<String>,
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        Self { name: name.into(), reader, writer, clients: ClientKinds::All, may_pause: false, driver: None }
    }

    /// Gives the agent only these kinds of clients. Agents of the same kinds share them.
    #[must_use]
    pub fn with_clients(self, clients: ClientKinds) -> Self {
        Self { clients, ..self }
    }

    /// Lets the agent's clients speak another protocol than the plan's, with these settings.
    #[must_use]
    pub fn with_protocol(self, protocol: impl Into<String>, settings: BTreeMap<String, String>) -> Self {
        Self { driver: Some((protocol.into(), settings)), ..self }
    }

    /// Lets the agent be silent for any time, as a stopped process is; only the end of its streams counts as its loss.
    #[must_use]
    pub fn that_may_pause(self) -> Self {
        Self { may_pause: true, ..self }
    }
}

impl fmt::Debug for AgentStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentStream").field("name", &self.name).finish_non_exhaustive()
    }
}

/// This process's standard input and output.
///
/// They are read without a thread in between, which would delay the answers that the controller's clock is compared by.
///
/// # Errors
/// One of them is neither a pipe nor a socket.
pub(super) fn standard() -> io::Result<Wire> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let reader: Reader = match pipe::Receiver::from_owned_fd(input.try_clone()?) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(socket(input)?),
    };
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let writer: Writer = match pipe::Sender::from_owned_fd(output.try_clone()?) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(socket(output)?),
    };
    Ok(Wire::over(reader, writer))
}

/// A socket of any kind: only reads and writes follow.
fn socket(descriptor: OwnedFd) -> io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(descriptor);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}
