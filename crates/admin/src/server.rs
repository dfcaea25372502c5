//! The thread of the server: accepts connections and serves them, within bounds.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tenbin_pending::WriteDeadline;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::oneshot;

use crate::events::Events;
use crate::guard::Guard;
use crate::places::{Place, Places};
use crate::site::{BrokerSlot, Site};
use crate::tokens::Tokens;
use crate::wire::Duplex;
use crate::{BoxFuture, ControlPlane, Node, client, routes};

/// Settings of the server.
#[derive(Debug, Default)]
pub struct Settings {
    /// Accepted tokens.
    pub tokens: Tokens,
    /// Names of the server in `Host`, in addition to IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Files that are removed when the server ends.
    pub files: Vec<PathBuf>,
    /// TLS of connections over TCP.
    pub tls: Option<Arc<dyn ServerTls>>,
}

/// TLS of a server, from files of the program around it.
pub trait ServerTls: fmt::Debug + Send + Sync {
    /// Performs the handshake with a peer.
    fn accept(self: Arc<Self>, stream: TcpStream, peer: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Duplex>>>;

    /// Reads changed files again, until it is dropped.
    fn watch(&self) -> BoxFuture<'static, ()>;
}

/// An open socket of the server.
#[derive(Debug)]
pub struct Listener {
    socket: ListeningSocket,
    address: Address,
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(std::net::TcpListener),
    Unix(unix::UnixListener),
}

/// Address of an open socket.
#[derive(Debug, Clone)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A running server; it ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    address: Address,
    is_secure: bool,
    files: Vec<PathBuf>,
    /// Never sent on; dropping it stops the thread.
    _stop: oneshot::Sender<()>,
}

impl Listener {
    /// Opens a TCP socket at the first of `addresses` that can be opened.
    ///
    /// # Errors
    /// None of them can be opened.
    pub fn tcp(addresses: &[SocketAddr]) -> io::Result<Self> {
        let socket = std::net::TcpListener::bind(addresses)?;
        socket.set_nonblocking(true)?;
        let address = Address::Tcp(socket.local_addr()?);
        Ok(Self { socket: ListeningSocket::Tcp(socket), address })
    }

    /// Opens a unix socket that only the user of this process may use. A file that another process has left is
    /// replaced.
    ///
    /// # Errors
    /// The socket cannot be opened, or another process listens there.
    pub fn unix(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
            match unix::UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                _ => return Err(io::ErrorKind::AddrInUse.into()),
            }
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        // No client can connect before this call, so the permissions are in time.
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: ListeningSocket::Unix(socket.into()), address: Address::Unix(path.to_owned()) })
    }

    /// Whether only this machine reaches the socket.
    pub fn is_local(&self) -> bool {
        match &self.address {
            Address::Tcp(address) => address.ip().is_loopback(),
            Address::Unix(_) => true,
        }
    }

    /// URL by which programs of this machine reach the socket. `None` = it is at an address of the network alone.
    pub fn local_url(&self, is_secure: bool) -> Option<String> {
        let mut address = self.address.clone();
        if let Address::Tcp(address) = &mut address {
            match address.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
                IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
                ip if !ip.is_loopback() => return None,
                _ => {}
            }
        }
        Some(address.url(is_secure))
    }

    /// File for the local operator's token, without a data directory: beside a unix socket, or by the port in the
    /// user's runtime directory. `None` without such a directory.
    pub fn token_file(&self) -> Option<PathBuf> {
        match &self.address {
            Address::Tcp(address) => client::token_file(address.port()),
            Address::Unix(path) => Some(client::token_file_beside(path)),
        }
    }
}

impl Server {
    /// The address as a URL, or `unix:PATH`.
    pub fn url(&self) -> String {
        self.address.url(self.is_secure)
    }
}

impl Address {
    fn url(&self, is_secure: bool) -> String {
        match self {
            Self::Tcp(address) if is_secure => format!("https://{address}"),
            Self::Tcp(address) => format!("http://{address}"),
            Self::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
        for path in &self.files {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Serves `plane` at `listener`, on a new thread.
///
/// # Errors
/// The system refuses to start a thread.
pub fn start(listener: Listener, settings: Settings, plane: Arc<dyn ControlPlane>) -> io::Result<Server> {
    run(listener, settings, Site::of_broker(plane))
}

/// Serves a node of a cluster at `listener`, on a new thread. The slot is for the broker that it has while it leads.
///
/// # Errors
/// The system refuses to start a thread.
pub fn start_node(listener: Listener, settings: Settings, node: Arc<dyn Node>) -> io::Result<(Server, BrokerSlot)> {
    let (site, slot) = Site::of_node(node);
    Ok((run(listener, settings, site)?, slot))
}

fn run(listener: Listener, settings: Settings, site: Site) -> io::Result<Server> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
    let (stop, stopped) = oneshot::channel();
    let guard = Arc::new(Guard { tokens: settings.tokens, hosts: settings.hosts, is_local: listener.is_local() });
    let Listener { socket, address } = listener;
    let socket = {
        let _inside = runtime.enter();
        match socket {
            ListeningSocket::Tcp(socket) => Acceptor::Tcp(TcpListener::from_std(socket)?, settings.tls.clone()),
            ListeningSocket::Unix(socket) => Acceptor::Unix(UnixListener::from_std(socket)?),
        }
    };
    let is_secure = settings.tls.is_some();
    let watch = settings.tls.map(|tls| tls.watch());
    let run = move || {
        runtime.block_on(async {
            let ticking = site.clone();
            let ticks = async move {
                let mut ticks = tokio::time::interval(TICK);
                ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    if let Some((plane, _)) = ticking.broker() {
                        plane.tick();
                    }
                }
            };
            let events = Arc::<Events>::default();
            let router =
                routes::router(site.clone(), Arc::clone(&events), guard).layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
            let watch = async {
                if let Some(watch) = watch {
                    watch.await;
                }
                std::future::pending().await
            };
            tokio::select! {
                () = accept(socket, router) => {}
                () = watch => {}
                () = events.run(&site) => {}
                () = ticks => {}
                _ = stopped => {}
            }
        });
        // A request may still wait for the disk or for a name server.
        runtime.shutdown_background();
    };
    std::thread::Builder::new().name("tenbin-admin".to_owned()).spawn(run)?;
    Ok(Server { address, is_secure, files: settings.files, _stop: stop })
}

enum Acceptor {
    Tcp(TcpListener, Option<Arc<dyn ServerTls>>),
    Unix(UnixListener),
}

/// A connection that may have to perform a handshake.
type Opening = BoxFuture<'static, io::Result<Box<dyn Duplex>>>;

impl Acceptor {
    /// The next connection, and its address, which a unix socket has not.
    async fn accept(&self) -> io::Result<(Opening, Option<SocketAddr>)> {
        match self {
            Self::Tcp(socket, tls) => {
                let (stream, peer) = socket.accept().await?;
                // So that a peer that does not read is found soon.
                let _ = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES);
                let opening: Opening = match tls {
                    Some(tls) => Arc::clone(tls).accept(stream, peer),
                    None => Box::pin(async { Ok(Box::new(stream) as Box<dyn Duplex>) }),
                };
                Ok((opening, Some(peer)))
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                Ok((Box::pin(async { Ok(Box::new(stream) as Box<dyn Duplex>) }), None))
            }
        }
    }
}

/// Accepts connections until the thread ends.
async fn accept(socket: Acceptor, router: Router) {
    let places = Places::default();
    loop {
        match socket.accept().await {
            Ok((opening, peer)) => {
                let place = places.take(peer.map(|peer| peer.ip()));
                tokio::spawn(serve(opening, peer, router.clone(), Arc::new(place)));
                // In a burst the next one may take its place: it is served first.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tracing::warn!(%error, "admin: cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Serves one connection, until it has to make room for another one.
async fn serve(opening: Opening, peer: Option<SocketAddr>, router: Router, place: Arc<Place>) {
    let evicted = place.evicted();
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&place));
        service.call(request)
    });
    let peer = peer.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into());
    let served = async {
        let opened = tokio::time::timeout(HANDSHAKE_TIMEOUT, opening).await.map_err(io::Error::from).flatten();
        let stream = match opened {
            Ok(stream) => stream,
            Err(error) => {
                tracing::info!(%peer, %error, "admin: TLS handshake failed");
                return Ok(());
            }
        };
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEADER_BYTES_MAX)
            .half_close(true)
            .serve_connection(TokioIo::new(WriteDeadline::new(stream, WRITE_TIMEOUT)), service)
            .await
    };
    tokio::select! {
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(%peer, %error, "admin: connection ended");
            }
        }
        () = evicted => tracing::info!(%peer, "admin: evicted a connection without a token"),
    }
}

/// Largest body of a request.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Largest head of a request.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Header fields of a request.
const HEADERS_MAX: usize = 64;
/// Time for the head of a request; also the time that a connection may be idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for an answer, or an event, to go out.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that the system keeps for a peer that does not read.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Findings are on the page within ten seconds of their cause.
const TICK: Duration = Duration::from_secs(2);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);
