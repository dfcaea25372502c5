//! A reload: a new configuration takes effect as a whole, or not at all.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::listeners::Listeners;
use super::{BrokerBuilder, OpenSockets, Parts, ReloadError};
use crate::Config;
use crate::auth::Settings;
use crate::config::{ConfigError, NotTaken, Reloaded};
use crate::lifecycle::enforcement;
use crate::net::{self, TlsError};

/// Learns how each reload ends: the configuration that it has put in effect, or why it has failed.
#[derive(Default)]
pub(super) struct OnReload(Option<Box<Learn>>);

type Learn = dyn Fn(Result<&Config, &ReloadError>) + Send + Sync;

impl fmt::Debug for OnReload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnReload")
    }
}

impl BrokerBuilder {
    /// Calls `learn` at the end of each reload, whoever has asked for it: with the configuration that is in effect from now
    /// on, or with the reason why nothing has changed.
    ///
    /// The next reload waits for its end; `learn` must not reload itself.
    #[must_use]
    pub fn on_reload(self, learn: impl Fn(Result<&Config, &ReloadError>) + Send + Sync + 'static) -> Self {
        Self { on_reload: OnReload(Some(Box::new(learn))), ..self }
    }
}

impl Parts {
    pub(super) fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a drain has closed the sockets of its listeners, so that their addresses are free.
    pub(super) fn wait_for_drained(&self) {
        let patience = Instant::now() + PATIENCE;
        while !self.listeners().are_drained_closed() && Instant::now() < patience {
            std::thread::sleep(PAUSE);
        }
    }

    fn tls_failed(&self, error: &TlsError) {
        self.shared.operations.metrics.tls_reloads_failed.add(1);
        tracing::debug!(%error, "reload: TLS files cannot be used");
        self.listeners().tls_failed(error);
        self.admin_tls.failed(error);
    }

    /// Reads a configuration and applies it, as [`Broker::reload`] says; returns the keys that differ.
    pub(super) fn reload(&self, read: impl FnOnce() -> Result<Config, ConfigError>) -> Result<Reloaded, ReloadError> {
        // First, so that a waiting reload reads files at least as new as the settings that it replaces.
        let mut in_effect = self.in_effect.lock().unwrap_or_else(PoisonError::into_inner);
        let result = read().map_err(ReloadError::Config).and_then(|config| self.apply(config, &mut in_effect));
        self.is_reload_failed.store(result.is_err(), Ordering::Relaxed);
        if let OnReload(Some(learn)) = &self.on_reload {
            learn(result.as_ref().map(|_| &*in_effect));
        }
        result
    }

    fn apply(&self, config: Config, in_effect: &mut Config) -> Result<Reloaded, ReloadError> {
        in_effect.check_complete(&config)?;
        let config = &config;
        let unopened = self.listeners().unopened(config);
        let mut sockets = OpenSockets::default();
        sockets.look_up(&unopened).map_err(ReloadError::Listen)?;
        let doors = net::Doors::load(config).inspect_err(|error| self.tls_failed(error))?;
        let take_admin_tls = self.admin_tls.read(config).inspect_err(|error| self.tls_failed(error))?;
        let settings = Settings::load(config, self.shared.admission.is_configured_only)?;
        self.wait_for_drained();
        let mut listeners = self.listeners();
        // It may have begun to stop during a look-up, and has closed its sockets then.
        if self.shared.operations.is_stopping() {
            return Err(ReloadError::Stopping);
        }
        let prepared = listeners.prepare(config, doors, sockets, &self.shared.config)?;
        take_admin_tls();
        let realms = enforcement::apply(&self.shared, settings, || {
            self.shared.routing.router.set_share_rules(config.share_rules());
            self.shared.admission.connection_settings.replace(config, &self.shared.config);
            listeners.switch(prepared, &self.shared);
            listeners.run_bridges(config, &self.shared);
            // Before the look at each session: health, metrics and status wait for this lock. Reloads keep their order by
            // `in_effect`.
            drop(listeners);
        });
        let not_taken = self.configured.not_taken(config);
        for NotTaken { key, old, new } in &not_taken {
            tracing::warn!(key, old, new, "reload does not change this key: restart the broker");
        }
        // Last, since it waits for the disk.
        if let Some((realms, durable)) = realms.zip(self.shared.storage.durable.as_ref()) {
            durable.keep_realms(&realms);
        }
        let taken = in_effect.taken(config);
        in_effect.clone_from(config);
        Ok(Reloaded { taken, not_taken })
    }
}

const PAUSE: Duration = Duration::from_millis(1);
/// Time for tasks to end.
const PATIENCE: Duration = Duration::from_secs(5);
