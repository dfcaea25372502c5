//! Logins by a service that is asked over HTTP, with a cache and a circuit breaker.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tenbin_codec::{ReasonCode, Secret, Text};
use tenbin_kit::digits::hexadecimal;
use tokio::time::timeout;

use super::address_turns::AddressTurns;
use super::password_file::random;
use super::scram::hmac;
use super::source::Source;
use super::web::WebClient;
use super::{Answer, AuthRequest, Identity, Terms, granted_rules};
use crate::config::{HttpSource, OnFailure};
use crate::values::network;

/// A service that decides on logins.
#[derive(Debug)]
pub(super) struct Http {
    config: HttpSource,
    client: WebClient,
    turns: AddressTurns,
    breaker: Mutex<Breaker>,
    cache: Mutex<Cache>,
    /// Key of the hashes in the cache; `None` = the system has no random numbers, and nothing is cached.
    cache_key: Option<Secret<[u8; 32]>>,
}

/// Failures in a row. After many of them, from several networks, no request of these networks is made for a time. Others
/// are probes: a stranger whose requests fail closes the door for no other client.
#[derive(Debug, Default)]
struct Breaker {
    failures: u32,
    /// Networks whose requests have failed since the last success.
    failed: HashSet<IpAddr>,
    open_until: Option<Instant>,
}

/// Decisions by a hash of the whole request, in two generations of bounded number and size.
#[derive(Debug, Default)]
struct Cache {
    new: HashMap<[u8; 32], Cached>,
    old: HashMap<[u8; 32], Cached>,
    /// Memory of the entries that were added to `new`, as an estimate.
    new_bytes: usize,
}

#[derive(Debug, Clone)]
struct Cached {
    decision: Decision,
    until: Instant,
}

/// The service's decision on a login.
#[derive(Debug, Clone)]
enum Decision {
    Accept(Identity),
    Refuse(String),
    NotMine,
}

/// Content of an answer.
#[derive(Deserialize)]
struct Content {
    result: String,
    user: Option<String>,
    acl: Option<Value>,
    expires_in: Option<u64>,
    reason: Option<String>,
}

/// A request failed.
enum Failure {
    /// Too many logins wait.
    Busy,
    Failed(String),
}

impl Http {
    /// # Errors
    /// The authorities cannot be read; the text names the key.
    pub(super) fn new(config: &HttpSource) -> Result<Self, String> {
        Ok(Self {
            client: WebClient::new(&config.url, config.ca.as_deref()).map_err(|reason| format!("ca: {reason}"))?,
            config: config.clone(),
            turns: AddressTurns::new(REQUESTS_MAX, WAITING_MAX),
            breaker: Mutex::default(),
            cache: Mutex::default(),
            cache_key: random().map(Secret::new).ok(),
        })
    }

    pub(super) async fn answer(&self, source: &Source, request: &AuthRequest) -> Answer {
        if request.method.is_some() {
            return Answer::NotMine;
        }
        let question = question(request);
        let key = self.cache_key.map(|key| hmac(key.expose(), &[&question]));
        let cached = key.and_then(|key| lock(&self.cache).get(&key, Instant::now()));
        let decision = match cached {
            Some(decision) => Ok(decision),
            None => self.ask(source, request, question, key).await,
        };
        match decision {
            Ok(Decision::Accept(identity)) => Answer::Accept { identity, data: None },
            Ok(Decision::Refuse(cause)) => source.refuse(ReasonCode::BadUserNameOrPassword, cause),
            Ok(Decision::NotMine) => Answer::NotMine,
            Err(Failure::Busy) => source.refuse(ReasonCode::ServerBusy, "too many logins wait"),
            Err(Failure::Failed(_)) if self.config.on_failure == OnFailure::Next => Answer::NotMine,
            Err(Failure::Failed(cause)) => source.refuse(ReasonCode::ServerUnavailable, cause),
        }
    }

    async fn ask(
        &self,
        source: &Source,
        request: &AuthRequest,
        question: Vec<u8>,
        key: Option<[u8; 32]>,
    ) -> Result<Decision, Failure> {
        let peer = request.origin.peer;
        let address = network(peer.address());
        if lock(&self.breaker).refuses(address, Instant::now()) {
            return Err(Failure::Failed("the service failed repeatedly".to_owned()));
        }
        let turn = timeout(TIMEOUT, self.turns.wait(address)).await.ok().flatten().ok_or(Failure::Busy)?;
        let answered = self.client.post(self.config.url.expose(), question.into(), None).await;
        drop(turn);
        // It is this client's question that the service does not understand, not the service that is broken.
        let is_misunderstood = answered.as_ref().is_ok_and(|(status, _)| status.is_client_error());
        let decision = answered.and_then(|(status, body)| decide(source, request, status, &body));
        if decision.is_ok() || !is_misunderstood {
            lock(&self.breaker).record(decision.is_ok(), address, Instant::now());
        }
        if let Err(cause) = &decision {
            tracing::warn!(%peer, source = %source.name, %cause, "a login service failed");
        }
        let decision = decision.map_err(Failure::Failed)?;
        if let Some(key) = key {
            lock(&self.cache).insert(key, decision.clone(), Instant::now());
        }
        Ok(decision)
    }
}

/// The request as JSON. It has no port of the peer, so that a client that comes back finds its cached decision.
fn question(request: &AuthRequest) -> Vec<u8> {
    let password = request.password.as_ref().map(Secret::expose).map(|password| match std::str::from_utf8(password) {
        Ok(text) => ("password", text.to_owned()),
        Err(_) => ("password_base64", Base64::encode_string(password)),
    });
    let origin = &request.origin;
    let certificate = origin.certificate.as_deref().map(|certificate| {
        json!({
            "fingerprint": hexadecimal(&certificate.fingerprint),
            "common_name": certificate.common_name,
            "dns_names": certificate.dns_names,
            "uris": certificate.uris,
            "emails": certificate.emails,
        })
    });
    let mut question = json!({
        "client_id": request.client_id.as_str(),
        "user": request.user_name.as_ref().map(Text::as_str),
        "peer": origin.peer.address(),
        "listener": &*request.listener,
        "transport": origin.transport.to_string(),
        "server_name": origin.server_name.as_deref(),
        "certificate": certificate,
    });
    let (key, password) = password.map_or(("password", Value::Null), |(key, text)| (key, text.into()));
    question[key] = password;
    question.to_string().into_bytes()
}

/// Reads the service's answer.
///
/// # Errors
/// The answer is a failure of the service.
fn decide(source: &Source, request: &AuthRequest, status: StatusCode, body: &Bytes) -> Result<Decision, String> {
    let content = match status {
        StatusCode::NO_CONTENT => accepted(),
        StatusCode::OK => serde_json::from_slice(body).map_err(|error| format!("the answer is no JSON: {error}"))?,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Ok(Decision::Refuse(format!("the answer is {status}")));
        }
        _ => return Err(format!("the answer is {status}")),
    };
    match content.result.as_str() {
        "accept" | "allow" => accept(source, request, content),
        "refuse" | "deny" => {
            let reason = content.reason.map(|reason| reason.chars().take(REASON_MAX).collect());
            Ok(Decision::Refuse(reason.unwrap_or_else(|| "refused by the service".to_owned())))
        }
        "not_mine" | "ignore" => Ok(Decision::NotMine),
        other => Err(format!("the result {other:?} is not known")),
    }
}

fn accepted() -> Content {
    Content { result: "accept".to_owned(), user: None, acl: None, expires_in: None, reason: None }
}

fn accept(source: &Source, request: &AuthRequest, content: Content) -> Result<Decision, String> {
    let Content { user, acl, expires_in, .. } = content;
    let user = match user {
        Some(user) => Text::try_from(user.as_str()).ok(),
        None => request.user_name.as_ref().map(Text::detach),
    };
    let Some(user) = user.filter(|user| !user.is_empty()) else {
        return Ok(Decision::Refuse("the answer names no user, nor does CONNECT".to_owned()));
    };
    let mut terms = match acl.filter(|acl| !acl.is_null()) {
        Some(acl) => granted_rules::read(&acl)?,
        None => Terms::default(),
    };
    terms.expires_at = expires_in.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    Ok(Decision::Accept(source.identity(user, terms)))
}

impl Breaker {
    fn refuses(&self, network: IpAddr, now: Instant) -> bool {
        self.open_until.is_some_and(|until| now < until) && self.failed.contains(&network)
    }

    fn record(&mut self, is_success: bool, network: IpAddr, now: Instant) {
        if is_success {
            *self = Self::default();
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failed.len() < FAILED_MAX {
            self.failed.insert(network);
        }
        if self.failures >= FAILURES_MAX && self.failed.len() >= FAILED_MIN {
            self.open_until = Some(now + OPEN_FOR);
        }
    }
}

impl Cache {
    fn get(&self, key: &[u8; 32], now: Instant) -> Option<Decision> {
        let cached = self.new.get(key).or_else(|| self.old.get(key));
        cached.filter(|cached| now < cached.until).map(|cached| cached.decision.clone())
    }

    fn insert(&mut self, key: [u8; 32], decision: Decision, now: Instant) {
        let lifetime = match &decision {
            Decision::Accept(_) => ACCEPTED_FOR,
            Decision::Refuse(_) | Decision::NotMine => REFUSED_FOR,
        };
        // The hash decides on 90 to 110 %, so that entries of one moment do not end together.
        let mut until = now + lifetime.mul_f64(0.9 + f64::from(key[0]) / f64::from(u8::MAX) * 0.2);
        if let Decision::Accept(Identity { terms: Some(terms), .. }) = &decision {
            until = terms.expires_at.map_or(until, |expires_at| until.min(expires_at));
        }
        let bytes = ENTRY_BYTES + decision.bytes();
        if self.new.len() >= CACHED_MAX / 2 || self.new_bytes + bytes > CACHED_BYTES_MAX / 2 {
            self.old = std::mem::take(&mut self.new);
            self.new_bytes = 0;
        }
        self.new_bytes += bytes;
        self.new.insert(key, Cached { decision, until });
    }
}

impl Decision {
    /// Memory in addition to the size of the value.
    fn bytes(&self) -> usize {
        match self {
            Self::Accept(Identity { user, terms, .. }) => {
                let rules = terms.as_ref().map_or(0, |terms| terms.bytes());
                user.as_ref().map_or(0, Text::len) + rules
            }
            Self::Refuse(cause) => cause.len(),
            Self::NotMine => 0,
        }
    }
}

/// A panic under these locks loses a cached decision or a count at worst.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Longest reason of a refusal that is kept, in characters.
const REASON_MAX: usize = 200;
/// Time in which a login has its turn. The request has as much.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Requests at a time, and further logins that wait for their turn.
const REQUESTS_MAX: usize = 256;
const WAITING_MAX: usize = 1024;
/// Failures in a row after which no request is made for a time.
const FAILURES_MAX: u32 = 10;
/// Networks that these have to come from at least, and networks that are remembered.
const FAILED_MIN: usize = 4;
const FAILED_MAX: usize = 16_384;
const OPEN_FOR: Duration = Duration::from_secs(5);
const ACCEPTED_FOR: Duration = Duration::from_secs(60);
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Cached decisions, and their memory.
const CACHED_MAX: usize = 100_000;
const CACHED_BYTES_MAX: usize = 64 << 20;
/// Memory of a cached decision without its texts and rules: its place in a table that may be half full.
const ENTRY_BYTES: usize = 2 * size_of::<([u8; 32], Cached)>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaker_opens_for_failed_networks_and_closes_on_success() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        let network = |number: u8| IpAddr::from([192, 0, 2, number]);
        (0..100).for_each(|_| breaker.record(false, network(1), now));
        assert!(!breaker.refuses(network(1), now), "one network alone");
        (2..4).for_each(|number| breaker.record(false, network(number), now));
        assert!(!breaker.refuses(network(1), now));
        breaker.record(false, network(4), now);
        assert!(breaker.refuses(network(1), now) && !breaker.refuses(network(1), now + OPEN_FOR));
        assert!(!breaker.refuses(network(5), now), "others ask");
        breaker.record(false, network(5), now + OPEN_FOR);
        assert!(breaker.refuses(network(1), now + OPEN_FOR), "one more failure opens it again");
        breaker.record(true, network(6), now + OPEN_FOR);
        breaker.record(false, network(1), now + OPEN_FOR);
        assert!(!breaker.refuses(network(1), now + OPEN_FOR));
    }

    #[test]
    fn cached_decisions_end_and_their_number_is_bounded() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let refuse = || Decision::Refuse(String::new());
        let key = |number: u32| {
            let mut key = [0; 32];
            key[28..].copy_from_slice(&number.to_be_bytes());
            key
        };
        cache.insert(key(0), refuse(), now);
        assert!(cache.get(&key(0), now + REFUSED_FOR.mul_f64(0.89)).is_some());
        assert!(cache.get(&key(0), now + REFUSED_FOR.mul_f64(1.11)).is_none());
        let terms = Terms { expires_at: Some(now + Duration::from_secs(1)), ..Terms::default() };
        let identity = Identity { terms: Some(terms.into()), ..Identity::anonymous() };
        cache.insert(key(1), Decision::Accept(identity), now);
        assert!(cache.get(&key(1), now).is_some() && cache.get(&key(1), now + Duration::from_secs(1)).is_none());
        for number in 0..300_000 {
            cache.insert(key(number), refuse(), now);
        }
        assert!(cache.new.len() + cache.old.len() <= CACHED_MAX);
    }

    #[test]
    fn memory_of_cached_rules_is_bounded() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let acl = json!({"pub": ["a/".repeat(2000), "b/".repeat(2000)]});
        let terms = granted_rules::read(&acl).unwrap();
        let entry = terms.bytes();
        assert!(entry > 4000 * (size_of::<usize>() * 2), "each level counts: {entry}");
        let bound = CACHED_BYTES_MAX / entry;
        for number in 0..3 * u32::try_from(bound).unwrap() {
            let identity = Identity { terms: Some(terms.clone().into()), ..Identity::anonymous() };
            let mut key = [0; 32];
            key[28..].copy_from_slice(&number.to_be_bytes());
            cache.insert(key, Decision::Accept(identity), now);
            assert!(cache.new.len() + cache.old.len() <= bound, "{number}");
            assert!(cache.get(&key, now).is_some());
        }
        assert!(cache.new.len() + cache.old.len() >= bound / 3, "{}", cache.new.len());
    }
}
