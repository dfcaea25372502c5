//! A reload: a new configuration takes effect as a whole, or not at all.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::listeners::Listeners;
use super::{OpenSockets, Parts, ReloadError};
use crate::Config;
use crate::auth::Settings;
use crate::config::{ConfigError, NotTaken};
use crate::lifecycle::enforcement;
use crate::net::{self, TlsError};

impl Parts {
    pub(super) fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tls_failed(&self, error: &TlsError) {
        self.shared.metrics.tls_reloads_failed.add(1);
        tracing::debug!(%error, "reload: TLS files cannot be used");
        #[cfg(feature = "admin")]
        self.listeners().tls_failed(error);
    }

    /// Reads a configuration and applies it, as [`Broker::reload`] says; returns the keys that differ and stay as they were.
    pub(super) fn reload(
        &self,
        read: impl FnOnce() -> Result<Config, ConfigError>,
    ) -> Result<Vec<NotTaken>, ReloadError> {
        // First, so that a waiting reload reads files at least as new as the settings that it replaces.
        let mut in_effect = self.in_effect.lock().unwrap_or_else(PoisonError::into_inner);
        let result = read().map_err(ReloadError::Config).and_then(|config| self.apply(config, &mut in_effect));
        self.is_reload_failed.store(result.is_err(), Ordering::Relaxed);
        result
    }

    fn apply(&self, config: Config, in_effect: &mut Config) -> Result<Vec<NotTaken>, ReloadError> {
        in_effect.check_complete(&config)?;
        let config = &config;
        let unopened = self.listeners().unopened(config);
        let mut sockets = OpenSockets::default();
        sockets.look_up(&unopened).map_err(ReloadError::Listen)?;
        let doors = net::Doors::load(config).inspect_err(|error| self.tls_failed(error))?;
        let settings = Settings::load(config, self.shared.is_configured_only)?;
        #[cfg(feature = "admin")]
        self.wait_for_drained();
        let mut listeners = self.listeners();
        // It may have begun to stop during a look-up, and has closed its sockets then.
        if self.shared.is_stopping() {
            return Err(ReloadError::Stopping);
        }
        let prepared = listeners.prepare(config, doors, sockets, &self.shared.config)?;
        let realms = enforcement::apply(&self.shared, settings, || {
            self.shared.router.set_share_rules(config.share_rules());
            self.shared.connection_settings.replace(config, &self.shared.config);
            listeners.switch(prepared, &self.shared);
            // Before the look at each session: health, metrics and status wait for this lock. Reloads keep their order by
            // `in_effect`.
            drop(listeners);
        });
        let not_taken = self.configured.not_taken(config);
        for NotTaken { key, old, new } in &not_taken {
            tracing::warn!(key, old, new, "reload does not change this key: restart the broker");
        }
        // Last, since it waits for the disk.
        if let Some((realms, durable)) = realms.zip(self.shared.durable.as_ref()) {
            durable.keep_realms(&realms);
        }
        in_effect.clone_from(config);
        Ok(not_taken)
    }
}
