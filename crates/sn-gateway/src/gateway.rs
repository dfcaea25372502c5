use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::{Config, ConfigError};
use crate::counters::{Counters, Stats};
use crate::discovery::{self, Discovery};
use crate::dtls::{self, Dtls};
use crate::limits::Limits;
use crate::owners::Owners;
use crate::relay;
use crate::shared::{Health, Shared};
use crate::state::{StateCopy, StateError, States};
use crate::thread::Thread;
use crate::udp::{self, Socket};
use crate::upstream::Upstream;

/// A running gateway.
pub struct Gateway {
    address: SocketAddr,
    shared: Arc<Shared>,
    counters: Vec<Arc<Counters>>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    /// Runtime of the first thread.
    first: Option<Handle>,
}

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is illegal.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The directory for states cannot be used.
    #[error("{0}")]
    State(#[from] StateError),
    /// The UDP address cannot be used.
    #[error("cannot listen on UDP {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Reason of the system.
        error: std::io::Error,
    },
    /// The multicast group cannot be joined.
    #[error("cannot join multicast group {group}: {error}")]
    Multicast {
        /// Address of the group.
        group: SocketAddr,
        /// Reason of the system.
        error: std::io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

impl Gateway {
    /// Opens sockets and state, and starts the threads.
    ///
    /// # Errors
    /// The configuration is illegal, or a socket, directory or thread cannot be had.
    pub fn start(config: Config, upstream: Upstream) -> Result<Self, StartError> {
        Self::start_copied(config, upstream, None)
    }

    /// As [`start`](Self::start); `copy` learns of each write to the file of states.
    ///
    /// # Errors
    /// As of [`start`](Self::start).
    pub fn start_copied(
        config: Config,
        upstream: Upstream,
        copy: Option<Arc<dyn StateCopy>>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let (listener, now) = (config.listener.clone(), Instant::now());
        let gateway = tenbin_sn::Gateway::new(config.settings()?, config.predefined()?)
            .with_name_bytes_maximum(listener.name_bytes_maximum)
            .with_first_topic_id(any_topic_id());
        let directory = (!config.state.as_os_str().is_empty()).then_some(config.state.as_path());
        let expiry = Duration::from_secs(listener.session_expiry_seconds.into());
        let states = States::open(directory, copy, listener.clients_maximum, expiry, &gateway, now)?;
        let threads = listener.threads;
        let shared = Arc::new(Shared {
            gateway: Arc::new(gateway),
            upstream,
            login: if config.has_own_users() { config.login()? } else { None },
            limits: Limits::new(&listener, now),
            states,
            keys_version: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
            owners: Owners::new(threads),
            inboxes: (0..threads).map(|_| Arc::default()).collect(),
            relays: Arc::default(),
            health: Health::default(),
            config,
        });
        let in_multicast =
            |error| StartError::Multicast { group: listener.multicast.unwrap_or(listener.address), error };
        let mut discovery = Discovery::open(&listener).map_err(in_multicast)?;
        let (stop, stopped) = watch::channel(false);
        let (counters, first) = (Vec::new(), None);
        let mut started = Self { address: listener.address, shared, counters, stop, threads: Vec::new(), first };
        for number in 0..threads {
            let counters = Arc::new(Counters::default());
            let failed = |error| StartError::Listen { address: listener.address, error };
            let socket = udp::open(started.address, threads > 1, listener.receive_buffer_bytes).map_err(failed)?;
            // All sockets share the port of the first one.
            started.address = socket.local_addr().map_err(failed)?;
            discovery::prepare(&socket, &listener).map_err(in_multicast)?;
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
            let socket = {
                let _context = runtime.enter();
                let dtls = Dtls::of(&listener, &counters)?;
                Socket::new(socket, dtls, Arc::clone(&counters), Arc::clone(&started.shared.relays)).map_err(failed)?
            };
            started.first.get_or_insert_with(|| runtime.handle().clone());
            let (discovery, shared_socket) = (discovery.take(), socket.shared());
            let thread = Thread::new(Arc::clone(&started.shared), number, Arc::clone(&counters), socket);
            let stopped = stopped.clone();
            let main = move || {
                if let Some(discovery) = discovery {
                    runtime.spawn(discovery.run(shared_socket));
                }
                runtime.block_on(tokio::task::unconstrained(thread.run(stopped)));
            };
            let handle = std::thread::Builder::new().name(format!("sn-{number}")).spawn(main);
            started.threads.push(handle.map_err(StartError::Thread)?);
            started.counters.push(counters);
        }
        Ok(started)
    }

    /// UDP address of the gateway.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        Stats::of(self.counters.iter().map(|counters| &**counters))
    }

    /// Reads the keys and certificates of DTLS again, for later handshakes. Bad files leave the last ones, with a line in
    /// the log.
    pub fn reload_keys(&self) {
        self.shared.keys_version.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Serves a stream of a [`RelaySocket`](crate::RelaySocket): its clients are those of this gateway. Returns at once. The
    /// stream closes with the gateway.
    pub fn serve_relay(&self, stream: impl AsyncRead + AsyncWrite + Send + 'static) {
        let (Some(first), Some(counters)) = (&self.first, self.counters.first()) else { return };
        let (shared, counters) = (Arc::clone(&self.shared), Arc::clone(counters));
        first.spawn(async move { relay::serve(&shared.relays, &shared.inboxes, &counters, stream).await });
    }

    /// Sends DISCONNECT to all clients and stops. Sessions without Clean Session stay.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A panic was printed by the thread.
            let _ = thread.join();
        }
        self.shared.states.finish();
    }
}

impl Config {
    /// Reads the files that the configuration names, as a start would.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn check_files(&self) -> Result<(), ConfigError> {
        for config in self.for_each_listener()? {
            config.login()?;
            dtls::server_of(&config.listener)?;
            Upstream::of(&config)?;
        }
        Ok(())
    }
}

/// A topic id that differs from start to start. Some clients take ids for signed numbers.
fn any_topic_id() -> u16 {
    let number = RandomState::new().build_hasher().finish();
    (number % u64::from(i16::MAX.unsigned_abs() / 2)) as u16 + 1
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}
