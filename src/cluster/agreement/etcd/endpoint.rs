//! One etcd server: POST of JSON over a kept connection.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// A text that is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct EndpointError(String);

impl EndpointError {
    pub(super) fn none() -> Self {
        Self("no etcd endpoint is configured".to_owned())
    }
}

/// An etcd server.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// HOST:PORT, looked up at each connect.
    authority: String,
    /// The idle connection.
    idle: Mutex<Option<Connection>>,
}

/// A connection that ends when it is dropped.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a call has no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// The server has not received the request, and never will.
    NotSent(String),
    /// The server may have received the request, or answered with an error.
    Failed(String),
}

impl CallError {
    pub(super) fn into_text(self) -> String {
        let (Self::NotSent(text) | Self::Failed(text)) = self;
        text
    }
}

impl Endpoint {
    pub(super) fn new(url: &str) -> Result<Self, EndpointError> {
        let wrong = |reason| Err(EndpointError(format!("{url:?} is no endpoint of etcd: {reason}")));
        if url.starts_with("https://") {
            return wrong("TLS to etcd is not supported");
        }
        let authority = url.strip_prefix("http://").unwrap_or_default().trim_end_matches('/');
        match authority.rsplit_once(':') {
            Some((host, port))
                if !host.is_empty() && port.parse::<u16>().is_ok() && !authority.contains(['/', '@']) =>
            {
                Ok(Self { authority: authority.to_owned(), idle: Mutex::new(None) })
            }
            _ => wrong("valid is http://HOST:PORT"),
        }
    }

    /// Posts `body`, and returns the answer, which is JSON of an etcd server.
    ///
    /// # Errors
    /// There is no answer at `until`, or an error.
    pub(super) async fn call(&self, path: &str, body: String, until: Instant) -> Result<Value, CallError> {
        let mut request = Request::post(path)
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| CallError::NotSent(error.to_string()))?;
        let mut kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        let failed = |error: &dyn fmt::Display| CallError::Failed(error.to_string());
        let exchange = async {
            let (mut connection, response) = loop {
                let mut connection = match kept.take().filter(|connection| !connection.sender.is_closed()) {
                    Some(connection) => connection,
                    None => self.connect(until).await.map_err(|error| CallError::NotSent(error.to_string()))?,
                };
                match connection.sender.try_send_request(request).await {
                    Ok(response) => break (connection, response),
                    Err(mut error) => match error.take_message() {
                        // The kept connection had ended.
                        Some(unsent) if Instant::now() < until => request = unsent,
                        Some(_) => return Err(CallError::NotSent(error.into_error().to_string())),
                        None => return Err(failed(&error.into_error())),
                    },
                }
            };
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| failed(&error))?.to_bytes();
            let answer = serde_json::from_slice::<Value>(&body).unwrap_or_default();
            if connection.sender.ready().await.is_ok() {
                *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
            }
            match answer {
                answer if status.is_success() && answer["header"].is_object() => Ok(answer),
                answer => Err(failed(&format_args!(
                    "status {}: {:.200}",
                    status.as_u16(),
                    answer["error"].as_str().unwrap_or("the answer is not from etcd")
                ))),
            }
        };
        timeout_at(until, exchange).await.unwrap_or_else(|_| Err(CallError::Failed("no answer in time".to_owned())))
    }

    /// Opens a connection: within [`CONNECT_TIMEOUT`], and before `until`.
    async fn connect(&self, until: Instant) -> io::Result<Connection> {
        let until = until.min(Instant::now() + CONNECT_TIMEOUT);
        let stream = timeout_at(until, TcpStream::connect(&self.authority)).await.map_err(io::Error::from).flatten()?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        Ok(Connection { sender, task: tokio::spawn(async move { drop(connection.await) }) })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
/// Longest accepted answer; a record has some hundred bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
