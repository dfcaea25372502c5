//! The keys of a source: from a file, or fetched from an URL when logins need them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use serde_json::Value;
use tokio::sync::Mutex;

use super::Key;
use crate::auth::web::{Fetched, WebClient};
use crate::config::JwtSource;

/// Keys of one source.
#[derive(Debug)]
pub(super) struct KeySet {
    /// `None` until the first fetch.
    known: Arc<ArcSwapOption<Known>>,
    remote: Option<Arc<Remote>>,
}

#[derive(Debug)]
struct Known {
    keys: Arc<[Key]>,
    /// When the endpoint last said that these are its keys.
    confirmed: Instant,
}

/// The endpoint of a key set.
#[derive(Debug)]
struct Remote {
    url: String,
    client: WebClient,
    /// One fetch at a time; the others wait for its result.
    fetch: Mutex<Fetch>,
}

#[derive(Debug, Default)]
struct Fetch {
    attempted: Option<Instant>,
    etag: Option<String>,
}

/// Keys for one token.
pub(super) enum Found {
    /// Keys with the token's Key ID, and those without one. There is at least one.
    Keys(Vec<Key>),
    NoSuchKey,
    /// The endpoint has not told its keys, or not for a long time.
    Unavailable,
}

impl KeySet {
    pub(super) fn load(config: &JwtSource) -> Result<Self, String> {
        let read = |key: &str, path: &std::path::Path| {
            std::fs::read(path).map_err(|error| format!("{key}: {} cannot be read: {error}", path.display()))
        };
        let text = |bytes| String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned());
        let keys = if let Some(path) = &config.secret_file {
            let key = Key::from_secret(read("secret_file", path)?);
            vec![key.map_err(|reason| format!("secret_file: {} {reason}", path.display()))?]
        } else if let Some(path) = &config.public_key {
            let key = text(read("public_key", path)?).and_then(|text| Key::from_pem(&text));
            vec![key.map_err(|reason| format!("public_key: {} {reason}", path.display()))?]
        } else if let Some(url) = config.jwks_url() {
            let client = WebClient::new(url, config.ca.as_deref()).map_err(|reason| format!("ca: {reason}"))?;
            let remote = Remote { url: url.to_owned(), client, fetch: Mutex::default() };
            return Ok(Self { known: Arc::default(), remote: Some(Arc::new(remote)) });
        } else {
            let path = std::path::Path::new(config.jwks.as_deref().unwrap_or_default());
            parse(&read("jwks", path)?).map_err(|reason| format!("jwks: {} {reason}", path.display()))?
        };
        let known = Known { keys: keys.into(), confirmed: Instant::now() };
        Ok(Self { known: Arc::new(ArcSwapOption::from_pointee(known)), remote: None })
    }

    /// The keys of `other`, fetched from here from now on.
    pub(super) fn with_keys_of(&self, other: &Self) -> Self {
        Self { known: Arc::clone(&other.known), remote: self.remote.clone() }
    }

    /// Returns the keys for a token with this Key ID. Fetches them if the key is not known.
    pub(super) async fn find(&self, id: Option<&str>) -> Found {
        let found = self.find_known(id);
        let Some(remote) = &self.remote else { return found };
        let age = self.known.load().as_ref().map(|known| known.confirmed.elapsed());
        if matches!(found, Found::Keys(_)) {
            match age {
                // A key that was removed since must not count.
                Some(age) if age >= 2 * CONFIRMED_EACH => {
                    let _ = refresh(remote, &self.known, CONFIRMED_EACH).await;
                    return self.find_known(id);
                }
                // The login does not wait for it.
                Some(age) if age >= CONFIRMED_EACH => drop(refresh(remote, &self.known, CONFIRMED_EACH)),
                _ => {}
            }
            return found;
        }
        // In a task of its own: a client that leaves does not end it.
        let _ = refresh(remote, &self.known, RETRIED_EACH).await;
        self.find_known(id)
    }

    fn find_known(&self, id: Option<&str>) -> Found {
        let known = self.known.load();
        let is_usable = |known: &Known| self.remote.is_none() || known.confirmed.elapsed() < KEPT_FOR;
        let Some(known) = known.as_ref().filter(|known| is_usable(known)) else { return Found::Unavailable };
        let fits = |key: &&Key| key.id.is_none() || id.is_none() || key.id.as_deref() == id;
        let keys = known.keys.iter().filter(fits).cloned().collect::<Vec<_>>();
        if keys.is_empty() { Found::NoSuchKey } else { Found::Keys(keys) }
    }
}

/// Fetches the keys, unless the last attempt is younger than `least`.
fn refresh(remote: &Arc<Remote>, known: &Arc<ArcSwapOption<Known>>, least: Duration) -> tokio::task::JoinHandle<()> {
    let (remote, known) = (Arc::clone(remote), Arc::clone(known));
    tokio::spawn(async move {
        let mut fetch = remote.fetch.lock().await;
        // A failed attempt is repeated sooner than the keys are confirmed.
        let is_confirmed = known.load().as_ref().is_some_and(|known| known.confirmed.elapsed() < least);
        if is_confirmed || fetch.attempted.is_some_and(|at| at.elapsed() < RETRIED_EACH) {
            return;
        }
        fetch.attempted = Some(Instant::now());
        let etag = known.load().is_some().then(|| fetch.etag.clone()).flatten();
        match remote.client.get(&remote.url, etag.as_deref()).await {
            Ok(Fetched::NotModified) => {
                if let Some(old) = known.load_full() {
                    let confirmed = Instant::now();
                    known.store(Some(Arc::new(Known { keys: Arc::clone(&old.keys), confirmed })));
                }
            }
            Ok(Fetched::Body { body, etag }) => match parse(&body) {
                Ok(keys) => {
                    fetch.etag = etag;
                    known.store(Some(Arc::new(Known { keys: keys.into(), confirmed: Instant::now() })));
                }
                Err(reason) => {
                    tracing::warn!(url = remote.url, reason, "cannot use the fetched keys; the old ones stay")
                }
            },
            Err(error) => tracing::warn!(url = remote.url, %error, "cannot fetch the keys; the old ones stay"),
        }
    })
}

/// Parses a JSON Web Key Set. Keys of kinds that are not known are left out.
fn parse(text: &[u8]) -> Result<Vec<Key>, String> {
    let set = serde_json::from_slice::<Value>(text).map_err(|error| format!("is no JSON: {error}"))?;
    let keys = set.get("keys").and_then(Value::as_array).ok_or("has no array keys")?;
    if keys.len() > KEYS_MAX {
        return Err(format!("has more than {KEYS_MAX} keys"));
    }
    let keys = keys.iter().filter_map(Key::from_jwk).collect::<Vec<_>>();
    if keys.is_empty() { Err("has no key that can be used".to_owned()) } else { Ok(keys) }
}

/// Time after which keys are fetched again.
const CONFIRMED_EACH: Duration = Duration::from_secs(300);
/// Shortest time between two fetches.
const RETRIED_EACH: Duration = Duration::from_secs(10);
/// How long keys are used while the endpoint does not answer.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
const KEYS_MAX: usize = 64;
