//! Logins by JSON Web Tokens (RFC 7519): the Password of CONNECT, or Authentication Method `JWT`.

mod der;
mod key;
mod key_set;
mod token;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tenbin_codec::{ReasonCode, Secret, Text};

use self::key::Key;
use self::key_set::{Found, KeySet};
use self::token::Token;
use super::source::{Kind, Source};
use super::{Answer, AuthFuture, AuthRequest, Exchange, Terms, granted_rules};
use crate::config::JwtSource;

/// Keys and required claims of one source.
#[derive(Debug)]
pub(super) struct Jwt {
    config: JwtSource,
    keys: Arc<KeySet>,
}

impl Jwt {
    /// # Errors
    /// A file cannot be read or has the wrong content; the text names its key.
    pub(super) fn load(config: &JwtSource) -> Result<Self, String> {
        Ok(Self { keys: Arc::new(KeySet::load(config)?), config: config.clone() })
    }

    /// The source with the fetched keys of `old`, if both fetch them from one place.
    pub(super) fn with_keys_of(&self, old: &Self) -> Option<Self> {
        let is_same = self.config.jwks == old.config.jwks && self.config.ca == old.config.ca;
        let is_fetched = is_same && self.config.jwks_url().is_some();
        is_fetched.then(|| Self { keys: Arc::new(self.keys.with_keys_of(&old.keys)), config: self.config.clone() })
    }

    pub(super) async fn answer(&self, source: &Source, request: &AuthRequest) -> Answer {
        let token = match &request.method {
            Some(method) if *method != METHOD => return Answer::NotMine,
            Some(_) => &request.data,
            None => &request.password,
        };
        self.check(source, request, token.as_ref()).await
    }

    async fn check(&self, source: &Source, request: &AuthRequest, token: Option<&Secret>) -> Answer {
        let Some(token) = token.and_then(|token| Token::parse(token.expose())) else { return Answer::NotMine };
        let refuse = |cause: &'static str| source.refuse(ReasonCode::NotAuthorized, cause);
        let is_issuer = self.config.issuer.as_ref().is_some_and(|issuer| token.claim("iss") == Some(issuer.as_str()));
        let keys = match self.keys.find(token.key_id.as_deref(), Instant::now()).await {
            Found::Keys(keys) => keys,
            Found::NoSuchKey if is_issuer => return refuse("unknown key"),
            Found::NoSuchKey => return Answer::NotMine,
            Found::Unavailable if self.config.issuer.is_some() && !is_issuer => return Answer::NotMine,
            Found::Unavailable => return source.refuse(ReasonCode::ServerUnavailable, "the keys are not available"),
        };
        // Without a Key ID on either side, the issuer tells whose the token is.
        let is_named = token.key_id.is_some() && keys.iter().all(|key| key.id == token.key_id);
        if !is_named && self.config.issuer.is_some() && !is_issuer {
            return Answer::NotMine;
        }
        let keys = keys.iter().filter(|key| token.has_algorithm_of(key)).collect::<Vec<_>>();
        // Each check takes the time of the other clients of this thread, and anybody may send such a token.
        if keys.len() > KEYS_TRIED_MAX {
            return refuse("too many keys fit: none has the kid of the token");
        }
        if !keys.iter().any(|key| token.is_signed_by(key)) {
            return refuse("wrong algorithm or signature");
        }
        self.accept(source, request, &token).unwrap_or_else(refuse)
    }

    /// Checks the claims of a token whose signature is right.
    fn accept(&self, source: &Source, request: &AuthRequest, token: &Token) -> Result<Answer, &'static str> {
        let JwtSource { user_claim, issuer, audience, must, require_expiry, .. } = &self.config;
        let leeway = Duration::from_secs(self.config.leeway_seconds());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let expiry = token.time("exp")?;
        if expiry.is_some_and(|at| at + leeway <= now) {
            return Err("expired");
        }
        if expiry.is_none() && *require_expiry {
            return Err("no exp");
        }
        if token.time("nbf")?.is_some_and(|at| at > now + leeway) {
            return Err("not valid yet");
        }
        if issuer.as_ref().is_some_and(|issuer| token.claim("iss") != Some(issuer.as_str())) {
            return Err("wrong iss");
        }
        if audience.as_ref().is_some_and(|audience| !token.has_audience(audience)) {
            return Err("wrong aud");
        }
        if !must.iter().all(|(claim, value)| is_equal(token.claims.get(claim), &filled(value, request))) {
            return Err("a required claim has another value");
        }
        let user = match token.claims.get(user_claim) {
            Some(Value::String(user)) if !user.is_empty() => Text::try_from(user.as_str()).ok(),
            Some(Value::Number(user)) => Text::try_from(user.to_string().as_str()).ok(),
            _ => None,
        };
        let user = user.ok_or("no user")?;
        let mut terms = match token.claims.get("acl") {
            Some(acl) => granted_rules::read(acl)?,
            None => Terms::default(),
        };
        // A token in its leeway has the rest of it.
        let until = expiry.map(|at| if at > now { at - now } else { at + leeway - now });
        terms.expires_at = until.and_then(|until| Instant::now().checked_add(until));
        Ok(Answer::Accept { identity: source.identity(user, terms), data: None })
    }
}

/// Asks a client of Authentication Method [`METHOD`] for its token, which is for one of `sources`.
pub(super) fn ask(sources: Vec<Source>, request: AuthRequest) -> Answer {
    Answer::Continue { data: None, exchange: Box::new(Asked { sources, request }) }
}

/// The client has been asked for its token.
struct Asked {
    /// Those of this kind, in order.
    sources: Vec<Source>,
    request: AuthRequest,
}

impl Exchange for Asked {
    fn step(self: Box<Self>, data: Option<Secret>) -> AuthFuture<'static> {
        Box::pin(async move {
            let Self { sources, request } = *self;
            let mut answer = Answer::NotMine;
            for source in &sources {
                let Kind::Jwt(jwt) = &source.kind else { continue };
                answer = match jwt.check(source, &request, data.as_ref()).await {
                    Answer::NotMine => source.refuse(ReasonCode::NotAuthorized, "no token of this source"),
                    answer => return answer,
                };
            }
            answer
        })
    }
}

/// A required value with the client's names in place of `%c` and `%u`. `None`: the client has no User Name.
fn filled(value: &str, request: &AuthRequest) -> Option<String> {
    let mut filled = String::new();
    let mut rest = value;
    while let Some(at) = rest.find('%') {
        let name = match rest.as_bytes().get(at + 1) {
            Some(b'c') => Some(request.client_id.as_str()),
            Some(b'u') => Some(request.user_name.as_ref()?.as_str()),
            _ => None,
        };
        filled.push_str(&rest[..at]);
        filled.push_str(name.unwrap_or("%"));
        rest = &rest[at + if name.is_some() { 2 } else { 1 }..];
    }
    filled.push_str(rest);
    Some(filled)
}

fn is_equal(claim: Option<&Value>, wanted: &Option<String>) -> bool {
    match (claim, wanted) {
        (Some(Value::String(text)), Some(wanted)) => text == wanted,
        (Some(other @ (Value::Number(_) | Value::Bool(_))), Some(wanted)) => {
            serde_json::from_str::<Value>(wanted).is_ok_and(|wanted| wanted == *other)
        }
        _ => false,
    }
}

/// Name of the Authentication Method.
pub(super) const METHOD: &str = "JWT";
/// Most signatures that are checked for one token.
const KEYS_TRIED_MAX: usize = 4;

#[cfg(test)]
mod tests;
