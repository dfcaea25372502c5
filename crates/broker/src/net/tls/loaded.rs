//! Files of a listener as they were last read, and the watch over them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};

use super::Tls;
use super::files::{self, Marks};
use super::room::Room;
use super::settings::{self, Settings};
use crate::config;
use crate::metrics::Metrics;
use crate::net::tls_error::TlsError;
use crate::values::Certificate;

/// The files that are in use. Handshakes under way keep those with which they began.
#[derive(Debug)]
pub(super) struct LoadedFiles {
    now: ArcSwap<Loaded>,
    /// Held to replace them: a reload and the watch may come together.
    replacing: Mutex<()>,
}

#[derive(Debug)]
struct Loaded {
    settings: Settings,
    source: config::Tls,
    transport: config::Transport,
    /// Taken before the files were read.
    marks: Marks,
    /// Raised when other client certificates count.
    generation: u64,
}

impl Loaded {
    fn read(listener: &str, source: &config::Tls, transport: config::Transport) -> Result<Self, TlsError> {
        let marks = files::marks(source);
        let settings = settings::load(listener, source, transport)?;
        Ok(Self { settings, source: source.clone(), transport, marks, generation: 0 })
    }
}

impl LoadedFiles {
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.now.load().settings.server)
    }

    /// Puts files that nobody uses yet in the place of these.
    fn take_over(&self, new: Arc<Self>) {
        if let Some(new) = Arc::into_inner(new).and_then(|new| Arc::into_inner(new.now.into_inner())) {
            self.replace(new, None);
        }
    }

    /// Puts `new` in the place of `before`, or of any if there is none. Returns whether certificates of clients may count
    /// no more.
    fn replace(&self, mut new: Loaded, before: Option<&Arc<Loaded>>) -> bool {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now.load_full();
        if before.is_some_and(|before| !Arc::ptr_eq(before, &now)) {
            return false; // a reload was faster
        }
        let is_changed = new.settings.clients.digest != now.settings.clients.digest;
        new.generation = now.generation + u64::from(is_changed);
        let asks_clients = new.settings.clients.verifier.offer_client_auth();
        self.now.store(Arc::new(new));
        is_changed || asks_clients
    }
}

impl Tls {
    /// Reads the files of `listener`.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(in crate::net) fn load(
        listener: &Arc<str>,
        tls: &config::Tls,
        transport: config::Transport,
    ) -> Result<Self, TlsError> {
        let now = ArcSwap::from_pointee(Loaded::read(listener, tls, transport)?);
        Ok(Self {
            listener: Arc::clone(listener),
            loaded: Arc::new(LoadedFiles { now, replacing: Mutex::new(()) }),
            room: Room::new(tls.handshakes_maximum() as usize),
        })
    }

    /// Takes over the files of `new`.
    pub(in crate::net) fn replace(&self, new: Self) {
        self.loaded.take_over(new.loaded);
    }

    /// Takes the place of `old`: its connections, and handshakes under way, are judged by these files from now on.
    pub(in crate::net) fn follow(&mut self, old: &Self) {
        let new = std::mem::replace(&mut self.loaded, Arc::clone(&old.loaded));
        self.loaded.take_over(new);
    }

    /// Looks at the files now and then, and reads all of them again when one has changed. If one is wrong, the old ones
    /// stay.
    ///
    /// Returns when certificates of clients may count no more.
    pub(in crate::net) async fn watch(&self, metrics: &Metrics) {
        let mut failed = None;
        loop {
            let interval = self.loaded.now.load().source.watch_interval();
            tokio::time::sleep(interval.unwrap_or(UNWATCHED)).await;
            let before = self.loaded.now.load_full();
            let marks = files::marks(&before.source);
            if interval.is_none() || marks == before.marks || failed.as_ref() == Some(&marks) {
                continue;
            }
            let marks = settled(&before.source).await;
            let listener = &*self.listener;
            match Loaded::read(listener, &before.source, before.transport) {
                Ok(new) => {
                    failed = None;
                    metrics.tls_reloads.add(1);
                    tracing::info!(listener, "TLS files have changed and were read again");
                    if self.loaded.replace(new, Some(&before)) {
                        return;
                    }
                }
                Err(error) => {
                    failed = Some(marks);
                    metrics.tls_reloads_failed.add(1);
                    tracing::error!("changed TLS files cannot be used, the old ones stay: {error}");
                }
            }
        }
    }

    /// Number that changes when other client certificates count.
    pub(in crate::net) fn generation(&self) -> u64 {
        self.loaded.now.load().generation
    }

    /// Whether the certificate of a client that connected in `generation` still counts.
    pub(in crate::net) fn trusts(&self, certificate: &Certificate, generation: u64) -> bool {
        let now = self.loaded.now.load();
        if now.generation == generation {
            return !certificate.has_expired();
        }
        let verifier = &now.settings.clients.verifier;
        let mut chain = certificate.chain.iter().map(|der| CertificateDer::from(&**der));
        let Some(own) = chain.next().filter(|_| verifier.offer_client_auth()) else { return false };
        verifier.verify_client_cert(&own, &chain.collect::<Vec<_>>(), UnixTime::now()).is_ok()
    }
}

/// Looks at the files until none has changed for a while: one may just be written, and half of the authorities would
/// disconnect the clients of the others.
async fn settled(source: &config::Tls) -> Marks {
    let mut marks = files::marks(source);
    loop {
        tokio::time::sleep(WRITTEN_AFTER).await;
        let before = std::mem::replace(&mut marks, files::marks(source));
        if before == marks {
            return marks;
        }
    }
}

/// Time without changes after which a file counts as written.
const WRITTEN_AFTER: Duration = Duration::from_secs(1);
/// Time until the next look whether files are to be watched again.
const UNWATCHED: Duration = Duration::from_secs(60);
