//! Files of a listener as they were last read, and the watch over them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::ClientHello;

use super::Tls;
use super::certificate::Validity;
use super::files::{self, Marks};
use super::settings::{self, Settings};
use super::turns::Turns;
use crate::config;
use crate::lifecycle::{BrokerState, enforcement};
use crate::metrics::{Counter, Metrics};
use crate::net::tls_error::TlsError;
use crate::values::Certificate;

/// The files that are in use. Handshakes under way keep those with which they began.
#[derive(Debug)]
pub(super) struct LoadedFiles {
    now: ArcSwap<Loaded>,
    /// Held to replace them: a reload and the watch may come together.
    replacing: Mutex<()>,
    /// Why newer files could not be used at the last look.
    failure: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Loaded {
    settings: Settings,
    listener: Arc<str>,
    source: config::Tls,
    transport: config::Transport,
    /// Number of the reading: a later one has newer files.
    reading: u64,
    /// Taken before the files were read.
    marks: Marks,
    /// Raised when other client certificates count.
    generation: u64,
}

/// Origin of files that replace others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadBy {
    /// A reload, perhaps with other settings.
    Reload,
    Watch,
}

impl Loaded {
    fn read(listener: &Arc<str>, source: &config::Tls, transport: config::Transport) -> Result<Self, TlsError> {
        static READINGS: AtomicU64 = AtomicU64::new(0);
        let reading = READINGS.fetch_add(1, Ordering::Relaxed);
        let marks = files::marks(source);
        let settings = settings::load(listener, source, transport)?;
        let (listener, source) = (Arc::clone(listener), source.clone());
        let loaded = Self { settings, listener, source, transport, reading, marks, generation: 0 };
        if let Some(date) = loaded.ended_list() {
            warn_of_ended_list(&loaded.listener, &loaded.source, &date);
        }
        loaded.invalid_certificates().iter().for_each(|fault| warn_of_certificate(&loaded.listener, fault));
        Ok(loaded)
    }

    /// Certificates of the broker that clients refuse, with the reason.
    fn invalid_certificates(&self) -> Vec<String> {
        let now = UnixTime::now().as_secs().cast_signed();
        let fault = |(name, validity): &(Box<str>, Validity)| {
            validity.fault_at(now).map(|fault| format!("the certificate {name:?} {fault}"))
        };
        self.settings.validities.iter().filter_map(fault).collect()
    }

    /// Date on which a revocation list has ended.
    fn ended_list(&self) -> Option<String> {
        let end = self.settings.clients.lists_end.as_ref()?;
        (end.at < UnixTime::now().as_secs().cast_signed()).then(|| end.date.clone())
    }

    /// Whether `other` was read by the same settings.
    fn is_alike(&self, other: &Self) -> bool {
        self.source == other.source && self.transport == other.transport && self.listener == other.listener
    }
}

impl LoadedFiles {
    /// The configuration for a client by its ClientHello.
    pub(super) fn server(&self, hello: &ClientHello<'_>) -> Arc<ServerConfig> {
        self.now.load().settings.servers.for_client(hello)
    }

    /// Replaces these files by files that are not in use yet.
    fn take_over(&self, new: Arc<Self>) {
        if let Some(new) = Arc::into_inner(new).and_then(|new| Arc::into_inner(new.now.into_inner())) {
            self.replace(new, ReadBy::Reload);
        }
    }

    /// Puts `new` in the place of the present files, unless these are newer. Returns whether certificates of clients may
    /// count no more.
    fn replace(&self, mut new: Loaded, by: ReadBy) -> bool {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now.load();
        // Reload and watch read at the same time: newer settings count, and with the same settings newer files.
        let is_late = if new.is_alike(&now) { new.reading < now.reading } else { by == ReadBy::Watch };
        if is_late {
            return false;
        }
        let is_changed = new.settings.clients.digest != now.settings.clients.digest;
        new.generation = now.generation + u64::from(is_changed);
        self.now.store(Arc::new(new));
        self.looked(None);
        is_changed
    }

    /// Notes the result of a look at newer files.
    fn looked(&self, failure: Option<String>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
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
        if let Some(key) = tls.idle_key() {
            tracing::warn!(%listener, "tls.{key} has no effect: handshakes take turns by network address");
        }
        Ok(Self {
            loaded: Arc::new(LoadedFiles { now, replacing: Mutex::default(), failure: Mutex::default() }),
            turns: Turns::default(),
        })
    }

    /// Takes over the files of `new`.
    pub(in crate::net) fn replace(&self, new: Self) {
        self.loaded.take_over(new.loaded);
    }

    /// Takes the place of `old`: its connections, and handshakes under way, are judged by these files from now on. The
    /// watch over the files of `old` goes on with these.
    pub(in crate::net) fn follow(&mut self, old: &Self) {
        let new = std::mem::replace(&mut self.loaded, Arc::clone(&old.loaded));
        self.loaded.take_over(new);
    }

    /// Looks at the files now and then, and reads all of them again when one has changed. If one is wrong, the old ones
    /// stay. Connections end whose client certificate does not count any more.
    ///
    /// Without `shared`, which admin HTTP has not, no connection ends. The watch ends when neither the listener nor a
    /// connection uses the files. `count` adds one to a counter.
    pub(in crate::net) fn watch<C: Fn(fn(&Metrics) -> &Counter) + Send>(
        &self,
        shared: Option<Arc<BrokerState>>,
        count: C,
    ) -> impl Future<Output = ()> + Send + use<C> {
        let files = Arc::downgrade(&self.loaded);
        async move {
            let mut failed = None;
            let mut has_ended = files.upgrade().is_some_and(|files| files.now.load().ended_list().is_some());
            let mut invalid = files.upgrade().map(|files| files.now.load().invalid_certificates()).unwrap_or_default();
            while let Some(interval) = files.upgrade().map(|files| files.now.load().source.watch_interval()) {
                tokio::time::sleep(interval.unwrap_or(UNWATCHED)).await;
                let Some(files) = files.upgrade().filter(|_| interval.is_some()) else { continue };
                let before = files.now.load_full();
                let ended = before.ended_list();
                if let Some(date) = ended.as_ref().filter(|_| !has_ended) {
                    warn_of_ended_list(&before.listener, &before.source, date);
                }
                has_ended = ended.is_some();
                let before_now = std::mem::replace(&mut invalid, before.invalid_certificates());
                let new = invalid.iter().filter(|fault| !before_now.contains(fault));
                new.for_each(|fault| warn_of_certificate(&before.listener, fault));
                let marks = files::marks(&before.source);
                if marks == before.marks || failed.as_ref() == Some(&marks) {
                    continue;
                }
                let marks = settled(&before.source).await;
                let listener = &*before.listener;
                match Loaded::read(&before.listener, &before.source, before.transport) {
                    Ok(new) => {
                        failed = None;
                        invalid = new.invalid_certificates();
                        count(|of| &of.tls_reloads);
                        tracing::info!(listener, "TLS files have changed and were read again");
                        let is_changed = files.replace(new, ReadBy::Watch);
                        if let Some(shared) = shared.as_ref().filter(|_| is_changed) {
                            enforcement::changed(shared);
                        }
                    }
                    Err(error) => {
                        failed = Some(marks);
                        files.looked(Some(error.to_string()));
                        count(|of| &of.tls_reloads_failed);
                        tracing::error!("changed TLS files cannot be used, the old ones stay: {error}");
                    }
                }
            }
        }
    }

    /// What operators are to be warned of, without names of files.
    pub(in crate::net) fn warnings(&self) -> Vec<String> {
        let has_failed = self.loaded.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let failure = has_failed.then(|| "newer TLS files cannot be used; see the log".to_owned());
        let now = self.loaded.now.load();
        let ended = now.ended_list().map(|date| format!("a revocation list (tls.crl) ended on {date}"));
        failure.into_iter().chain(ended).chain(now.invalid_certificates()).collect()
    }

    /// Notes that a reload could not use newer files.
    pub(in crate::net) fn failed(&self, error: &TlsError) {
        self.loaded.looked(Some(error.to_string()));
    }

    /// Name and end of each certificate of the broker, in seconds since 1970.
    pub(in crate::net) fn certificate_ends(&self) -> Vec<(Box<str>, i64)> {
        let now = self.loaded.now.load();
        now.settings.validities.iter().map(|(name, validity)| (name.clone(), validity.end())).collect()
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

fn warn_of_ended_list(listener: &str, source: &config::Tls, date: &str) {
    let file = source.crl.as_deref().unwrap_or(Path::new(""));
    tracing::warn!(
        listener, file = %file.display(), ended = date,
        "a revocation list has ended, and counts all the same: certificates revoked since then are accepted"
    );
}

fn warn_of_certificate(listener: &str, fault: &str) {
    tracing::warn!(listener, fault, "clients that verify the broker refuse this listener's certificate");
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

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use tempfile::TempDir;

    use super::*;
    use crate::Config;
    use crate::auth::Access;

    /// Files of a listener that asks for client certificates.
    struct Files(TempDir);

    impl Files {
        fn new() -> Self {
            let files = Self(tempfile::tempdir().unwrap());
            files.renew("broker");
            files.renew("clients");
            files
        }

        /// Writes another certificate and key.
        fn renew(&self, name: &str) {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::default().self_signed(&key).unwrap();
            fs::write(self.0.path().join(name).with_extension("key"), key.serialize_pem()).unwrap();
            fs::write(self.0.path().join(name).with_extension("pem"), certificate.pem()).unwrap();
        }

        /// Writes a certificate of the broker that ended in 2025.
        fn end(&self) {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::default();
            (params.not_before, params.not_after) = (date_time_ymd(2025, 1, 1), date_time_ymd(2025, 2, 1));
            let certificate = params.self_signed(&key).unwrap();
            fs::write(self.0.path().join("broker.key"), key.serialize_pem()).unwrap();
            fs::write(self.0.path().join("broker.pem"), certificate.pem()).unwrap();
        }

        /// Settings with these further keys.
        fn source(&self, more: &str) -> config::Tls {
            let path = |name: &str| self.0.path().join(name);
            let text = format!(
                "[[listeners]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nanonymous = true\n[listeners.tls]\n\
                 certificate = {:?}\nkey = {:?}\nclient_ca = {:?}\nclient_certificates = \"optional\"\n{more}",
                path("broker.pem"),
                path("broker.key"),
                path("clients.pem")
            );
            Config::parse(&text).unwrap().listeners.remove(0).tls.unwrap()
        }

        fn load(&self, more: &str) -> Tls {
            Tls::load(&"l".into(), &self.source(more), config::Transport::Tcp).unwrap()
        }

        fn read(&self, more: &str) -> Loaded {
            Loaded::read(&"l".into(), &self.source(more), config::Transport::Tcp).unwrap()
        }
    }

    fn reading(tls: &Tls) -> u64 {
        tls.loaded.now.load().reading
    }

    #[test]
    fn newer_files_and_settings_win_in_any_order() {
        let files = Files::new();
        let tls = files.load("");
        let (of_reload, of_watch) = (files.load(""), files.read(""));
        let newest = of_watch.reading;
        tls.loaded.replace(of_watch, ReadBy::Watch);
        tls.replace(of_reload);
        assert_eq!(reading(&tls), newest, "a slow reload");

        let (of_reload, of_watch) = (files.load("watch_seconds = 7"), files.read(""));
        let newest = reading(&of_reload);
        tls.replace(of_reload);
        assert!(!tls.loaded.replace(of_watch, ReadBy::Watch));
        assert_eq!(reading(&tls), newest, "a watch by settings from before");

        let (of_reload, of_watch) = (files.load(""), files.read("watch_seconds = 7"));
        let newest = reading(&of_reload);
        tls.loaded.replace(of_watch, ReadBy::Watch);
        tls.replace(of_reload);
        assert_eq!(reading(&tls), newest, "other settings");
    }

    #[test]
    fn certificate_that_has_ended_is_taken_with_a_warning() {
        let files = Files::new();
        assert_eq!(files.load("").warnings(), Vec::<String>::new());
        files.end();
        let tls = files.load("");
        assert_eq!(tls.warnings(), ["the certificate \"default\" ended on 2025-02-01"]);
        files.renew("broker");
        tls.replace(files.load(""));
        assert_eq!(tls.warnings(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn watch_judges_clients_by_changed_authorities_alone() {
        let files = Files::new();
        let tls = files.load("watch_seconds = 1");
        let shared =
            Arc::new(BrokerState::new(Config::default(), Access::unlimited(), true, None, None, Arc::default()));
        let reloads = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&reloads);
        let count = move |_: fn(&Metrics) -> &Counter| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let watch = tokio::spawn(tls.watch(Some(Arc::clone(&shared)), count));
        let wait = async |count| {
            while reloads.load(Ordering::Relaxed) < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let before = shared.admission.access.epoch();
        files.renew("broker");
        wait(1).await;
        files.renew("clients");
        wait(2).await;
        drop(tls);
        watch.await.unwrap();
        assert_eq!(shared.admission.access.epoch(), before + 1);
    }
}
