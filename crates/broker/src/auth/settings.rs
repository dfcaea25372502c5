use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenbin_codec::Text;

use super::acl::Acl;
use super::certificates::Certificates;
#[cfg(feature = "web")]
use super::http::Http;
#[cfg(feature = "web")]
use super::jwt::Jwt;
use super::realms::{self, KnownRealm, RealmSource};
use super::source::{Kind, Source};
use super::{Action, Effect, PasswordFile, PasswordFileError, Principal};
use crate::Config;
use crate::config::{AuthSource, Ban, Bridge, Listener, SourceKind};
use crate::values::AclRule;

/// Access settings of the configuration, with the contents of the password files.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(super) listeners: HashMap<Arc<str>, ListenerSettings>,
    pub(super) acl: Acl,
    pub(super) bans: Vec<Ban>,
    /// Client Identifiers of the broker's own bridges.
    pub(super) of_bridges: HashSet<String>,
    /// Entries of `[[auth]]`, and listeners with a password file, in the order of the configuration.
    places: Vec<RealmSource>,
    /// Realms of all listeners, and older ones to remember.
    realms: Vec<KnownRealm>,
}

/// Access settings of one listener. Listeners share nothing but password files.
#[derive(Debug, Clone)]
pub(super) struct ListenerSettings {
    /// Whether clients without User Name and Password may connect.
    pub(super) anonymous: bool,
    /// Ways in, asked in order.
    pub(super) sources: Vec<Source>,
    /// Whether the ACL applies.
    pub(super) acl: bool,
    /// Rules of a closed listener.
    pub(super) kept: Option<Arc<KeptRules>>,
}

/// Rules for the connections of a closed listener.
#[derive(Debug)]
pub(super) struct KeptRules {
    /// The whole ACL of the last configuration with the listener.
    before: Arc<Acl>,
    /// Present rules for all listeners, which may deny more.
    now: Acl,
    /// The listener's own last rules, then the present ones: they say whether another listener treats a client alike.
    alike: Acl,
}

/// Error in the access settings; its text is one line.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A password file is unusable.
    #[error(transparent)]
    PasswordFile(#[from] PasswordFileError),
    /// An entry of `[[auth]]` is unusable.
    #[error("auth {name:?}: {reason}")]
    Source {
        /// Name of the entry.
        name: String,
        /// Reason why it is wrong.
        reason: String,
    },
    /// The listener of this name admits no clients: it has neither `anonymous` nor a source.
    #[error("listener {0}: needs anonymous = true, auth, a password_file or a user")]
    Closed(String),
    /// A rule of the ACL names a listener that does not exist.
    #[error("acl: there is no listener {0:?}")]
    NoSuchListener(String),
}

impl Settings {
    /// Loads the settings with their password files. `is_whole`: no custom authenticator decides which clients may
    /// connect.
    pub(crate) fn load(config: &Config, is_whole: bool) -> Result<Self, AccessError> {
        let mut files = Files::default();
        let mut places = Vec::new();
        let mut named = HashMap::new();
        for entry in &config.auth {
            places.push(place_of(entry));
            let source = Source {
                name: entry.name.as_str().into(),
                realm: Arc::default(),
                place: places.len() - 1,
                kind: kind_of(entry, &mut files)?,
            };
            named.insert(entry.name.as_str(), source);
        }
        let mut listeners = HashMap::new();
        for listener in config.all_listeners() {
            let name = listener.name();
            let mut sources: Vec<_> = listener.auth.iter().filter_map(|name| named.get(&name[..]).cloned()).collect();
            if let Some(path) = &listener.password_file {
                let file = files.read(path)?;
                places.push(place_of_file(&listener, path));
                let source =
                    |kind| Source { name: SHORT_FORM.into(), realm: Arc::default(), place: places.len() - 1, kind };
                sources.extend([Kind::Passwords(Arc::clone(&file)), Kind::Scram(file)].map(source));
            }
            if let Some(user) = &listener.user {
                places.push(place_of_user(&listener, user));
                let (name, kind) = (OWN_USER.into(), Kind::Listener(user.clone()));
                sources.push(Source { name, realm: Arc::default(), place: places.len() - 1, kind });
            }
            if is_whole && sources.is_empty() && !listener.anonymous {
                return Err(AccessError::Closed(name.to_string()));
            }
            let (anonymous, acl) = (listener.anonymous, listener.acl);
            listeners.insert(name, ListenerSettings { anonymous, sources, acl, kept: None });
        }
        let of_bridges = ListenerSettings { anonymous: true, sources: Vec::new(), acl: false, kept: None };
        listeners.insert(Bridge::LISTENER.into(), of_bridges);
        let unknown = config.acl.iter().filter_map(|rule| rule.listener.as_deref());
        if let Some(name) = unknown.into_iter().find(|&name| !listeners.contains_key(name)) {
            return Err(AccessError::NoSuchListener(name.to_owned()));
        }
        let default = if config.allows_by_default() { Effect::Allow } else { Effect::Deny };
        let acl = Acl { rules: config.acl.clone(), default };
        let bans = config.ban.clone();
        let of_bridges = config.own_bridges().map(Bridge::local_client_id).collect();
        let mut settings = Self { listeners, acl, bans, of_bridges, places, realms: Vec::new() };
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
        for source in self.listeners.values_mut().flat_map(|listener| &mut listener.sources) {
            source.realm = Arc::clone(&now[source.place].realm); // `assign` gives each place its realm
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
    /// The password files of now have their users, as far as the files can be read. All rules of the ACL of their time
    /// stay, and rules for all listeners that deny more apply too.
    pub(super) fn keep_closed(&mut self, before: &Self) {
        let is_common = |rule: &&AclRule| rule.listener.is_none();
        let common: Vec<_> = self.acl.rules.iter().filter(is_common).cloned().collect();
        for (name, closed) in &before.listeners {
            if self.listeners.contains_key(name) {
                continue;
            }
            let last =
                closed.kept.as_ref().map_or_else(|| Arc::new(before.acl.clone()), |kept| Arc::clone(&kept.before));
            let own = last.rules.iter().filter(|rule| rule.listener.as_deref() == Some(name));
            let alike = own.chain(&self.acl.rules).cloned().collect();
            let kept = KeptRules {
                now: Acl { rules: common.clone(), default: Effect::Allow },
                alike: Acl { rules: alike, default: self.acl.default },
                before: last,
            };
            let mut closed = ListenerSettings { kept: Some(Arc::new(kept)), ..closed.clone() };
            closed.sources.iter_mut().for_each(Source::read_again);
            self.listeners.insert(Arc::clone(name), closed);
        }
    }

    /// Keeps fetched keys of sources whose endpoint has not changed.
    #[cfg(feature = "web")]
    pub(super) fn take_keys_over(&mut self, before: &Self) {
        for source in self.listeners.values_mut().flat_map(|listener| &mut listener.sources) {
            let mut old = before.listeners.values().flat_map(|listener| &listener.sources);
            let Some(old) = old.find(|old| old.name == source.name) else { continue };
            if let (Kind::Jwt(new), Kind::Jwt(old)) = (&mut source.kind, &old.kind)
                && let Some(with_keys) = new.with_keys_of(old)
            {
                *new = Arc::new(with_keys);
            }
        }
    }

    /// Whether no action is denied to any client.
    pub(super) fn is_open(&self) -> bool {
        let kept = self.listeners.values().filter_map(|listener| listener.kept.as_ref());
        self.acl.is_open() && kept.into_iter().all(|kept| kept.before.is_open())
    }

    /// Whether the ACL allows an action of a client that connected through `listener`.
    pub(super) fn allows(&self, listener: Option<&ListenerSettings>, who: &Principal, action: Action<'_>) -> bool {
        match listener.and_then(|listener| listener.kept.as_ref()) {
            Some(kept) => kept.before.allows(who, action) && kept.now.allows(who, action),
            None => self.acl.allows(who, action),
        }
    }

    /// Whether the rules for the listeners of both clients are alike, given that they differ only in their listeners.
    pub(super) fn is_alike_for(&self, one: &Principal, other: &Principal) -> bool {
        let kept = |who: &Principal| self.listeners.get(&who.listener)?.kept.as_ref();
        let rules = |who| kept(who).map_or(&self.acl, |kept| &kept.alike).rules_for(who);
        rules(one).eq(rules(other))
    }
}

/// Password files, each read once.
#[derive(Default)]
struct Files(HashMap<PathBuf, Arc<PasswordFile>>);

impl Files {
    fn read(&mut self, path: &Path) -> Result<Arc<PasswordFile>, PasswordFileError> {
        if let Some(file) = self.0.get(path) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(PasswordFile::read(path)?);
        self.0.insert(path.to_owned(), Arc::clone(&file));
        Ok(file)
    }
}

fn kind_of(entry: &AuthSource, files: &mut Files) -> Result<Kind, AccessError> {
    #[cfg(feature = "web")]
    let unusable = |reason| AccessError::Source { name: entry.name.clone(), reason };
    #[cfg(not(feature = "web"))]
    let missing =
        || Err(AccessError::Source { name: entry.name.clone(), reason: "built without the feature web".into() });
    match &entry.kind {
        SourceKind::Certificate(source) => Ok(Kind::Certificate(Arc::new(Certificates::new(source)))),
        SourceKind::Passwords(source) => Ok(Kind::Passwords(files.read(&source.file)?)),
        SourceKind::Scram(source) => Ok(Kind::Scram(files.read(&source.file)?)),
        #[cfg(feature = "web")]
        SourceKind::Jwt(source) => Jwt::load(source).map(|jwt| Kind::Jwt(Arc::new(jwt))).map_err(unusable),
        #[cfg(feature = "web")]
        SourceKind::Http(source) => Http::new(source).map(|http| Kind::Http(Arc::new(http))).map_err(unusable),
        #[cfg(not(feature = "web"))]
        SourceKind::Jwt(_) | SourceKind::Http(_) => missing(),
    }
}

/// The place of an entry of `[[auth]]`. One without a password file has a path that no file has.
fn place_of(entry: &AuthSource) -> RealmSource {
    let owner: Arc<str> = format!("auth:{}", entry.name).into();
    let label = entry.realm.as_deref().map(Into::into);
    let kind = match &entry.kind {
        SourceKind::Passwords(source) | SourceKind::Scram(source) => return place(owner, &source.file, label),
        SourceKind::Certificate(_) => "certificate",
        SourceKind::Jwt(_) => "jwt",
        SourceKind::Http(_) => "http",
    };
    let earlier = Some(PathBuf::from(&*owner));
    let path = format!("auth:{kind}:{}", entry.name);
    RealmSource { earlier, ..place_without_file(owner, &path, &entry.name, label) }
}

fn place_of_file(listener: &Listener, path: &Path) -> RealmSource {
    place(listener.name(), path, listener.realm.as_deref().map(Into::into))
}

/// The place of a listener's own user: listeners with the same one share a realm.
fn place_of_user(listener: &Listener, user: &Text) -> RealmSource {
    let label = listener.realm.as_deref().map(Into::into);
    place_without_file(listener.name(), &format!("user:{user}"), user.as_str(), label)
}

/// A place by a path that no file has.
fn place_without_file(owner: Arc<str>, path: &str, text: &str, label: Option<Arc<str>>) -> RealmSource {
    let file = PathBuf::from(path);
    RealmSource { listener: owner, text: text.into(), canonical: file.clone(), file, earlier: None, label }
}

fn place(owner: Arc<str>, path: &Path, label: Option<Arc<str>>) -> RealmSource {
    RealmSource {
        listener: owner,
        text: path.display().to_string().into(),
        file: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
        canonical: path.canonicalize().unwrap_or_else(|_| path.to_owned()), // it has just been read
        earlier: None,
        label,
    }
}

/// Name of the source that `user` of a listener makes.
const OWN_USER: &str = "user";

/// Name of the source that `password_file` of a listener makes.
const SHORT_FORM: &str = "password_file";

/// Resolves the symbolic links of a file; `None` = it does not exist. A file that cannot be inspected counts as
/// existing.
fn there(file: &Path) -> Option<PathBuf> {
    match file.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        canonical => Some(canonical.unwrap_or_else(|_| file.to_owned())),
    }
}
