//! The threads of a server: they accept connections and serve them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;

use crate::places::Places;
use crate::upstream::Upstream;
use crate::{Settings, answer, connection};

/// A running server. Dropping it closes all connections and ends its threads.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<()>,
    /// Closed when no thread accepts connections, and all of them have ended.
    served: Mutex<mpsc::Receiver<()>>,
    /// Dropping it ends the threads.
    end: Option<watch::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    runtimes: Vec<Handle>,
    serving: Serving,
}

/// Time for requests in progress when the server finishes.
const FINISH_TIME: Duration = Duration::from_secs(3);
/// Pause after a failed accept: out of file descriptors or the like.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that the system keeps for a peer that does not read, so that it is found soon.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// Serves connections.
#[derive(Clone)]
struct Serving {
    settings: Arc<Settings>,
    places: Arc<Places>,
    upstream: Upstream,
    stopped: watch::Receiver<()>,
}

impl Server {
    /// Serves connections of `socket` on new threads.
    ///
    /// # Errors
    /// The system refuses to start a thread, or to watch the socket.
    pub fn start(socket: std::net::TcpListener, settings: Settings, upstream: Upstream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let (stop, stopped) = watch::channel(());
        let (end, ended) = watch::channel(());
        let (serves, served) = mpsc::channel(1);
        let places = Arc::new(Places::new(settings.clone()));
        let count = settings.threads.max(1);
        let served = Mutex::new(served);
        let serving = Serving { settings: Arc::new(settings), places, upstream, stopped };
        let (threads, runtimes) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut server = Self { address, stop, served, end: Some(end), threads, runtimes, serving };
        for number in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let socket = {
                let _inside = runtime.enter();
                TcpListener::from_std(socket.try_clone()?)?
            };
            server.runtimes.push(runtime.handle().clone());
            let thread = server.serving.clone();
            let (serves, mut ended) = (serves.clone(), ended.clone());
            let main = move || {
                runtime.block_on(async {
                    let serving = async move {
                        thread.run(socket).await;
                        drop(serves);
                        std::future::pending::<()>().await;
                    };
                    // Clients and the broker's ends of their streams go on until then.
                    tokio::select! {
                        () = serving => {}
                        _ = ended.changed() => {}
                    }
                });
            };
            server.threads.push(std::thread::Builder::new().name(format!("http-{number}")).spawn(main)?);
        }
        Ok(server)
    }

    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the stream of a client at `peer` that another program has accepted, and returns at once.
    pub fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: SocketAddr) {
        let runtime = &self.runtimes[usize::from(peer.port()) % self.runtimes.len()];
        let Serving { settings, places, upstream, stopped } = self.serving.clone();
        match places.take(peer.ip()) {
            Ok(place) => {
                let first = std::future::ready(Ok(stream));
                runtime.spawn(connection::serve(first, peer, place, settings, upstream, stopped));
            }
            Err(full) => tracing::debug!(%peer, ?full, "no place for another HTTP connection"),
        }
    }

    /// Stops accepting connections, and waits at most 3 s for the answers to requests in progress. The threads go on.
    pub async fn finish(&self) {
        self.stop.send_replace(());
        let _ = tokio::time::timeout(FINISH_TIME, async { self.served.lock().await.recv().await }).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end = None;
        for thread in self.threads.drain(..) {
            // A panic was printed by the thread.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Serving {
    /// Accepts connections until the server stops, and waits for their end.
    async fn run(mut self, socket: TcpListener) {
        let mut connections = JoinSet::new();
        let mut stopped = self.stopped.clone();
        loop {
            tokio::select! {
                accepted = socket.accept() => match accepted {
                    Ok((stream, peer)) => self.serve(stream, peer, &mut connections),
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                _ = stopped.changed() => break,
            }
        }
        drop(socket);
        while connections.join_next().await.is_some() {}
    }

    fn serve(&mut self, stream: TcpStream, peer: SocketAddr, connections: &mut JoinSet<()>) {
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES);
        match self.places.take(peer.ip()) {
            Ok(place) => {
                let (settings, upstream) = (Arc::clone(&self.settings), self.upstream.clone());
                let first = async { stream.readable().await.map(|()| stream) };
                connections.spawn(connection::serve(first, peer, place, settings, upstream, self.stopped.clone()));
            }
            Err(full) => {
                tracing::debug!(%peer, ?full, "no place for another HTTP connection");
                // A new socket has room for it.
                let _ = stream.try_write(answer::without_place(full).as_bytes());
            }
        }
    }
}
