//! Realms of the listeners: a realm separates users of one name.
//!
//! A realm never changes its name. The key `realm` of a listener is a label for a realm:
//!
//! - A known label keeps its realm. A label can be the name of a known realm.
//! - A new label on a known file denotes the file's realm, so adding the key loses no sessions.
//! - Any other label creates a realm. A label equal to the path of its file never denotes the realm of another file.
//!
//! A listener without the key keeps the realm that its users had before:
//!
//! 1. Listeners with the same password file have the same realm.
//! 2. A known file keeps its realm, whichever listeners use it.
//! 3. A listener with a new file keeps its realm if the old file no longer exists. The file counts as moved, and the
//!    broker logs a warning.
//! 4. Any other file gets a new realm, named after the file.
//!
//! A source without a file (certificates, tokens, a service, the user of a listener) is known by its kind and its name,
//! and never counts as moved: another kind of source has other users.
//!
//! So two sources share a realm only by the key. An unrelated new file gets an existing realm only by rule 3.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A listener with a password file, and the realm of its users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownRealm {
    pub(crate) listener: Arc<str>,
    /// Absolute path of the password file; symbolic links are not followed. Relative for a source without a file.
    pub(crate) file: PathBuf,
    /// Name of the realm. It never changes, because sessions are stored under it.
    pub(crate) realm: Arc<str>,
    /// The key `realm` of the listener.
    pub(crate) label: Option<Arc<str>>,
}

/// A listener with a password file, as configured.
#[derive(Debug, Clone)]
pub(super) struct RealmSource {
    pub(super) listener: Arc<str>,
    /// Path of the password file, as the configuration writes it.
    pub(super) text: Arc<str>,
    pub(super) file: PathBuf,
    /// Path with symbolic links resolved, equal for all listeners with the same file.
    pub(super) canonical: PathBuf,
    /// Name in `file` that an earlier version gave a source without a file.
    pub(super) earlier: Option<PathBuf>,
    /// The key `realm`.
    pub(super) label: Option<Arc<str>>,
}

/// Assigns a realm to each of `places`, in order.
///
/// `known`: earlier assignments, the latest first. `there` resolves an existing file; `None` = the file does not exist.
pub(super) fn assign(
    places: &[RealmSource],
    known: &[KnownRealm],
    there: impl Fn(&Path) -> Option<PathBuf>,
) -> Vec<KnownRealm> {
    let labels = realms_of_labels(places, known);
    let configured = |place: &RealmSource| place.label.as_ref().and_then(|label| labels.get(label));
    let mut assigned = Assigned::default();
    for place in places {
        configured(place).into_iter().for_each(|realm| assigned.give(&place.canonical, realm));
    }
    for place in places {
        of_this_file(place, known).for_each(|known| assigned.offer(&place.canonical, &known.realm));
    }
    for place in places {
        let moved = moved_from(place, places, known);
        let moved = moved.filter(|old| there(&old.file).is_none_or(|file| file == place.canonical));
        moved.into_iter().for_each(|old| assigned.offer(&place.canonical, &old.realm));
    }
    for place in places {
        let is_free = |name: &str| known.iter().all(|known| *known.realm != *name) && assigned.is_free(name);
        let name = free_name(&place.text, is_free);
        assigned.offer(&place.canonical, &name);
    }
    let known = |place: &RealmSource| {
        let realm = configured(place).or_else(|| assigned.by_file.get(&place.canonical))?;
        let (listener, realm) = (Arc::clone(&place.listener), Arc::clone(realm));
        Some(KnownRealm { listener, file: place.file.clone(), realm, label: place.label.clone() })
    };
    places.iter().filter_map(known).collect()
}

/// Returns the realm of each label in `places`.
fn realms_of_labels(places: &[RealmSource], known: &[KnownRealm]) -> HashMap<Arc<str>, Arc<str>> {
    let mut realms = HashMap::<Arc<str>, Arc<str>>::new();
    let labelled = || places.iter().filter_map(|place| Some((place, place.label.as_ref()?)));
    // Known labels keep their realm.
    for (_, label) in labelled() {
        if let Some(known) = known.iter().find(|known| known.label.as_ref() == Some(label)) {
            realms.insert(Arc::clone(label), Arc::clone(&known.realm));
        }
    }
    let is_taken = |realms: &HashMap<_, Arc<str>>, realm: &str| realms.values().any(|taken| **taken == *realm);
    // A label may be the name of a realm.
    for (_, label) in labelled() {
        let is_realm = known.iter().any(|known| known.realm == *label);
        if is_realm && !realms.contains_key(label) && !is_taken(&realms, label) {
            realms.insert(Arc::clone(label), Arc::clone(label));
        }
    }
    // A new label on a known file denotes the file's realm, unless it equals the file's own path.
    for (place, label) in labelled() {
        let realm = of_this_file(place, known).map(|known| &known.realm).find(|realm| !is_taken(&realms, realm));
        if let Some(realm) = realm.filter(|_| *label != place.text && !realms.contains_key(label)) {
            realms.insert(Arc::clone(label), Arc::clone(realm));
        }
    }
    for (_, label) in labelled() {
        let is_free = |name: &str| known.iter().all(|known| *known.realm != *name) && !is_taken(&realms, name);
        let name = free_name(label, is_free);
        realms.entry(Arc::clone(label)).or_insert(name);
    }
    realms
}

/// Earlier assignments of the same file; assignments of the same listener come first.
fn of_this_file<'a>(place: &'a RealmSource, known: &'a [KnownRealm]) -> impl Iterator<Item = &'a KnownRealm> {
    let of_this_file = known.iter().filter(|known| {
        let is_earlier = place.earlier.as_ref() == Some(&known.file) && known.listener == place.listener;
        known.file == place.file || is_earlier
    });
    of_this_file.clone().filter(|known| known.listener == place.listener).chain(of_this_file)
}

/// Returns the listener's last file, unless a listener still uses it.
fn moved_from<'a>(place: &RealmSource, places: &[RealmSource], known: &'a [KnownRealm]) -> Option<&'a KnownRealm> {
    last_of(place, places, known).filter(|last| has_file(&place.file) && has_file(&last.file))
}

/// Returns the listener's last source, unless a listener still uses it.
fn last_of<'a>(place: &RealmSource, places: &[RealmSource], known: &'a [KnownRealm]) -> Option<&'a KnownRealm> {
    let last = known.iter().find(|known| known.listener == place.listener)?;
    (!places.iter().any(|place| place.file == last.file)).then_some(last)
}

/// Whether this is the path of a file, and not the name of a source without one.
fn has_file(file: &Path) -> bool {
    file.is_absolute()
}

/// Returns `name`, or the first free one of `name#2`, `name#3`, ….
fn free_name(name: &Arc<str>, is_free: impl Fn(&str) -> bool) -> Arc<str> {
    let mut free = Arc::clone(name);
    let mut number = 2_u32;
    while !is_free(&free) {
        free = format!("{name}#{number}").into();
        number += 1;
    }
    free
}

/// Logs each change that gives users the sessions of others or takes their own. `now`: the realms of all `places`.
pub(super) fn report(
    places: &[RealmSource],
    now: &[KnownRealm],
    known: &[KnownRealm],
    there: impl Fn(&Path) -> Option<PathBuf>,
) {
    for (place, new) in places.iter().zip(now) {
        let (listener, file, realm) = (&new.listener, &new.file, &new.realm);
        if of_this_file(place, known).any(|known| known.realm == *realm) {
            continue;
        }
        if let Some(old) = of_this_file(place, known).next() {
            tracing::warn!(
                %listener, ?file, %realm, old_realm = %old.realm,
                "users get another realm: their sessions stay in the old one"
            );
        } else if let Some(old) = last_of(place, places, known).filter(|_| place.label.is_none()) {
            if !has_file(file) || !has_file(&old.file) {
                tracing::warn!(
                    %listener, old_source = ?old.file, source = ?file, %realm, old_realm = %old.realm,
                    "another kind of source: its users do not get the sessions of the old source's users; \
                     realm = {:?} gives them", old.realm
                );
                continue;
            }
            let old_file = there(&old.file);
            if old.realm == *realm && old_file.is_none() {
                tracing::warn!(
                    %listener, old_file = ?old.file, ?file, %realm,
                    "password file moved: its users get the sessions of the old file's users; \
                     realm = {:?} separates them", place.text
                );
            } else if old.realm != *realm {
                tracing::warn!(
                    %listener, old_file = ?old.file, ?file, %realm, old_realm = %old.realm,
                    "another password file: its users do not get the sessions of the old file's users; \
                     realm = {:?} gives them", old.realm
                );
            }
        }
        let joined =
            places.iter().zip(now).find(|(other, of)| of.realm == *realm && other.canonical != place.canonical);
        if let Some((_, other)) = joined {
            tracing::warn!(
                %listener, ?file, other_listener = %other.listener, other_file = ?other.file, %realm,
                "two password files share a realm: users of one name share sessions"
            );
        }
    }
}

/// Returns the realms to remember: those of `now`, then earlier ones that share neither file nor realm with them.
pub(super) fn remember(now: &[KnownRealm], before: &[KnownRealm]) -> Vec<KnownRealm> {
    let is_over = |old: &KnownRealm| now.iter().any(|new| new.file == old.file || new.realm == old.realm);
    now.iter().chain(before.iter().filter(|old| !is_over(old))).take(REMEMBERED).cloned().collect()
}

#[derive(Debug, Default)]
struct Assigned {
    /// The realm of listeners that do not configure one, by canonical file.
    by_file: HashMap<PathBuf, Arc<str>>,
    by_realm: HashMap<Arc<str>, PathBuf>,
}

impl Assigned {
    /// Records a configured assignment.
    fn give(&mut self, file: &Path, realm: &Arc<str>) {
        self.by_file.entry(file.to_owned()).or_insert_with(|| Arc::clone(realm));
        self.by_realm.entry(Arc::clone(realm)).or_insert_with(|| file.to_owned());
    }

    /// Assigns the realm, unless the file has a realm already or another file has this realm.
    fn offer(&mut self, file: &Path, realm: &Arc<str>) {
        if !self.by_file.contains_key(file) && self.is_free(realm) {
            self.give(file, realm);
        }
    }

    fn is_free(&self, realm: &str) -> bool {
        !self.by_realm.contains_key(realm)
    }
}

/// Maximum number of remembered listeners.
const REMEMBERED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Listeners as `(name, file, realm)`; an empty realm is not configured.
    fn places(of: &[(&str, &str, &str)]) -> Vec<RealmSource> {
        let place = |&(listener, text, realm): &(&str, &str, &str)| RealmSource {
            listener: listener.into(),
            text: text.into(),
            file: Path::new("/etc").join(text),
            canonical: Path::new("/etc").join(text.trim_start_matches("link-to-")),
            earlier: None,
            label: (!realm.is_empty()).then(|| realm.into()),
        };
        of.iter().map(place).collect()
    }

    /// Returns the realms after a series of configurations; each remembers the earlier ones.
    fn after(configurations: &[&[(&str, &str, &str)]]) -> Vec<String> {
        after_with(configurations, &[])
    }

    /// As [`after`], with files in `there` that still exist.
    fn after_with(configurations: &[&[(&str, &str, &str)]], there: &[&str]) -> Vec<String> {
        let there = |file: &Path| there.iter().map(|text| Path::new("/etc").join(text)).find(|there| there == file);
        let mut known = Vec::new();
        let mut realms = Vec::new();
        for configuration in configurations {
            let now = assign(&places(configuration), &known, there);
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
        // A listener gets a separate file: the realm stays with the file.
        assert_eq!(after(&[&[("a", "pw", ""), ("b", "pw", "")], &[("a", "pw", ""), ("b", "pw2", "")]]), ["pw", "pw2"]);
        // Two listeners exchange their files: users keep their identity.
        let exchanged = after(&[&[("a", "pw", ""), ("b", "pw2", "")], &[("a", "pw2", ""), ("b", "pw", "")]]);
        assert_eq!(exchanged, ["pw2", "pw"]);
        // A new file with the old name of a moved file.
        let moved = [("a", "moved", "")];
        assert_eq!(after(&[&[("a", "pw", "")], &moved, &[moved[0], ("b", "pw", "")]]), ["pw", "pw#2"]);
        // A realm that is configured for one file no longer belongs to another.
        assert_eq!(after(&[&[("a", "pw", "")], &[("a", "pw", ""), ("b", "pw2", "pw")]]), ["pw#2", "pw"]);
    }

    #[test]
    fn existing_old_file_keeps_its_realm() {
        assert_eq!(after_with(&[&[("a", "pw", "")], &[("a", "other", "")]], &["pw"]), ["other"]);
        assert_eq!(after_with(&[&[("a", "pw", "")], &[("a", "link-to-pw", "")]], &["pw"]), ["pw"]);
        // Only the last file counts.
        let three: [&[_]; 3] = [&[("a", "pw", "")], &[("a", "pw2", "")], &[("a", "pw3", "")]];
        assert_eq!(after_with(&three, &["pw2"]), ["pw3"]);
    }

    #[test]
    fn reverted_reload_restores_the_realms() {
        let moved = [("a", "moved", ""), ("b", "other", "")];
        assert_eq!(after(&[&[("a", "pw", "")], &moved, &[("a", "other", "")], &moved]), ["pw", "other"]);
    }

    #[test]
    fn added_or_changed_label_keeps_the_realm() {
        let unlabelled = [("a", "pw", "")];
        let labelled = [("a", "pw", "x")];
        assert_eq!(after(&[&unlabelled, &labelled]), ["pw"]);
        assert_eq!(after(&[&unlabelled, &labelled, &unlabelled]), ["pw"]);
        assert_eq!(after(&[&unlabelled, &labelled, &[("a", "pw", "y")]]), ["pw"]);
        assert_eq!(after(&[&unlabelled, &labelled, &[("b", "new", "x")]]), ["pw"], "listener and file have changed");
        assert_eq!(after(&[&unlabelled, &labelled, &[("a", "pw", "x"), ("b", "pw2", "x")]]), ["pw", "pw"]);
        assert_eq!(
            after(&[&[("a", "pw", ""), ("b", "pw2", "")], &[("a", "pw", "x"), ("b", "pw2", "x")]]),
            ["pw", "pw"]
        );
        assert_eq!(after(&[&unlabelled, &[("a", "pw", "x"), ("b", "pw", "y")]]), ["pw", "y"]);
    }

    #[test]
    fn label_separates_a_new_file_from_the_old_one() {
        assert_eq!(after(&[&[("a", "pw", "")], &[("a", "other", "x")]]), ["x"]);
        let taken_over: [&[_]; 3] = [&[("a", "pw", "")], &[("a", "other", "")], &[("a", "other", "other")]];
        assert_eq!(after(&taken_over), ["other"], "its own path");
        // The old realm is available by its name.
        assert_eq!(after_with(&[&[("a", "pw", "")], &[("a", "new", "")], &[("a", "new", "pw")]], &["pw"]), ["pw"]);
    }

    /// Kinds of sources, each with the path or the name by which it is known.
    #[test]
    fn source_of_another_kind_gets_another_realm() {
        let kinds = ["/etc/pw", "auth:certificate:main", "auth:jwt:main", "auth:http:main", "user:alice"];
        let place = |file: &str, label: Option<&str>| RealmSource {
            listener: "main".into(),
            text: "main".into(),
            file: file.into(),
            canonical: file.into(),
            earlier: file.starts_with("auth:").then(|| "auth:main".into()),
            label: label.map(Into::into),
        };
        // No file exists any more.
        let assign = |place: RealmSource, known: &[KnownRealm]| assign(&[place], known, |_| None).remove(0);
        for (one, other) in kinds.iter().flat_map(|one| kinds.map(|other| (*one, other))) {
            let before = assign(place(one, None), &[]);
            let known = remember(std::slice::from_ref(&before), &[]);
            let after = assign(place(other, None), &known);
            assert_eq!(after.realm == before.realm, one == other, "{one}, then {other}");
            let known = remember(&[after], &known);
            assert_eq!(assign(place(one, None), &known).realm, before.realm, "{one} again after {other}");
            let labelled = assign(place(other, Some(&before.realm)), &known);
            assert_eq!(labelled.realm, before.realm, "the key joins {one} and {other}");
        }
        let earlier = KnownRealm { file: "auth:main".into(), listener: "main".into(), realm: "r".into(), label: None };
        assert_eq!(*assign(place(kinds[2], None), &[earlier]).realm, *"r", "known by an earlier version");
    }

    #[test]
    fn configured_realm_decides() {
        assert_eq!(after(&[&[("a", "pw", "x"), ("b", "pw2", "x")]]), ["x", "x"]);
        assert_eq!(after(&[&[("a", "pw", "x")], &[("a", "moved", "")]]), ["x"], "it stays when the key goes");
    }
}
