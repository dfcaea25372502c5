//! A reload: a new configuration takes effect as a whole, or not at all.

use std::sync::{MutexGuard, PoisonError};

use super::listeners::Listeners;
use super::{Parts, ReloadError};
use crate::Config;
use crate::auth::Settings;
use crate::config::NotTaken;
use crate::lifecycle::enforcement;
use crate::net::{self, ResolvedNames, TlsError};

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

    /// Applies `config`, as [`Broker::reload`] says; returns the keys that differ and stay as they were.
    pub(super) fn reload(&self, config: &Config) -> Result<Vec<NotTaken>, ReloadError> {
        let _reloading = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let unopened = self.listeners().unopened(config);
        let names = ResolvedNames::look_up(&unopened).map_err(ReloadError::Listen)?;
        let doors = net::Doors::load(config).inspect_err(|error| self.tls_failed(error))?;
        let settings = Settings::load(config, self.shared.is_configured_only)?;
        #[cfg(feature = "admin")]
        self.wait_for_drained();
        let mut listeners = self.listeners();
        // It may have begun to stop during a look-up, and has closed its sockets then.
        if self.shared.is_stopping() {
            return Err(ReloadError::Stopping);
        }
        let prepared = listeners.prepare(config, doors, &names, &self.shared.config)?;
        let realms = enforcement::apply(&self.shared, settings, || {
            self.shared.router.set_share_rules(config.share_rules());
            self.shared.connection_settings.replace(config, &self.shared.config);
            listeners.switch(prepared, &self.shared);
            // Before the look at each session: health, metrics and status wait for this lock. Reloads keep their order by
            // `reloading`.
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
        Ok(not_taken)
    }
}
