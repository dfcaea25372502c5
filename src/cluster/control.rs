//! Commands to a running node: a unix socket in its data directory, one JSON line each way.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::link::lines::{self, LineError};
use super::status::NodeStatus;

/// Name of the socket in a data directory.
pub(crate) const SOCKET: &str = "cluster.sock";

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(crate) enum ControlRequest {
    Status,
    /// Makes the node the leader.
    Promote {
        /// Whether the node may lead although it may lack acknowledged messages.
        accept_loss: bool,
    },
    /// A command of a newer version.
    #[serde(other)]
    Unknown,
}

/// Answer to a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ControlAnswer {
    Status {
        status: Box<NodeStatus>,
    },
    /// The command is carried out. The text is for the operator.
    Done {
        message: String,
    },
    /// The command is not carried out.
    Failed {
        error: String,
    },
}

/// The node's end of the socket. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct ControlServer {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlServer {
    /// Opens the socket `path`, which only its owner may use. Replaces the file of a node that was killed.
    ///
    /// # Errors
    /// The socket cannot be made. A path has 107 bytes at most.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        // Other users must not connect before the rights are set.
        let mut early = path.as_os_str().to_owned();
        early.push(".new");
        let early = PathBuf::from(early);
        match fs::remove_file(&early) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&early)?;
        fs::set_permissions(&early, Permissions::from_mode(0o600))?;
        fs::rename(&early, path)?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Answers commands with `handle` until it is cancelled.
    pub(crate) async fn serve<H, F>(&self, handle: H)
    where
        H: Fn(ControlRequest) -> F + Send + Sync + 'static,
        F: Future<Output = ControlAnswer> + Send,
    {
        let (handle, places) = (Arc::new(handle), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let handle = Arc::clone(&handle);
                    tokio::spawn(async move {
                        if let Err(error) = answer(stream, &*handle).await {
                            tracing::debug!(%error, "a command to the node has failed");
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, socket = %self.path.display(), "cannot accept a command");
                    sleep(ACCEPT_AGAIN_AFTER).await;
                }
            }
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // The directory may have gone.
        let _ = fs::remove_file(&self.path);
    }
}

async fn answer<H, F>(mut stream: UnixStream, handle: &H) -> Result<(), LineError>
where
    H: Fn(ControlRequest) -> F,
    F: Future<Output = ControlAnswer>,
{
    let request = timeout(REQUEST_TIMEOUT, lines::read_exact_line(&mut stream, REQUEST_BYTES_MAX)).await;
    let answer = match request.unwrap_or(Err(LineError::Silent(REQUEST_TIMEOUT))) {
        Ok(ControlRequest::Unknown) => ControlAnswer::Failed { error: "the node does not know the command".to_owned() },
        Ok(request) => handle(request).await,
        Err(error @ LineError::Malformed(_)) => ControlAnswer::Failed { error: error.to_string() },
        Err(error) => return Err(error),
    };
    lines::write(&mut stream, &answer).await
}

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("no node runs with the data directory {}: {error}", directory.display())]
    NoNode { directory: PathBuf, error: io::Error },
    #[error("the node did not answer: {0}")]
    Line(#[from] LineError),
    #[error("{0}")]
    Failed(String),
    #[error("the node has given an unexpected answer")]
    Unexpected,
}

/// Sends a command to the node with this data directory.
///
/// # Errors
/// No node runs there, it does not answer within `limit`, or it has failed.
pub(crate) async fn ask(
    directory: &Path,
    request: &ControlRequest,
    limit: Duration,
) -> Result<ControlAnswer, ControlError> {
    let no_node = |error| ControlError::NoNode { directory: directory.to_owned(), error };
    let mut stream = UnixStream::connect(directory.join(SOCKET)).await.map_err(no_node)?;
    let exchange = async {
        lines::write(&mut stream, request).await?;
        lines::read_exact_line(&mut stream, lines::LINE_BYTES_MAX).await
    };
    match timeout(limit, exchange).await.unwrap_or(Err(LineError::Silent(limit)))? {
        ControlAnswer::Failed { error } => Err(ControlError::Failed(error)),
        answer => Ok(answer),
    }
}

/// Asks the node with this data directory for its status.
///
/// # Errors
/// As [`ask`].
pub(crate) async fn ask_status(directory: &Path, limit: Duration) -> Result<NodeStatus, ControlError> {
    match ask(directory, &ControlRequest::Status, limit).await? {
        ControlAnswer::Status { status } => Ok(*status),
        _ => Err(ControlError::Unexpected),
    }
}

/// Commands that are carried out at the same time.
const CONNECTIONS_MAX: usize = 16;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_BYTES_MAX: usize = 4096;
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileTypeExt as _;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    async fn handle(request: ControlRequest) -> ControlAnswer {
        match request {
            ControlRequest::Promote { accept_loss: true } => ControlAnswer::Done { message: "leads".to_owned() },
            ControlRequest::Promote { .. } => ControlAnswer::Failed { error: "needs --accept-loss".to_owned() },
            _ => {
                let status = NodeStatus { node: "a".to_owned(), ..NodeStatus::default() };
                ControlAnswer::Status { status: Box::new(status) }
            }
        }
    }

    #[tokio::test]
    async fn commands_are_answered_over_a_private_socket() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(SOCKET);
        // A killed node leaves its socket.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
        let server = ControlServer::bind(&path).expect("a socket");
        let file = path.metadata().expect("the socket");
        assert!(file.file_type().is_socket());
        assert_eq!(file.permissions().mode() & 0o777, 0o600);
        let served = tokio::spawn(async move { server.serve(handle).await });
        assert_eq!(ask_status(directory.path(), PATIENCE).await.expect("a status").node, "a");
        let promoted = ask(directory.path(), &ControlRequest::Promote { accept_loss: true }, PATIENCE).await;
        assert_eq!(promoted.expect("done"), ControlAnswer::Done { message: "leads".to_owned() });
        let refused = ask(directory.path(), &ControlRequest::Promote { accept_loss: false }, PATIENCE).await;
        assert_eq!(refused.expect_err("refused").to_string(), "needs --accept-loss");
        for (line, part) in [("{\"command\":\"dance\"}\n", "does not know"), ("x\n", "no message")] {
            let mut stream = UnixStream::connect(&path).await.expect("the socket is open");
            stream.write_all(line.as_bytes()).await.expect("it reads");
            let mut answer = String::new();
            timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("in time").expect("an answer");
            assert!(answer.contains(part), "{answer}");
        }
        served.abort();
        assert!(served.await.expect_err("aborted").is_cancelled());
        assert!(!path.exists());
        let error = ask_status(directory.path(), PATIENCE).await.expect_err("nothing runs");
        assert!(error.to_string().starts_with("no node runs with the data directory"), "{error}");
    }
}
