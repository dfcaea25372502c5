use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::acl::Acl;
use super::realms::{self, KnownRealm, Place};
use super::{Effect, PasswordFile, PasswordFileError};
use crate::Config;
use crate::config::{AclDefault, Listener};

/// Access settings of the configuration, with the contents of the password files.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(super) listeners: HashMap<Arc<str>, ListenerSettings>,
    pub(super) acl: Acl,
    /// Listeners with a password file, in the order of the configuration.
    places: Vec<Place>,
    /// Realms of all listeners, and older ones to remember.
    realms: Vec<KnownRealm>,
}

/// Access settings of one listener. Listeners share nothing but password files.
#[derive(Debug, Clone)]
pub(super) struct ListenerSettings {
    /// Whether clients without User Name and Password may connect.
    pub(super) anonymous: bool,
    pub(super) passwords: Option<Arc<PasswordFile>>,
    /// Path of the password file.
    file: Option<PathBuf>,
    /// Separates users of one name: see [`super::realms`].
    pub(super) realm: Arc<str>,
    /// Whether the ACL applies.
    pub(super) acl: bool,
}

/// Error in the access settings; its text is one line.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A password file is unusable.
    #[error(transparent)]
    PasswordFile(#[from] PasswordFileError),
    /// The listener of this name admits no clients: it has neither `anonymous` nor a password file.
    #[error("listener {0}: needs anonymous = true or a password_file")]
    Closed(String),
    /// A rule of the ACL names a listener that does not exist.
    #[error("acl: there is no listener {0:?}")]
    NoSuchListener(String),
}

impl Settings {
    /// Loads the settings with their password files. `is_whole`: no custom authenticator decides which clients may
    /// connect.
    pub(crate) fn load(config: &Config, is_whole: bool) -> Result<Self, AccessError> {
        let mut files = HashMap::<PathBuf, Arc<PasswordFile>>::new();
        let mut listeners = HashMap::new();
        let mut places = Vec::new();
        for listener in config.all_listeners() {
            let name = listener.name();
            let mut passwords = None;
            if let Some(path) = &listener.password_file {
                if !files.contains_key(path) {
                    files.insert(path.clone(), Arc::new(PasswordFile::read(path)?));
                }
                passwords = files.get(path).map(Arc::clone);
            }
            if is_whole && passwords.is_none() && !listener.anonymous {
                return Err(AccessError::Closed(name.to_string()));
            }
            places.extend(listener.password_file.as_deref().map(|path| Place {
                listener: Arc::clone(&name),
                text: path.display().to_string().into(),
                file: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
                canonical: path.canonicalize().unwrap_or_else(|_| path.to_owned()), // it has just been read
                label: listener.realm.as_deref().map(Into::into),
            }));
            let Listener { anonymous, acl, password_file: file, .. } = listener;
            listeners.insert(name, ListenerSettings { anonymous, passwords, file, realm: Arc::default(), acl });
        }
        let unknown = config.acl.iter().filter_map(|rule| rule.listener.as_deref());
        if let Some(name) = unknown.into_iter().find(|&name| !listeners.contains_key(name)) {
            return Err(AccessError::NoSuchListener(name.to_owned()));
        }
        let default = match config.acl_default {
            AclDefault::Auto if config.acl.is_empty() => Effect::Allow,
            AclDefault::Allow => Effect::Allow,
            AclDefault::Auto | AclDefault::Deny => Effect::Deny,
        };
        let acl = Acl { rules: config.acl.clone(), default };
        let mut settings = Self { listeners, acl, places, realms: Vec::new() };
        settings.assign_realms(&[]);
        Ok(settings)
    }

    /// Gives the listeners the realms of the last configuration, unless the new one sets others.
    pub(crate) fn recall(&mut self, known: &[KnownRealm]) {
        let now = self.assign_realms(known);
        realms::report(&self.places, &now, known, there);
    }

    fn assign_realms(&mut self, known: &[KnownRealm]) -> Vec<KnownRealm> {
        let now = realms::assign(&self.places, known, there);
        for KnownRealm { listener, realm, .. } in &now {
            if let Some(settings) = self.listeners.get_mut(listener) {
                settings.realm = Arc::clone(realm);
            }
        }
        self.realms = realms::remember(&now, known);
        now
    }

    /// Realms to pass to [`Settings::recall`] the next time.
    pub(crate) fn realms(&self) -> &[KnownRealm] {
        &self.realms
    }

    /// Takes over listeners of `before` that are closed now, for the connections that they have accepted.
    ///
    /// Their users are those of the password file now, if it can be read.
    pub(super) fn keep_closed(&mut self, before: &Self) {
        for (name, closed) in &before.listeners {
            if self.listeners.contains_key(name) {
                continue;
            }
            let mut kept = closed.clone();
            if let Some(now) = kept.file.as_deref().and_then(|file| PasswordFile::read(file).ok()) {
                kept.passwords = Some(Arc::new(now));
            }
            self.listeners.insert(Arc::clone(name), kept);
        }
    }

    /// Whether no action is denied to any client.
    pub(super) fn is_open(&self) -> bool {
        self.acl.is_open()
    }
}

/// Resolves the symbolic links of a file; `None` = it does not exist. A file that cannot be inspected counts as
/// existing.
fn there(file: &Path) -> Option<PathBuf> {
    match file.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        canonical => Some(canonical.unwrap_or_else(|_| file.to_owned())),
    }
}
