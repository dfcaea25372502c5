//! Parts of the broker that its admin interface reaches.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tenbin_admin::ListenerView;

use super::{ConfigCheck, Parts, StartError};
use crate::Config;
use crate::control::{self, Administration, Control, Difference, DrainRefused, Reach, ReadConfig, SendAway};

/// Begins to serve admin HTTP, if it is wanted and configured.
pub(super) fn begin(
    parts: &Arc<Parts>,
    administration: Option<Administration>,
) -> Result<(Arc<Control>, Option<tenbin_admin::Server>), StartError> {
    let is_wanted = administration.is_some();
    let shared = &parts.shared;
    let reach = Box::new(Above(Arc::downgrade(parts)));
    let control =
        Control::new(Arc::clone(shared), reach, administration.unwrap_or_default()).map_err(StartError::Admin)?;
    let socket = if is_wanted { control::open(&shared.config).map_err(StartError::Admin)? } else { None };
    if socket.is_some() {
        shared.registry.keep_roster();
        shared.metrics.keep_timings();
    }
    let server = socket.map(|socket| control::serve(socket, &control)).transpose().map_err(StartError::Admin)?;
    Ok((control, server))
}

/// A broker as far as [`Reach`] needs it.
///
/// The admin thread may outlive the broker for a moment, and must not keep its sockets open.
struct Above(Weak<Parts>);

impl Parts {
    /// Waits until a drain has closed the sockets of its listeners, so that their addresses are free.
    pub(super) fn wait_for_drained(&self) {
        let patience = Instant::now() + PATIENCE;
        while !self.listeners().are_drained_closed() && Instant::now() < patience {
            std::thread::sleep(PAUSE);
        }
    }
}

impl Reach for Above {
    fn listening(&self) -> Vec<ListenerView> {
        self.0.upgrade().map(|parts| parts.listeners().views()).unwrap_or_default()
    }

    fn begin_drain(&self, listener: Option<&str>, send_away: SendAway<'_>) -> Result<(), DrainRefused> {
        let parts = self.0.upgrade().ok_or(DrainRefused::NoListener)?;
        parts.listeners().begin_drain(listener, send_away)
    }

    fn end_drain(&self) -> Result<bool, String> {
        let parts = self.0.upgrade().ok_or("the broker stops")?;
        parts.wait_for_drained();
        let mut listeners = parts.listeners();
        if parts.shared.is_stopping() {
            return Err("the broker stops".to_owned());
        }
        listeners.end_drain(&parts.shared).map_err(|error| error.to_string())
    }

    fn tls_warnings(&self) -> Vec<(Arc<str>, String)> {
        self.0.upgrade().map(|parts| parts.listeners().tls_warnings()).unwrap_or_default()
    }

    fn is_drained(&self) -> bool {
        self.0.upgrade().is_some_and(|parts| parts.listeners().is_drained())
    }

    fn certificate_ends(&self) -> Vec<(Arc<str>, Box<str>, i64)> {
        self.0.upgrade().map(|parts| parts.listeners().certificate_ends()).unwrap_or_default()
    }

    fn has_reload_failed(&self) -> bool {
        self.0.upgrade().is_some_and(|parts| parts.is_reload_failed.load(Ordering::Relaxed))
    }

    fn reload(&self, read: &ReadConfig) -> Result<Vec<Difference>, String> {
        let parts = self.0.upgrade().ok_or("the broker stops")?;
        let not_taken = parts.reload(read).map_err(|error| error.to_string())?;
        Ok(not_taken.into_iter().map(|found| [found.key, found.old, found.new]).collect())
    }

    fn check(&self, text: &str) -> (Vec<String>, Vec<Difference>) {
        if let Err(error) = Config::check_file(text) {
            return (vec![error.to_string()], Vec::new());
        }
        let ConfigCheck { mut errors, differences } = ConfigCheck::of(text, std::iter::empty());
        if let (true, Some(parts), Ok(config)) = (errors.is_empty(), self.0.upgrade(), Config::parse(text)) {
            errors.extend(ConfigCheck::of_addresses(&config));
            if let Some(gateways) = &parts.shared.gateways {
                let ours = config.listeners.iter().filter(|listener| listener.transport.at_gateway().is_some());
                errors.extend(ours.filter_map(|listener| {
                    let reason = gateways.check(listener).err()?;
                    Some(format!("listener {}: {reason}", listener.name()))
                }));
            }
        }
        (errors, differences)
    }
}

const PAUSE: Duration = Duration::from_millis(1);
/// Time for tasks to end.
const PATIENCE: Duration = Duration::from_secs(5);
