//! Commands to a running node: a unix socket in its data directory, one JSON line each way.

use std::fmt;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::backups::Backups;
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
    /// Lets the follower lead instead of the leader, whichever node is asked.
    Switch {
        /// The node that is to lead; `None` = the follower.
        #[serde(default)]
        to: Option<String>,
    },
    /// Asks for a backup. It follows the answer.
    Backup,
    /// Writes the newest record that the node knows into an engine that has lost it.
    Adopt {
        /// Whether nodes that cannot be asked are known to be gone.
        yes: bool,
    },
    /// Makes the node the leader although the record names others, which are gone for ever.
    Force {
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
    /// Bytes follow, up to the end of the connection.
    Stream {
        #[serde(skip)]
        source: Source,
    },
    /// The command is not carried out.
    Failed {
        error: String,
    },
}

/// Writes the bytes behind an answer. It blocks; a write that the reader does not take fails with `WouldBlock` soon.
#[derive(Clone, Default)]
pub(crate) struct Source(Option<Arc<WriteTo>>);

/// Writes all bytes of a stream.
type WriteTo = dyn Fn(&mut dyn Write) -> io::Result<()> + Send + Sync;

impl Source {
    pub(crate) fn new(write: impl Fn(&mut dyn Write) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(write)))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl PartialEq for Source {
    /// Bytes that were not written are not known.
    fn eq(&self, _: &Self) -> bool {
        false
    }
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

    /// Answers commands with `handle` until it is cancelled. A backup that `backups` refuses does not reach it.
    pub(crate) async fn serve<H, F>(&self, backups: Arc<Backups>, handle: H)
    where
        H: Fn(ControlRequest) -> F + Send + Sync + 'static,
        F: Future<Output = ControlAnswer> + Send,
    {
        let (handle, places) = (Arc::new(handle), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (handle, backups) = (Arc::clone(&handle), Arc::clone(&backups));
                    tokio::spawn(async move {
                        if let Err(error) = answer(stream, &*handle, &backups).await {
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

async fn answer<H, F>(mut stream: UnixStream, handle: &H, backups: &Arc<Backups>) -> Result<(), LineError>
where
    H: Fn(ControlRequest) -> F,
    F: Future<Output = ControlAnswer>,
{
    let request = timeout(REQUEST_TIMEOUT, lines::read_exact_line(&mut stream, REQUEST_BYTES_MAX)).await;
    let mut place = None;
    let answer = match request.unwrap_or(Err(LineError::Silent(REQUEST_TIMEOUT))) {
        Ok(ControlRequest::Backup) => match backups.begin(process_of(&stream)) {
            Ok(begun) => {
                place = Some(begun);
                handle(ControlRequest::Backup).await
            }
            Err(error) => ControlAnswer::Failed { error },
        },
        Ok(ControlRequest::Unknown) => ControlAnswer::Failed { error: "the node does not know the command".to_owned() },
        Ok(request) => handle(request).await,
        Err(error @ LineError::Malformed(_)) => ControlAnswer::Failed { error: error.to_string() },
        Err(error) => return Err(error),
    };
    let told = lines::write(&mut stream, &answer).await;
    let write = match answer {
        ControlAnswer::Stream { source: Source(Some(write)) } if told.is_ok() => write,
        answer => {
            let why = match (&told, answer) {
                (Ok(()), ControlAnswer::Failed { error }) => error,
                (Ok(()), _) => "there are no bytes".to_owned(),
                (Err(error), _) => error.to_string(),
            };
            place.into_iter().for_each(|place| place.end(&Err(io::Error::other(&why[..]))));
            return told;
        }
    };
    let work = move || {
        let written = blocking(stream).and_then(|stream| write(&mut &stream));
        // Only then can another one begin.
        drop(write);
        if let Some(place) = place {
            place.end(&written);
        }
        written
    };
    Ok(tokio::task::spawn_blocking(work).await.map_err(io::Error::other).flatten()?)
}

/// The stream for writes that block, for a short time each.
fn blocking(stream: UnixStream) -> io::Result<std::os::unix::net::UnixStream> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    Ok(stream)
}

/// The process at the other end, in words.
fn process_of(stream: &UnixStream) -> String {
    let Ok(known) = stream.peer_cred() else { return "an unknown process".to_owned() };
    let process = known.pid().map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
    format!("{process} of user {}", known.uid())
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
    Ok(ask_stream(directory, request, limit).await?.0)
}

/// As [`ask`]. Returns the connection, too: bytes may follow the answer.
///
/// # Errors
/// As [`ask`].
pub(crate) async fn ask_stream(
    directory: &Path,
    request: &ControlRequest,
    limit: Duration,
) -> Result<(ControlAnswer, UnixStream), ControlError> {
    let no_node = |error| ControlError::NoNode { directory: directory.to_owned(), error };
    let mut stream = UnixStream::connect(directory.join(SOCKET)).await.map_err(no_node)?;
    let exchange = async {
        lines::write(&mut stream, request).await?;
        lines::read_exact_line(&mut stream, lines::LINE_BYTES_MAX).await
    };
    match timeout(limit, exchange).await.unwrap_or(Err(LineError::Silent(limit)))? {
        ControlAnswer::Failed { error } => Err(ControlError::Failed(error)),
        answer => Ok((answer, stream)),
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

/// Longest handover, with all of its waits.
pub(crate) const SWITCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Commands that are carried out at the same time.
const CONNECTIONS_MAX: usize = 16;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait of a write into a stream.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);
const REQUEST_BYTES_MAX: usize = 4096;
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileTypeExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

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
    async fn second_backup_is_refused_while_a_reader_takes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let server = ControlServer::bind(&directory.path().join(SOCKET)).expect("a socket");
        let (backups, is_over) = (Arc::<Backups>::default(), Arc::<AtomicBool>::default());
        let (of_server, of_source) = (Arc::clone(&backups), Arc::clone(&is_over));
        // Writes until it is told that its patience is over.
        let source = Source::new(move |out| {
            loop {
                match out.write(&[0; 4096]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock && of_source.load(Ordering::Acquire) => {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                    _ => {}
                }
            }
        });
        let serve = async move {
            let handle = move |_| {
                let source = source.clone();
                async { ControlAnswer::Stream { source } }
            };
            server.serve(of_server, handle).await;
        };
        let served = tokio::spawn(serve);
        let ask = || ask_stream(directory.path(), &ControlRequest::Backup, PATIENCE);
        let (_, _stuck) = ask().await.expect("a stream");
        let refused = ask().await.expect_err("one at a time").to_string();
        let by = format!("another backup is under way: process {} of user ", std::process::id());
        assert!(refused.starts_with(&by), "{refused}");
        is_over.store(true, Ordering::Release);
        let end = Instant::now() + PATIENCE;
        while backups.counts().all(|count| count != ("stalled", 1)) {
            assert!(Instant::now() < end, "it has not ended");
            sleep(Duration::from_millis(1)).await;
        }
        assert!(ask().await.is_ok(), "another one begins");
        served.abort();
    }

    #[tokio::test]
    async fn backup_that_the_node_cannot_give_has_failed() {
        let directory = tempfile::tempdir().expect("a directory");
        let server = ControlServer::bind(&directory.path().join(SOCKET)).expect("a socket");
        let (backups, has_left) = (Arc::<Backups>::default(), Arc::new(Semaphore::new(0)));
        let (of_server, of_handle) = (Arc::clone(&backups), Arc::clone(&has_left));
        let served = tokio::spawn(async move {
            let handle = move |_| {
                let has_left = Arc::clone(&of_handle);
                async move {
                    drop(has_left.acquire().await);
                    ControlAnswer::Failed { error: "no copy".to_owned() }
                }
            };
            server.serve(of_server, handle).await;
        });
        let wait_for_failed = async |count| {
            let end = Instant::now() + PATIENCE;
            while backups.counts().all(|counted| counted != ("failed", count)) {
                assert!(Instant::now() < end, "{:?}", backups.counts().collect::<Vec<_>>());
                sleep(Duration::from_millis(1)).await;
            }
        };
        // A reader that leaves before the answer.
        let mut stream = UnixStream::connect(directory.path().join(SOCKET)).await.expect("the socket is open");
        lines::write(&mut stream, &ControlRequest::Backup).await.expect("it reads");
        while backups.begin("another".to_owned()).is_ok() {
            tokio::task::yield_now().await;
        }
        drop(stream);
        has_left.add_permits(1);
        wait_for_failed(1).await;
        let error = ask(directory.path(), &ControlRequest::Backup, PATIENCE).await.expect_err("no copy");
        assert_eq!(error.to_string(), "no copy");
        wait_for_failed(2).await;
        served.abort();
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
        let served = tokio::spawn(async move { server.serve(Arc::default(), handle).await });
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
