//! A client of the admin interface, for `tenbin admin`.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tenbin_codec::Secret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Name of the local operator's token in a data directory.
pub const TOKEN_FILE: &str = "admin.token";

/// File for the local operator's token of a server at `port` without a data directory.
pub fn token_file(port: u16) -> Option<PathBuf> {
    let directory = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    directory.is_dir().then(|| directory.join(format!("tenbin-{port}.token")))
}

/// File for the local operator's token of a server at a unix socket without a data directory.
pub fn token_file_beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".token");
    path.into()
}

/// An address of an admin interface, and the token for it.
#[derive(Debug, Clone)]
pub struct Client {
    target: Target,
    token: Option<Secret<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// Host and port.
    Tcp(String),
    Unix(PathBuf),
}

impl Target {
    /// Whether the server is on this machine, by its address.
    fn is_local(&self) -> bool {
        let Self::Tcp(host) = self else { return true };
        let host = host.rsplit_once(':').map_or(&host[..], |(host, _)| host);
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
        host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(is_loopback)
    }
}

/// Why a request failed; its text is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The URL has another form than `http://HOST:PORT` or `unix:PATH`.
    Url(String),
    /// The server cannot be reached.
    Unreachable(String, io::Error),
    /// The server's answer is no HTTP.
    Broken(String),
    /// The server refuses: status and detail.
    Refused(StatusCode, String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => write!(f, "{url:?} is no address: valid are http://HOST:PORT and unix:PATH"),
            Self::Unreachable(target, error) => write!(f, "cannot reach the broker's admin HTTP at {target}: {error}"),
            Self::Broken(error) => write!(f, "the answer cannot be read: {error}"),
            Self::Refused(status, detail) => write!(f, "{}: {detail}", status.as_u16()),
        }
    }
}

impl std::error::Error for ClientError {}

impl Client {
    /// A client of the server at `url`.
    ///
    /// Without `token` it uses the local operator's token: a file in `data`, or the file of a broker without a data
    /// directory. It sends the local operator's token only to a unix socket, to a loopback address or to `localhost`.
    ///
    /// # Errors
    /// The URL is illegal.
    pub fn new(url: &str, token: Option<Secret<String>>, data: &Path) -> Result<Self, ClientError> {
        let wrong = || ClientError::Url(url.to_owned());
        let target = match (url.strip_prefix("unix:"), url.strip_prefix("http://")) {
            (Some(path), _) if !path.is_empty() => Target::Unix(path.into()),
            (_, Some(rest)) => Target::Tcp(rest.trim_end_matches('/').to_owned()),
            _ => return Err(wrong()),
        };
        let beside = match &target {
            Target::Unix(path) => Some(token_file_beside(path)),
            Target::Tcp(host) => {
                token_file(host.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).ok_or_else(wrong)?)
            }
        };
        let files = [Some(data.join(TOKEN_FILE)), beside];
        // No server on another machine may learn the token of this one.
        let files = if target.is_local() { files } else { [None, None] };
        let local = || files.into_iter().flatten().find_map(|path| std::fs::read_to_string(path).ok());
        let token = token.or_else(|| local().map(|token| Secret::new(token.trim().to_owned())));
        Ok(Self { target, token })
    }

    /// Sends a request with a body of this media type, and returns the whole answer as text.
    ///
    /// # Errors
    /// The server cannot be reached, or answers with an error.
    pub async fn request(&self, method: &str, path: &str, body: Option<(&str, String)>) -> Result<String, ClientError> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| ClientError::Broken(error.to_string()))?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        if status.is_success() {
            return Ok(text);
        }
        let detail = serde_json::from_str::<serde_json::Value>(&text).ok();
        let detail = detail.and_then(|problem| problem["detail"].as_str().map(str::to_owned));
        Err(ClientError::Refused(status, detail.unwrap_or(text)))
    }

    /// Gets a stream of server-sent events, and calls `each` with the data of every one until it returns false.
    ///
    /// # Errors
    /// As [`Client::request`], or the stream breaks.
    pub async fn events(&self, path: &str, mut each: impl FnMut(&str) -> bool) -> Result<(), ClientError> {
        let mut response = self.send("GET", path, None).await?;
        if !response.status().is_success() {
            return self.request("GET", path, None).await.map(|_| ());
        }
        let mut unread = Vec::<u8>::new();
        while let Some(frame) = response.frame().await {
            let frame = frame.map_err(|error| ClientError::Broken(error.to_string()))?;
            let Ok(bytes) = frame.into_data() else { continue };
            unread.extend_from_slice(&bytes);
            // An event as a whole: a frame may end within a character.
            while let Some(end) = unread.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = unread.drain(..end + 2).collect();
                let event = String::from_utf8_lossy(&event);
                let data = event.lines().filter_map(|line| line.strip_prefix("data: ")).collect::<String>();
                if !data.is_empty() && !each(&data) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, String)>,
    ) -> Result<Response<Incoming>, ClientError> {
        let shown = match &self.target {
            Target::Tcp(host) => format!("http://{host}"),
            Target::Unix(path) => format!("unix:{}", path.display()),
        };
        let unreachable = |error| ClientError::Unreachable(shown, error);
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, async {
            Ok::<Box<dyn Stream>, io::Error>(match &self.target {
                Target::Tcp(host) => Box::new(TcpStream::connect(host).await?),
                Target::Unix(path) => Box::new(UnixStream::connect(path).await?),
            })
        });
        let stream = connected.await.map_err(io::Error::from).flatten().map_err(unreachable)?;
        let broken = |error: hyper::Error| ClientError::Broken(error.to_string());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(connection);
        let host = match &self.target {
            Target::Tcp(host) => host,
            Target::Unix(_) => "localhost",
        };
        let mut request = Request::builder().method(method).uri(path).header(HOST, host);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.expose()));
        }
        if let Some((media_type, _)) = &body {
            request = request.header(CONTENT_TYPE, *media_type);
        }
        let body = Full::new(Bytes::from(body.map(|(_, body)| body).unwrap_or_default()));
        let request = request.body(body).map_err(|error| ClientError::Broken(error.to_string()))?;
        sender.send_request(request).await.map_err(broken)
    }
}

/// A stream of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_operators_token_is_for_this_machine_alone() {
        let data = std::env::temp_dir().join(format!("tenbin-client-{}", std::process::id()));
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join(TOKEN_FILE), "secret\n").unwrap();
        for (url, is_local) in [
            ("http://127.0.0.1:9883", true),
            ("http://127.1.2.3:9883/", true),
            ("http://[::1]:9883", true),
            ("http://[::ffff:127.0.0.1]:9883", true),
            ("http://LocalHost:9883", true),
            ("unix:/nowhere/admin", true),
            ("http://192.0.2.1:9883", false),
            ("http://[2001:db8::1]:9883", false),
            ("http://broker:9883", false),
            ("http://localhost.example.org:9883", false),
            ("http://127.0.0.1:80@broker:9883", false),
        ] {
            let token = Client::new(url, None, &data).unwrap().token;
            assert_eq!(token, is_local.then(|| Secret::new("secret".to_owned())), "{url}");
            let given = Client::new(url, Some(Secret::new("given".to_owned())), &data).unwrap().token;
            assert_eq!(given, Some(Secret::new("given".to_owned())), "{url}");
        }
        std::fs::remove_dir_all(&data).unwrap();
    }
}
