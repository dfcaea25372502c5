//! One server of an engine: JSON over a kept connection of HTTP/1.1.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::super::tls::{self, Identity, KeyedFile};

/// A text that is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct EndpointError(String);

impl EndpointError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// A server.
pub(super) struct Endpoint {
    tls: Option<(Mutex<EngineTls>, ServerName<'static>)>,
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

impl Connection {
    async fn begin(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<Self> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        Ok(Self { sender, task: tokio::spawn(async move { drop(connection.await) }) })
    }
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

/// Trust in the servers of an engine, and the certificate that they get.
pub(super) type EngineTls = Arc<ClientConfig>;

/// Settings of TLS to an engine's servers.
///
/// # Errors
/// The key does not fit the certificate.
pub(super) fn engine_tls(
    roots: Arc<RootCertStore>,
    identity: Option<(Identity, KeyedFile<'_>)>,
) -> Result<EngineTls, String> {
    let builder = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    Ok(Arc::new(match identity {
        Some((identity, key)) => tls::with_identity(builder, identity, key)?,
        None => builder.with_no_client_auth(),
    }))
}

impl Endpoint {
    /// The server at `url`: http://HOST:PORT, or https:// if there is `tls`.
    ///
    /// # Errors
    /// The URL has another form.
    pub(super) fn new(url: &str, tls: Option<&EngineTls>) -> Result<Self, EndpointError> {
        let wrong = |reason| Err(EndpointError(format!("{url:?} is no endpoint: {reason}")));
        let (is_secure, authority) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(authority), _) => (true, authority),
            (_, authority) => (false, authority.unwrap_or_default()),
        };
        let authority = authority.trim_end_matches('/');
        let host = match authority.rsplit_once(':') {
            Some((host, port))
                if !host.is_empty() && port.parse::<u16>().is_ok() && !authority.contains(['/', '@']) =>
            {
                host.trim_start_matches('[').trim_end_matches(']').to_owned()
            }
            _ => return wrong("valid is http://HOST:PORT"),
        };
        let tls = match (is_secure, tls, ServerName::try_from(host)) {
            (false, ..) => None,
            (true, Some(tls), Ok(name)) => Some((Mutex::new(Arc::clone(tls)), name)),
            (true, None, _) => return wrong("TLS needs the file with its authorities"),
            (true, _, Err(_)) => return wrong("no certificate can have the name of its host"),
        };
        Ok(Self { tls, authority: authority.to_owned(), idle: Mutex::new(None) })
    }

    /// Replaces the settings of TLS, for connections from here on.
    pub(super) fn trust(&self, new: EngineTls) {
        if let Some((tls, _)) = &self.tls {
            *tls.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
    }

    /// Sends a request, and returns status and JSON of the answer; null if it is none.
    ///
    /// # Errors
    /// There is no answer at `until`.
    pub(super) async fn call(
        &self,
        mut request: Request<Full<Bytes>>,
        until: Instant,
    ) -> Result<(StatusCode, Value), CallError> {
        let host = HeaderValue::from_str(&self.authority).map_err(|error| CallError::NotSent(error.to_string()))?;
        request.headers_mut().insert(HOST, host);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
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
            Ok((status, answer))
        };
        timeout_at(until, exchange).await.unwrap_or_else(|_| Err(CallError::Failed("no answer in time".to_owned())))
    }

    /// Opens a connection: within [`CONNECT_TIMEOUT`], and before `until`.
    async fn connect(&self, until: Instant) -> io::Result<Connection> {
        let until = until.min(Instant::now() + CONNECT_TIMEOUT);
        let stream = timeout_at(until, TcpStream::connect(&self.authority)).await.map_err(io::Error::from).flatten()?;
        stream.set_nodelay(true)?;
        // The deadline of the call bounds the handshake.
        match &self.tls {
            Some((tls, name)) => {
                let tls = TlsConnector::from(Arc::clone(&tls.lock().unwrap_or_else(PoisonError::into_inner)));
                Connection::begin(tls.connect(name.clone(), stream).await?).await
            }
            None => Connection::begin(stream).await,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
/// Longest accepted answer; a record has some hundred bytes, and a ConfigMap some thousand.
const ANSWER_BYTES_MAX: usize = 64 << 10;
