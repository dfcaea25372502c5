use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::acl::Acl;
use super::{Effect, PasswordFile, PasswordFileError};
use crate::Config;
use crate::config::AclDefault;

/// What the configuration says of access, with the files that it names read.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(super) listeners: HashMap<Arc<str>, ListenerSettings>,
    pub(super) acl: Acl,
}

/// Who may come in through one listener. Nothing here is shared with another listener but a password file that both
/// name.
#[derive(Debug, Clone)]
pub(super) struct ListenerSettings {
    /// Clients without User Name and Password.
    pub(super) anonymous: bool,
    pub(super) passwords: Option<Arc<PasswordFile>>,
    /// Names the password file.
    pub(super) realm: Arc<str>,
    /// Whether the ACL applies.
    pub(super) acl: bool,
}

/// Access cannot be set up as configured; its text is one line.
#[derive(Debug)]
pub enum AccessError {
    /// A password file cannot be used.
    PasswordFile(PasswordFileError),
    /// Nobody could come in through the listener of this name: neither anonymous nor a password file.
    Closed(String),
    /// A rule of the ACL names a listener that is not there.
    NoSuchListener(String),
}

impl Settings {
    /// Reads what `config` names. With `is_whole`, the configuration alone decides who may connect.
    pub(crate) fn load(config: &Config, is_whole: bool) -> Result<Self, AccessError> {
        let mut files = HashMap::<PathBuf, Arc<PasswordFile>>::new();
        let mut listeners = HashMap::new();
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
            let realm = listener.password_file.as_ref().map_or_else(String::new, |path| path.display().to_string());
            let (anonymous, acl) = (listener.anonymous, listener.acl);
            listeners.insert(name, ListenerSettings { anonymous, passwords, realm: realm.into(), acl });
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
        Ok(Self { listeners, acl: Acl { rules: config.acl.clone(), default } })
    }

    /// A listener that is open goes on as it was when a new configuration does not name it.
    pub(super) fn keep_listeners_of(&mut self, old: &Self) {
        for (name, settings) in &old.listeners {
            if !self.listeners.contains_key(name) {
                tracing::warn!(listener = %name, "not in the new configuration; it goes on as it was");
                self.listeners.insert(Arc::clone(name), settings.clone());
            }
        }
    }

    /// Whether nobody is denied anything.
    pub(super) fn is_open(&self) -> bool {
        self.acl.is_open()
    }
}

impl From<PasswordFileError> for AccessError {
    fn from(error: PasswordFileError) -> Self {
        Self::PasswordFile(error)
    }
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PasswordFile(error) => error.fmt(f),
            Self::Closed(name) => write!(f, "listener {name}: wants anonymous = true or a password_file"),
            Self::NoSuchListener(name) => write!(f, "acl: there is no listener {name:?}"),
        }
    }
}

impl std::error::Error for AccessError {}
