//! Parts of the broker that its admin interface reaches.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tenbin_admin::{ListenerView, Server};

use super::{Broker, BrokerBuilder, ConfigCheck, Parts, StartError};
use crate::Config;
use crate::config::{Bridge, Listener, NotTaken, Reloaded};
use crate::control::{self, Administration, Control, Difference, NodeAdmin, Reach, ReadConfig, SendAway};
use crate::gateways::BridgeState;
use crate::net::{AdminTls, TlsError};
use crate::values::DrainRefused;

/// The wish of the program around a broker for admin HTTP.
#[derive(Default)]
pub(super) struct Wanted {
    administration: Option<Administration>,
    node: Option<Arc<NodeAdmin>>,
}

impl Wanted {
    /// Notes that the configuration wants admin HTTP.
    ///
    /// # Errors
    /// None. A build without the feature `admin` refuses.
    pub(super) fn configured(&mut self) -> Result<(), StartError> {
        self.administration.get_or_insert_default();
        Ok(())
    }

    /// TLS of the server, if it is wanted, or of the node's.
    ///
    /// # Errors
    /// A file of `[admin.tls]` cannot be used.
    pub(super) fn tls(&self, config: &Config) -> Result<Tls, TlsError> {
        match &self.node {
            Some(node) => Ok(Tls(node.tls())),
            None if self.administration.is_some() => Ok(Tls(AdminTls::load(config)?.map(Arc::new))),
            None => Ok(Tls(None)),
        }
    }

    /// Begins to serve admin HTTP, if it is wanted and configured.
    pub(super) fn begin(self, parts: &Arc<Parts>) -> Result<Operators, StartError> {
        let is_wanted = self.administration.is_some() && self.node.is_none();
        let shared = &parts.shared;
        let (reach, administration) = (Above(Arc::downgrade(parts)), self.administration.unwrap_or_default());
        let control = Control::new(Arc::clone(shared), Box::new(reach), administration).map_err(StartError::Admin)?;
        if let Some(tls) = &parts.admin_tls.0 {
            tls.count_in(&shared.operations.metrics);
        }
        let socket = if is_wanted { control::open(&shared.config).map_err(StartError::Admin)? } else { None };
        if socket.is_some() || self.node.is_some() {
            shared.sessions.registry.keep_roster();
            shared.operations.metrics.keep_timings();
        }
        let server = socket
            .map(|socket| control::serve(socket, &control, parts.admin_tls.0.clone()))
            .transpose()
            .map_err(StartError::Admin)?;
        let shown = self.node.map(|node| Shown { node, control: Arc::clone(&control) });
        Ok(Operators { server, shown, control })
    }
}

/// TLS of admin HTTP, if it has some.
#[derive(Debug)]
pub(super) struct Tls(Option<Arc<AdminTls>>);

impl Tls {
    /// Reads the files of `config`. The result takes them over.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) fn read(&self, config: &Config) -> Result<impl FnOnce() + use<>, TlsError> {
        let now = self.0.clone();
        let new = if now.is_some() { AdminTls::load(config)? } else { None };
        Ok(move || {
            if let Some((now, new)) = now.zip(new) {
                now.replace(new);
            }
        })
    }

    /// Notes that a reload could not use newer files.
    pub(super) fn failed(&self, error: &TlsError) {
        if let Some(tls) = self.0.as_ref().filter(|_| error.listener() == TlsError::ADMIN) {
            tls.failed(error);
        }
    }
}

/// The broker as operators see it, at its own server or at its node's server.
pub(super) struct Operators {
    /// Serves until the broker is dropped.
    server: Option<Server>,
    shown: Option<Shown>,
    control: Arc<Control>,
}

impl Operators {
    /// Takes note that the state is restored and clients are served.
    pub(super) fn begin_to_serve(&self) {
        self.control.begins_to_serve();
    }

    /// Stores the past, which the next run shows too.
    pub(super) async fn store_past(&self) {
        let control = Arc::clone(&self.control);
        let _ = tokio::task::spawn_blocking(move || control.store_past()).await;
    }

    /// Address of the server.
    pub(super) fn url(&self) -> Option<String> {
        self.server.as_ref().map(Server::url)
    }
}

impl fmt::Debug for Operators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operators").field("server", &self.server).finish_non_exhaustive()
    }
}

impl BrokerBuilder {
    /// Serves admin HTTP at the address of `[admin]` in the configuration. A parsed configuration with that table does so
    /// too.
    #[must_use]
    pub fn admin(mut self, administration: Administration) -> Self {
        self.operators.administration = Some(administration);
        self
    }

    /// Opens no address for admin HTTP: the broker can be [shown](Broker::show_in_admin) at the server of its
    /// node.
    #[must_use]
    pub fn node_admin(mut self, admin: Arc<NodeAdmin>) -> Self {
        self.operators.node = Some(admin);
        self
    }
}

impl Broker {
    /// Shows the broker at the admin server of its node, see [`BrokerBuilder::node_admin`], from now on until
    /// [`Broker::hide_from_admin`].
    pub fn show_in_admin(&self) {
        self.operators.shown.iter().for_each(Shown::show);
    }

    /// Shows the broker no more. The server ends its requests.
    pub fn hide_from_admin(&self) {
        self.operators.shown.iter().for_each(Shown::hide);
    }
}

/// The address of admin HTTP as a listener, if it is configured.
pub(super) fn listener(config: &Config) -> Option<Listener> {
    let named = |address| Listener { name: Some("admin".to_owned()), ..Listener::anonymous(address) };
    config.admin.address().map(named)
}

/// Errors and warnings of the settings of admin HTTP.
pub(super) fn check(config: &Config) -> (Vec<String>, Vec<String>) {
    let tokens = control::check(config).err().map(|error| format!("admin: {error}"));
    let (tls, warnings) = match AdminTls::load(config) {
        Ok(tls) => (None, tls.map(|tls| tls.warnings()).unwrap_or_default()),
        Err(error) => (Some(error.to_string()), Vec::new()),
    };
    (tokens.into_iter().chain(tls).collect(), warnings.iter().map(|warning| format!("admin: {warning}")).collect())
}

/// The broker at the server of its node. Dropping it hides the broker.
struct Shown {
    node: Arc<NodeAdmin>,
    control: Arc<Control>,
}

impl Shown {
    fn show(&self) {
        self.node.slot().show(Arc::<Control>::clone(&self.control));
    }

    fn hide(&self) {
        self.node.slot().clear();
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.hide();
    }
}

/// A broker as far as [`Reach`] needs it.
///
/// The admin thread may outlive the broker for a moment, and must not keep its sockets open.
struct Above(Weak<Parts>);

impl Reach for Above {
    fn listening(&self) -> Vec<ListenerView> {
        let shown = self.0.upgrade().map(|parts| parts.listeners().shown()).unwrap_or_default();
        let view =
            |(name, address, transport): (Arc<str>, _, _)| ListenerView { name: name.to_string(), address, transport };
        shown.into_iter().map(view).collect()
    }

    fn begin_drain(&self, listener: Option<&str>, send_away: SendAway<'_>) -> Result<(), DrainRefused> {
        let parts = self.0.upgrade().ok_or(DrainRefused::NoListener)?;
        parts.listeners().begin_drain(listener, send_away)
    }

    fn end_drain(&self) -> Result<bool, String> {
        let parts = self.0.upgrade().ok_or("the broker stops")?;
        parts.wait_for_drained();
        let mut listeners = parts.listeners();
        if parts.shared.operations.is_stopping() {
            return Err("the broker stops".to_owned());
        }
        listeners.end_drain(&parts.shared).map_err(|error| error.to_string())
    }

    fn tls_warnings(&self) -> Vec<(Arc<str>, String)> {
        let Some(parts) = self.0.upgrade() else { return Vec::new() };
        let mut warnings = parts.listeners().tls_warnings();
        let of_admin = parts.admin_tls.0.iter().flat_map(|tls| tls.warnings());
        warnings.extend(of_admin.map(|warning| (TlsError::ADMIN.into(), warning)));
        warnings
    }

    fn is_drained(&self) -> bool {
        self.0.upgrade().is_some_and(|parts| parts.listeners().is_drained())
    }

    fn certificate_ends(&self) -> Vec<(Arc<str>, Box<str>, i64)> {
        let Some(parts) = self.0.upgrade() else { return Vec::new() };
        let mut ends = parts.listeners().certificate_ends();
        let of_admin = parts.admin_tls.0.iter().flat_map(|tls| tls.certificate_ends());
        ends.extend(of_admin.map(|(name, end)| (TlsError::ADMIN.into(), name, end)));
        ends
    }

    fn bridges(&self) -> Vec<(String, String, BridgeState)> {
        let Some(parts) = self.0.upgrade() else { return Vec::new() };
        let listeners = parts.listeners();
        let state =
            |(bridge, state): (&Bridge, BridgeState)| (bridge.name.to_string(), bridge.remote.to_string(), state);
        listeners.bridges().map(state).collect()
    }

    fn has_reload_failed(&self) -> bool {
        self.0.upgrade().is_some_and(|parts| parts.is_reload_failed.load(Ordering::Relaxed))
    }

    fn reload(&self, read: &ReadConfig) -> Result<[Vec<Difference>; 2], String> {
        let parts = self.0.upgrade().ok_or("the broker stops")?;
        let Reloaded { taken, not_taken } = parts.reload(read).map_err(|error| error.to_string())?;
        let shown = |found: NotTaken| [found.key, found.old, found.new];
        Ok([taken, not_taken].map(|list| list.into_iter().map(shown).collect()))
    }

    fn check(&self, text: &str) -> (Vec<String>, Vec<Difference>) {
        if let Err(error) = Config::check_file(text) {
            return (vec![error.to_string()], Vec::new());
        }
        let ConfigCheck { mut errors, differences, .. } = ConfigCheck::of(text, std::iter::empty());
        if let (true, Some(parts), Ok(config)) = (errors.is_empty(), self.0.upgrade(), Config::parse(text)) {
            errors.extend(ConfigCheck::of_addresses(&config));
            if let Some(gateways) = &parts.shared.admission.gateways {
                let ours = config.listeners.iter().filter(|listener| listener.transport.at_gateway().is_some());
                errors.extend(ours.filter_map(|listener| {
                    let reason = gateways.check(listener).err()?;
                    Some(format!("listener {}: {reason}", listener.name()))
                }));
                errors.extend(config.own_bridges().filter_map(|bridge| {
                    let reason = gateways.check_bridge(bridge).err()?;
                    Some(config.error_in_bridge(bridge, &reason).to_string())
                }));
            }
        }
        (errors, differences)
    }
}
