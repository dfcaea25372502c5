//! The keys of a source: from a file, or fetched from an URL when logins need them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use serde_json::Value;
use tokio::sync::Mutex;

use super::Key;
use crate::auth::web::{Fetched, WebClient};
use crate::config::{JwtSource, KeySetPlace, ServiceUrl};

/// Keys of one source.
#[derive(Debug)]
pub(super) struct KeySet {
    /// `None` until the first fetch.
    known: Arc<ArcSwapOption<Known>>,
    remote: Option<Arc<Remote>>,
}

#[derive(Debug)]
struct Known {
    keys: Arc<[Arc<Key>]>,
    /// When the endpoint last said that these are its keys.
    confirmed: Instant,
}

/// The endpoint of a key set.
#[derive(Debug)]
struct Remote {
    url: ServiceUrl,
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
    Keys(Vec<Arc<Key>>),
    NoSuchKey,
    /// The endpoint has not told its keys, or not for a long time.
    Unavailable,
}

impl KeySet {
    pub(super) fn load(config: &JwtSource) -> Result<Self, String> {
        let read = |key: &str, path: &std::path::Path| {
            tenbin_kit::files::read(path, tenbin_kit::files::BYTES_MAX)
                .map_err(|error| format!("{key}: {} cannot be read: {error}", path.display()))
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
            let remote = Remote { url: url.clone(), client, fetch: Mutex::default() };
            return Ok(Self { known: Arc::default(), remote: Some(Arc::new(remote)) });
        } else if let Some(KeySetPlace::File(path)) = &config.jwks {
            parse(&read("jwks", path)?).map_err(|reason| format!("jwks: {} {reason}", path.display()))?
        } else {
            return Err("needs exactly one of secret_file, public_key and jwks".to_owned());
        };
        let known = Known { keys: shared(keys), confirmed: Instant::now() };
        Ok(Self { known: Arc::new(ArcSwapOption::from_pointee(known)), remote: None })
    }

    /// The keys of `other`, fetched from here from now on.
    pub(super) fn with_keys_of(&self, other: &Self) -> Self {
        Self { known: Arc::clone(&other.known), remote: self.remote.clone() }
    }

    /// Returns the keys for a token with this Key ID. Fetches them if the key is not known at `now`.
    pub(super) async fn find(&self, id: Option<&str>, now: Instant) -> Found {
        let found = self.find_known(id, now);
        let Some(remote) = &self.remote else { return found };
        let age = self.known.load().as_ref().map(|known| known.age(now));
        if matches!(found, Found::Keys(_)) {
            match age {
                // A key that was removed since must not count.
                Some(age) if age >= 2 * CONFIRMED_EACH => {
                    let _ = refresh(remote, &self.known, CONFIRMED_EACH, now).await;
                    return self.find_known(id, now);
                }
                // The login does not wait for it.
                Some(age) if age >= CONFIRMED_EACH => drop(refresh(remote, &self.known, CONFIRMED_EACH, now)),
                _ => {}
            }
            return found;
        }
        // In a separate task: a client that leaves does not end it.
        let _ = refresh(remote, &self.known, RETRIED_EACH, now).await;
        self.find_known(id, now)
    }

    fn find_known(&self, id: Option<&str>, now: Instant) -> Found {
        let known = self.known.load();
        let is_usable = |known: &Known| self.remote.is_none() || known.age(now) < KEPT_FOR;
        let Some(known) = known.as_ref().filter(|known| is_usable(known)) else { return Found::Unavailable };
        let is_named = |key: &Arc<Key>| id.is_some() && key.id.as_deref() == id;
        let has_named = known.keys.iter().any(is_named);
        let fits = |key: &&Arc<Key>| if has_named { is_named(key) } else { key.id.is_none() || id.is_none() };
        let keys = known.keys.iter().filter(fits).cloned().collect::<Vec<_>>();
        if keys.is_empty() { Found::NoSuchKey } else { Found::Keys(keys) }
    }
}

impl Known {
    /// Time since the endpoint last said that these are its keys.
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.confirmed)
    }
}

/// Fetches the keys, unless the last attempt is younger than `least`.
fn refresh(
    remote: &Arc<Remote>,
    known: &Arc<ArcSwapOption<Known>>,
    least: Duration,
    now: Instant,
) -> tokio::task::JoinHandle<()> {
    let (remote, known) = (Arc::clone(remote), Arc::clone(known));
    tokio::spawn(async move {
        let mut fetch = remote.fetch.lock().await;
        // A failed attempt is repeated sooner than the keys are confirmed.
        let is_confirmed = known.load().as_ref().is_some_and(|known| known.age(now) < least);
        if is_confirmed || fetch.attempted.is_some_and(|at| now.saturating_duration_since(at) < RETRIED_EACH) {
            return;
        }
        fetch.attempted = Some(now);
        let etag = known.load().is_some().then(|| fetch.etag.clone()).flatten();
        match remote.client.get(remote.url.expose(), etag.as_deref()).await {
            Ok(Fetched::NotModified) => {
                if let Some(old) = known.load_full() {
                    known.store(Some(Arc::new(Known { keys: Arc::clone(&old.keys), confirmed: now })));
                }
            }
            Ok(Fetched::Body { body, etag }) => match parse(&body) {
                Ok(keys) => {
                    fetch.etag = etag;
                    known.store(Some(Arc::new(Known { keys: shared(keys), confirmed: now })));
                }
                Err(reason) => {
                    tracing::warn!(url = %remote.url, reason, "cannot use the fetched keys; the old ones stay")
                }
            },
            Err(error) => tracing::warn!(url = %remote.url, %error, "cannot fetch the keys; the old ones stay"),
        }
    })
}

fn shared(keys: Vec<Key>) -> Arc<[Arc<Key>]> {
    keys.into_iter().map(Arc::new).collect()
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::Config;
    use crate::config::{AuthSource, SourceKind};

    /// Endpoint of a set with the key "one"; while it is down, it closes connections without an answer.
    struct Endpoint {
        keys: KeySet,
        requests: Arc<AtomicUsize>,
        is_down: Arc<AtomicBool>,
    }

    impl Endpoint {
        fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let text = format!(
                "[[auth]]\nname = \"tokens\"\nkind = \"jwt\"\njwks = \"http://{}/\"",
                listener.local_addr().unwrap()
            );
            let AuthSource { kind: SourceKind::Jwt(config), .. } = Config::parse(&text).unwrap().auth.remove(0) else {
                panic!("a source of this kind")
            };
            let (requests, is_down) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
            let endpoint = Self { keys: KeySet::load(&config).unwrap(), requests, is_down };
            let (requests, is_down) = (Arc::clone(&endpoint.requests), Arc::clone(&endpoint.is_down));
            // It ends with the process.
            std::thread::spawn(move || {
                let body =
                    r#"{"keys": [{"kty": "oct", "kid": "one", "k": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}"#;
                for mut stream in listener.incoming().map_while(Result::ok) {
                    requests.fetch_add(1, Ordering::SeqCst);
                    if is_down.load(Ordering::SeqCst) {
                        continue;
                    }
                    let _ = stream.read(&mut [0; 4096]);
                    let length = body.len();
                    let _ = write!(
                        stream,
                        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
                    );
                }
            });
            endpoint
        }

        fn requests(&self) -> usize {
            self.requests.load(Ordering::SeqCst)
        }

        async fn knows(&self, id: &str, now: Instant) -> bool {
            matches!(self.keys.find(Some(id), now).await, Found::Keys(_))
        }
    }

    #[tokio::test]
    async fn unknown_keys_make_one_fetch_in_ten_seconds() {
        let (endpoint, begin) = (Endpoint::start(), Instant::now());
        for number in 0..10_000 {
            assert!(!endpoint.knows(&format!("key {number}"), begin + Duration::from_millis(number)).await);
        }
        assert_eq!(endpoint.requests(), 1);
        assert!(endpoint.knows("one", begin + Duration::from_secs(9)).await);
        assert!(!endpoint.knows("key", begin + RETRIED_EACH).await);
        assert_eq!(endpoint.requests(), 2);
    }

    #[tokio::test]
    async fn keys_stay_for_a_day_while_their_endpoint_is_down() {
        let (endpoint, begin) = (Endpoint::start(), Instant::now());
        assert!(endpoint.knows("one", begin).await);
        endpoint.is_down.store(true, Ordering::SeqCst);
        for second in 0..3600 {
            assert!(endpoint.knows("one", begin + Duration::from_secs(second)).await, "{second}");
        }
        assert!((2..=1 + 3600 / 10).contains(&endpoint.requests()), "{} requests", endpoint.requests());
        let end = begin + KEPT_FOR;
        assert!(endpoint.knows("one", end - Duration::from_secs(1)).await);
        assert!(matches!(endpoint.keys.find(Some("one"), end).await, Found::Unavailable));
        endpoint.is_down.store(false, Ordering::SeqCst);
        assert!(endpoint.knows("one", end + RETRIED_EACH).await);
    }
}
