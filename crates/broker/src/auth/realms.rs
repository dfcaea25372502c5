//! The realm of each listener: which users of one name are one user.
//!
//! `realm` of the configuration decides. Without it a listener keeps the realm that its users had before, so that a password
//! file can be moved and a listener renamed without anybody losing a session:
//!
//! 1. Listeners with one password file have one realm.
//! 2. A file that was configured before keeps its realm, whichever listeners name it.
//! 3. A listener with another file keeps its realm if no listener names its file of before: the file was moved.
//! 4. Any other file is a realm of its own, called after the file.
//!
//! So users of two files are never mixed up unless the configuration gives both files one realm.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A listener with a password file, and the realm of its users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownRealm {
    pub(crate) listener: Arc<str>,
    /// Absolute path of the password file; symbolic links are not followed.
    pub(crate) file: PathBuf,
    pub(crate) realm: Arc<str>,
}

/// A listener with a password file, as configured.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) listener: Arc<str>,
    /// Path of the password file, as the configuration writes it.
    pub(super) text: Arc<str>,
    pub(super) file: PathBuf,
    /// The same for all listeners with the same file.
    pub(super) canonical: PathBuf,
    /// The key `realm`.
    pub(super) realm: Option<Arc<str>>,
}

/// The realms of all `places`, in their order. `known`: what they were before.
pub(super) fn assign(places: &[Place], known: &[KnownRealm]) -> Vec<KnownRealm> {
    let mut assigned = Assigned::default();
    for Place { canonical, realm, .. } in places {
        realm.iter().for_each(|realm| assigned.give(canonical, realm));
    }
    let is_configured = |file: &Path| places.iter().any(|place| place.file == file);
    for place in places {
        let of_this_file = known.iter().filter(|known| known.file == place.file);
        let first = of_this_file.clone().filter(|known| known.listener == place.listener);
        first.chain(of_this_file).for_each(|known| assigned.offer(&place.canonical, &known.realm));
    }
    for place in places {
        let moved = known.iter().filter(|known| known.listener == place.listener && !is_configured(&known.file));
        moved.for_each(|known| assigned.offer(&place.canonical, &known.realm));
    }
    for place in places {
        let is_free = |name: &Arc<str>| known.iter().all(|known| known.realm != *name) && assigned.is_free(name);
        let mut name = Arc::clone(&place.text);
        let mut number = 2_u32;
        while !is_free(&name) {
            name = format!("{}#{number}", place.text).into();
            number += 1;
        }
        assigned.offer(&place.canonical, &name);
    }
    let known = |place: &Place| {
        let realm = place.realm.as_ref().or_else(|| assigned.by_file.get(&place.canonical))?;
        let (listener, realm) = (Arc::clone(&place.listener), Arc::clone(realm));
        Some(KnownRealm { listener, file: place.file.clone(), realm })
    };
    places.iter().filter_map(known).collect()
}

/// What is to be remembered: the realms of now, and those of before that no listener or file of now has taken the place of.
pub(super) fn remember(now: &[KnownRealm], before: &[KnownRealm]) -> Vec<KnownRealm> {
    let is_over = |old: &KnownRealm| now.iter().any(|new| new.listener == old.listener || new.file == old.file);
    now.iter().chain(before.iter().filter(|old| !is_over(old))).take(REMEMBERED).cloned().collect()
}

#[derive(Debug, Default)]
struct Assigned {
    /// The realm of listeners that do not configure one, by canonical file.
    by_file: HashMap<PathBuf, Arc<str>>,
    by_realm: HashMap<Arc<str>, PathBuf>,
}

impl Assigned {
    /// As configured.
    fn give(&mut self, file: &Path, realm: &Arc<str>) {
        self.by_file.entry(file.to_owned()).or_insert_with(|| Arc::clone(realm));
        self.by_realm.entry(Arc::clone(realm)).or_insert_with(|| file.to_owned());
    }

    /// Unless the file has a realm, or the realm another file.
    fn offer(&mut self, file: &Path, realm: &Arc<str>) {
        if !self.by_file.contains_key(file) && self.is_free(realm) {
            self.give(file, realm);
        }
    }

    fn is_free(&self, realm: &Arc<str>) -> bool {
        !self.by_realm.contains_key(realm)
    }
}

/// Listeners that are remembered at most.
const REMEMBERED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener and its file; `(name, file, realm)`, where the realm "" is not configured.
    fn places(of: &[(&str, &str, &str)]) -> Vec<Place> {
        let place = |&(listener, text, realm): &(&str, &str, &str)| Place {
            listener: listener.into(),
            text: text.into(),
            file: Path::new("/etc").join(text),
            canonical: Path::new("/etc").join(text.trim_start_matches("link-to-")),
            realm: (!realm.is_empty()).then(|| realm.into()),
        };
        of.iter().map(place).collect()
    }

    /// The realms after a row of configurations, of which each remembers what was before.
    fn after(configurations: &[&[(&str, &str, &str)]]) -> Vec<String> {
        let mut known = Vec::new();
        let mut realms = Vec::new();
        for configuration in configurations {
            let now = assign(&places(configuration), &known);
            realms = now.iter().map(|known| known.realm.to_string()).collect();
            known = remember(&now, &known);
        }
        realms
    }

    #[test]
    fn moved_file_or_renamed_listener_keeps_the_realm() {
        assert_eq!(after(&[&[("a", "pw", "")], &[("a", "moved", "")]]), ["pw"]);
        assert_eq!(after(&[&[("a", "pw", "")], &[("b", "pw", "")]]), ["pw"]);
        assert_eq!(after(&[&[("a", "pw", "")], &[("a", "moved", "")], &[("b", "moved", "")]]), ["pw"]);
        assert_eq!(after(&[&[("a", "pw", "")], &[], &[("a", "moved", "")]]), ["pw"], "a run without it between");
        assert_eq!(after(&[&[("a", "pw", "")], &[("a", "link-to-pw", "")]]), ["pw"]);
    }

    #[test]
    fn listeners_of_one_file_share_a_realm() {
        assert_eq!(after(&[&[("a", "pw", ""), ("b", "link-to-pw", "")]]), ["pw", "pw"]);
        assert_eq!(after(&[&[("a", "pw", "")], &[("b", "pw", ""), ("a", "pw", "")]]), ["pw", "pw"]);
        assert_eq!(after(&[&[("a", "pw", ""), ("b", "pw", "x")]]), ["x", "x"]);
        assert_eq!(after(&[&[("a", "pw", ""), ("b", "pw", "")], &[("a", "new", ""), ("b", "new", "")]]), ["pw", "pw"]);
    }

    #[test]
    fn two_files_never_share_a_realm_by_default() {
        assert_eq!(after(&[&[("a", "pw", ""), ("b", "pw2", "")]]), ["pw", "pw2"]);
        // A listener gets a file of its own: the realm stays with the file.
        assert_eq!(after(&[&[("a", "pw", ""), ("b", "pw", "")], &[("a", "pw", ""), ("b", "pw2", "")]]), ["pw", "pw2"]);
        // Two listeners exchange their files: users stay who they are.
        let exchanged = after(&[&[("a", "pw", ""), ("b", "pw2", "")], &[("a", "pw2", ""), ("b", "pw", "")]]);
        assert_eq!(exchanged, ["pw2", "pw"]);
        // A new file of the name of one that was moved.
        let moved = [("a", "moved", "")];
        assert_eq!(after(&[&[("a", "pw", "")], &moved, &[moved[0], ("b", "pw", "")]]), ["pw", "pw#2"]);
        // A realm that is configured for one file is no longer that of another.
        assert_eq!(after(&[&[("a", "pw", "")], &[("a", "pw", ""), ("b", "pw2", "pw")]]), ["pw#2", "pw"]);
    }

    #[test]
    fn configured_realm_decides() {
        assert_eq!(after(&[&[("a", "pw", "")], &[("a", "pw", "x")]]), ["x"]);
        assert_eq!(after(&[&[("a", "pw", "x"), ("b", "pw2", "x")]]), ["x", "x"]);
        assert_eq!(after(&[&[("a", "pw", "x")], &[("a", "moved", "")]]), ["x"], "it stays when the key goes");
    }
}
