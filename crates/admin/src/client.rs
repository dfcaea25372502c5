//! A client of the admin interface, for `tenbin admin`.

#[cfg_attr(not(feature = "tls"), path = "client/no_tls.rs")]
mod tls;

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
use tenbin_kit::tls::ClientFiles;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use tls::Tls;

/// Name of the local operator's token in a data directory.
pub const TOKEN_FILE: &str = "admin.token";

/// Name of the file in a data directory that tells the address of admin HTTP: its URL in the first line. With TLS, the second
/// line is the path of the server's certificate.
pub const URL_FILE: &str = "admin.url";

/// URL of a server, if neither the caller nor a data directory tells it.
pub const DEFAULT_URL: &str = "http://127.0.0.1:9883";

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

#[derive(Clone)]
enum Target {
    /// Host and port.
    Tcp(String, Option<Tls>),
    Unix(PathBuf),
}

impl Target {
    /// Host of an address over TCP, without brackets, and the port.
    fn host(&self) -> Option<(&str, &str)> {
        let Self::Tcp(authority, _) = self else { return None };
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
        Some((host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), port))
    }

    /// Whether the server is on this machine, by its address.
    fn is_local(&self) -> bool {
        let Some((host, _)) = self.host() else { return true };
        let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(is_loopback)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority, None) => write!(f, "http://{authority}"),
            Self::Tcp(authority, Some(_)) => write!(f, "https://{authority}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a request failed; its text is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The URL has another form than `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`.
    Url(String),
    /// TLS cannot be used: the URL, and the reason with the name of the file.
    Tls(String, String),
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
            Self::Url(url) => {
                write!(f, "{url:?} is no address: valid are http://HOST:PORT, https://HOST:PORT and unix:PATH")
            }
            Self::Tls(url, reason) => write!(f, "{url}: {reason}"),
            Self::Unreachable(target, error) => write!(f, "cannot reach the broker's admin HTTP at {target}: {error}"),
            Self::Broken(error) => write!(f, "the answer cannot be read: {error}"),
            Self::Refused(status, detail) => write!(f, "{}: {detail}", status.as_u16()),
        }
    }
}

impl std::error::Error for ClientError {}

impl Client {
    /// A client of the server at `url`; without it, of the server that a file in `data` tells, else at [`DEFAULT_URL`].
    ///
    /// Without `token` it uses the local operator's token: a file in `data`, or the file of a broker without a data
    /// directory. It sends the local operator's token only to a unix socket, to a loopback address or to `localhost`.
    ///
    /// # Errors
    /// The URL is illegal, or a file of `tls` cannot be used.
    pub fn new(
        url: Option<&str>,
        token: Option<Secret<String>>,
        data: &Path,
        tls: &ClientFiles,
    ) -> Result<Self, ClientError> {
        let told = if url.is_none() { std::fs::read_to_string(data.join(URL_FILE)).ok() } else { None };
        let mut lines = told.iter().flat_map(|told| told.lines());
        let url = url.or_else(|| lines.next()).unwrap_or(DEFAULT_URL);
        let target = target(url, tls, lines.next().map(Path::new))?;
        let beside = match &target {
            Target::Unix(path) => Some(token_file_beside(path)),
            Target::Tcp(..) => target.host().and_then(|(_, port)| token_file(port.parse().ok()?)),
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
        let unreachable = |error| ClientError::Unreachable(self.target.to_string(), error);
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, async {
            Ok::<Box<dyn Stream>, io::Error>(match &self.target {
                Target::Tcp(host, None) => Box::new(TcpStream::connect(host).await?),
                Target::Tcp(host, Some(tls)) => Box::new(tls.connect(TcpStream::connect(host).await?).await?),
                Target::Unix(path) => Box::new(UnixStream::connect(path).await?),
            })
        });
        let stream = connected.await.map_err(io::Error::from).flatten().map_err(unreachable)?;
        let is_plain = matches!(self.target, Target::Tcp(_, None));
        let broken = |error: hyper::Error| {
            let hint = if is_plain { ". A server with TLS needs a URL with https://" } else { "" };
            ClientError::Broken(format!("{error}{hint}"))
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(connection);
        let host = match &self.target {
            Target::Tcp(host, _) => host,
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

/// The address of a URL. `known`: a file with the certificate of the server.
fn target(url: &str, files: &ClientFiles, known: Option<&Path>) -> Result<Target, ClientError> {
    let wrong = || ClientError::Url(url.to_owned());
    if let Some(path) = url.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(Target::Unix(path.into()));
    }
    let secure = url.strip_prefix("https://");
    let authority = secure.or_else(|| url.strip_prefix("http://")).ok_or_else(wrong)?;
    let plain = Target::Tcp(authority.trim_end_matches('/').to_owned(), None);
    let (host, port) = plain.host().ok_or_else(wrong)?;
    port.parse::<u16>().map_err(|_| wrong())?;
    if secure.is_none() {
        return Ok(plain);
    }
    let tls = Tls::new(host, files, known).map_err(|reason| ClientError::Tls(url.to_owned(), reason))?;
    let Target::Tcp(authority, _) = plain else { return Err(wrong()) };
    Ok(Target::Tcp(authority, Some(tls)))
}

/// A stream of any kind.
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
            let client = |token| Client::new(Some(url), token, &data, &ClientFiles::default()).unwrap();
            let token = client(None).token;
            assert_eq!(token, is_local.then(|| Secret::new("secret".to_owned())), "{url}");
            let given = client(Some(Secret::new("given".to_owned()))).token;
            assert_eq!(given, Some(Secret::new("given".to_owned())), "{url}");
        }
        std::fs::remove_dir_all(&data).unwrap();
    }

    #[test]
    fn data_directory_tells_the_address() {
        let data = std::env::temp_dir().join(format!("tenbin-client-url-{}", std::process::id()));
        std::fs::create_dir_all(&data).unwrap();
        let target =
            |url| Client::new(url, None, &data, &ClientFiles::default()).map(|client| client.target.to_string());
        assert_eq!(target(None).unwrap(), DEFAULT_URL);
        std::fs::write(data.join(URL_FILE), "unix:/run/admin\n").unwrap();
        assert_eq!(target(None).unwrap(), "unix:/run/admin");
        assert_eq!(target(Some("http://[::1]:1/")).unwrap(), "http://[::1]:1");
        for url in ["http://host", "https://host:port", "ftp://host:1", "unix:", "host:1"] {
            assert!(matches!(target(Some(url)), Err(ClientError::Url(_))), "{url}");
        }
        std::fs::write(data.join(URL_FILE), "https://127.0.0.1:9883\n/nowhere/certificate.pem\n").unwrap();
        let error = target(None).unwrap_err().to_string();
        assert!(
            error.contains("https://127.0.0.1:9883: ") && error.contains("feature `tls`")
                || error.contains("/nowhere/certificate.pem")
        );
        std::fs::remove_dir_all(&data).unwrap();
    }
}
