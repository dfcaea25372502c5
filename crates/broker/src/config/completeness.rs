//! Checks of a reload: an emptied or cut file must not open a closed door.
//!
//! A cut file lacks lines at its end, and is a valid file if it is cut between two tables. A key that an operator adds is
//! taken; what protects something must not vanish by being left out.

use toml::{Table, Value};

use super::{AclDefault, ClientCertificates, Config, ConfigError, Listener};
use crate::values::{AclRule, Effect};

impl Config {
    /// Whether an action is allowed that no rule of the ACL is about.
    pub(crate) fn allows_by_default(&self) -> bool {
        match self.acl_default {
            AclDefault::Auto => self.acl.is_empty(),
            AclDefault::Allow => true,
            AclDefault::Deny => false,
        }
    }

    /// Checks that `new`, which replaces this configuration, leaves out nothing that protects the broker.
    ///
    /// # Errors
    /// It does. The error names the key, and says what to do if that is wanted.
    pub(crate) fn check_complete(&self, new: &Self) -> Result<(), ConfigError> {
        let missing = self.missing_in(new).or_else(|| self.cut_off_in(new));
        let Some((key, reason)) = missing else { return Ok(()) };
        let error = ConfigError::incomplete(&key, reason);
        Err(match new.source.path() {
            Some(path) => error.in_file(path),
            None => error,
        })
    }

    /// A protection that a configuration lacks, as a cut file may.
    fn missing_in(&self, new: &Self) -> Option<(String, &'static str)> {
        let opens = new.listen.iter().any(|address| !self.listen.contains(address));
        if !self.listeners.is_empty() && new.listeners.is_empty() && opens {
            return Some(("listeners".to_owned(), "none is left, and an address of `listen` lets everybody in"));
        }
        let is_denied = !self.acl.is_empty() || self.acl_default == AclDefault::Deny;
        let is_meant = self.acl.is_empty() && new.acl_default == AclDefault::Allow;
        if is_denied && new.acl.is_empty() && new.allows_by_default() && !is_meant {
            return Some((
                "acl".to_owned(),
                "no rule is left, so that everything would be allowed; a rule that allows \"#\" says that it is meant",
            ));
        }
        let listeners = new.listeners.iter().filter_map(|listener| Some((self.before(listener)?, listener)));
        listeners.into_iter().find_map(|(old, new)| {
            let (key, reason) = missing_at(old, new)?;
            Some((format!("listeners: {}: {key}", new.name()), reason))
        })
    }

    /// The listener of the same name. Another name says that a listener is meant to be another one.
    fn before(&self, new: &Listener) -> Option<&Listener> {
        self.listeners.iter().find(|old| old.name() == new.name())
    }

    /// A restriction that the beginning of this configuration's file lacks. `None` if `new` is no such beginning.
    fn cut_off_in(&self, new: &Self) -> Option<(String, &'static str)> {
        if !new.source.is_cut_from(&self.source) {
            return None;
        }
        let same = |key: &str, is_same: bool| (!is_same).then(|| key.to_owned());
        let (rules, sources, listeners) = (new.acl.len(), new.auth.len(), new.listeners.len());
        let is_denial = |rule: &AclRule| rule.effect == Effect::Deny && new.allows_by_default();
        let left_out = self.acl.get(rules..).unwrap_or_default();
        let key = same("ban", new.ban == self.ban)
            .or_else(|| same("acl", self.acl.starts_with(&new.acl) && !left_out.iter().any(is_denial)))
            .or_else(|| same("auth", self.auth.get(..sources) == Some(&new.auth[..])))
            .or_else(|| same("listeners", self.listeners.get(..listeners) == Some(&new.listeners[..])))?;
        Some((
            key,
            "the file is the beginning of the one in effect, and lacks what restricts clients; a changed comment says that it is meant",
        ))
    }
}

/// A protection of a listener that its new settings lack.
fn missing_at(old: &Listener, new: &Listener) -> Option<(&'static str, &'static str)> {
    if let Some(missing) = missing_at_gateway(old, new) {
        return Some(missing);
    }
    let Some(tls) = &old.tls else { return None };
    let Some(new) = &new.tls else {
        return Some((
            "tls",
            "is left out, and clients would send passwords as plain text; another `name` says that it is meant",
        ));
    };
    let is_required = tls.client_certificates == ClientCertificates::Required;
    if is_required && new.client_certificates == ClientCertificates::None {
        return Some((
            "tls.client_certificates",
            "is left out, and was \"required\"; \"optional\" says that it is meant",
        ));
    }
    if tls.crl.is_some() && new.crl.is_none() && new.client_ca.is_some() {
        return Some(("tls.crl", "is left out, and revoked certificates would count"));
    }
    None
}

/// A protection of an MQTT-SN listener that its new settings lack. The program that opens it knows its other keys.
fn missing_at_gateway(old: &Listener, new: &Listener) -> Option<(&'static str, &'static str)> {
    let (old, new) = (old.sn.as_ref()?, new.sn.as_ref());
    let is_left_out = |key: &str| old.contains_key(key) && new.is_none_or(|new| !new.contains_key(key));
    if is_left_out("dtls") {
        return Some((
            "sn.dtls",
            "is left out, and clients without a key would be admitted; another `name` says that it is meant",
        ));
    }
    let has_ca = |of: &Table| of.get("dtls").and_then(|dtls| dtls.get("client_ca")).is_some();
    if has_ca(old) && !new.is_some_and(has_ca) {
        return Some((
            "sn.dtls.client_ca",
            "is left out, and clients without a certificate would be admitted; another `name` says that it is meant",
        ));
    }
    let asks = |of: &Table| of.get("credentials").and_then(Value::as_bool) == Some(true);
    (asks(old) && is_left_out("credentials")).then_some((
        "sn.credentials",
        "is left out, and clients without credentials would be admitted; `false` says that it is meant",
    ))
}
