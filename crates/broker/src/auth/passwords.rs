//! Logins by password files: User Name and Password, and SCRAM-SHA-256.

use std::hash::RandomState;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64ct::{Base64UrlUnpadded, Encoding};
use tenbin_codec::{ReasonCode, Secret, Text};

use super::hashing::HashWorkers;
use super::password_file::random;
use super::password_hash::verify;
use super::recent::RecentSet;
use super::scram::{Challenge, ClientFirst, ScramSecret, hmac};
use super::source::{Kind, Source};
use super::{Answer, AuthFuture, AuthRequest, Exchange, Identity, LoginRefusal, PasswordFile};
use crate::values::network;

/// State that checks of passwords share. It outlives a reload.
#[derive(Debug)]
pub(super) struct Passwords {
    pub(super) hashing: Arc<HashWorkers>,
    /// Keyed hashes of recently verified passwords with their entries, to skip the slow check.
    proven: RecentSet<[u8; 32]>,
    /// Key of these hashes; `None` = the system has no random numbers, and no password is remembered.
    proven_key: Option<Secret<[u8; 32]>>,
    /// Hasher of the stamps, random for each process.
    pub(super) stamps: RandomState,
    /// Key of the challenges for unknown users.
    decoy_key: Secret<[u8; 32]>,
}

impl Passwords {
    pub(super) fn new(decoy_key: [u8; 32]) -> Self {
        Self {
            hashing: Arc::new(HashWorkers::new()),
            proven: RecentSet::new(PROVEN_MAX, PROVEN_FOR),
            proven_key: random().map(Secret::new).ok(),
            stamps: RandomState::new(),
            decoy_key: Secret::new(decoy_key),
        }
    }

    /// Checks User Name and Password. [`Answer::NotMine`] if the file has no hash of the user's password.
    pub(super) async fn check(&self, source: &Source, file: &PasswordFile, request: &AuthRequest) -> Answer {
        let user = request.user_name.clone().unwrap_or(Text::EMPTY);
        let secrets = file.get(user.as_str());
        let Some((secrets, hash)) = secrets.and_then(|secrets| Some((secrets, secrets.hash()?))) else {
            return Answer::NotMine;
        };
        let password = request.password.clone().unwrap_or_default();
        // The proof covers the entry's hash: the proof of a changed or removed entry never matches.
        let proof = self.proven_key.map(|key| hmac(key.expose(), &[hash.as_bytes(), &[0], password.expose()]));
        let is_proven = proof.is_some_and(|proof| self.proven.contains(&proof, Instant::now()));
        let fits = if is_proven { Some(true) } else { self.hash(request, password, hash.to_owned()).await };
        let address = network(request.origin.peer.address());
        match fits {
            Some(true) => {
                proof.into_iter().for_each(|proof| self.proven.insert(proof, Instant::now()));
                self.hashing.succeeded(address);
                let (realm, stamp) = (Arc::clone(&source.realm), secrets.stamp(&self.stamps));
                let identity = Identity { user: Some(user.detach()), realm, stamp, terms: None };
                Answer::Accept { identity, data: None }
            }
            Some(false) => {
                self.hashing.failed(address);
                source.refuse(ReasonCode::BadUserNameOrPassword, "wrong password")
            }
            None => source.refuse(ReasonCode::ServerBusy, "passwords cannot be checked now"),
        }
    }

    /// Refuses a user whom no source knows, after as much time as the check of a password takes.
    pub(super) async fn refuse_unknown(&self, sources: &[Source], request: &AuthRequest) -> Answer {
        let file = sources.iter().find_map(|source| match &source.kind {
            Kind::Passwords(file) => Some(file),
            _ => None,
        });
        if let Some(file) = file {
            let password = request.password.clone().unwrap_or_default();
            if self.hash(request, password, file.decoy()).await.is_none() {
                return refuse(ReasonCode::ServerBusy, "passwords cannot be checked now");
            }
        }
        self.hashing.failed(network(request.origin.peer.address()));
        refuse(ReasonCode::BadUserNameOrPassword, "unknown user")
    }

    async fn hash(&self, request: &AuthRequest, password: Secret, hash: String) -> Option<bool> {
        let check = move |memory: &mut _| verify(password.expose(), &hash, memory);
        self.hashing.run(&request.listener, network(request.origin.peer.address()), check).await
    }

    /// Begins SCRAM with all `sources` of a listener that have secrets for it; there is at least one.
    pub(super) fn begin_scram(&self, sources: Vec<Source>, request: AuthRequest) -> Answer {
        let scram = Scram { sources, stamps: self.stamps.clone(), decoy_key: self.decoy_key, request };
        match scram.request.data.clone() {
            Some(data) => scram.challenge(data.expose()),
            // A client without data yet gets an empty challenge first.
            None => Answer::Continue { data: None, exchange: Box::new(scram) },
        }
    }
}

/// Refuses a client that no source has taken.
pub(super) fn refuse(reason: ReasonCode, cause: &'static str) -> Answer {
    Answer::RefuseLogin(Box::new(LoginRefusal { reason, source: Arc::default(), cause: cause.into(), user: None }))
}

/// SCRAM exchange that waits for the client's first message.
struct Scram {
    sources: Vec<Source>,
    stamps: RandomState,
    decoy_key: Secret<[u8; 32]>,
    request: AuthRequest,
}

/// SCRAM exchange that waits for the client's last message.
struct ScramProof {
    challenge: Challenge,
    source: Source,
    user: Text,
    /// `None` for an unknown user: then no proof is accepted.
    identity: Option<Identity>,
}

impl Scram {
    fn challenge(mut self, data: &[u8]) -> Answer {
        let illegal = refuse(ReasonCode::NotAuthorized, "illegal SCRAM message");
        let (Ok(first), Ok(nonce)) = (ClientFirst::parse(data), random::<18>()) else { return illegal };
        let Ok(user) = Text::try_from(&first.user[..]) else { return illegal };
        // A User Name in CONNECT must be the same user.
        if self.request.user_name.as_ref().is_some_and(|name| *name != user) {
            return refuse(ReasonCode::NotAuthorized, "two user names");
        }
        let knows = |source: &Source| source.password_file()?.get(&first.user)?.scram().map(|_| ());
        let index = self.sources.iter().position(|source| knows(source).is_some()).unwrap_or_default();
        let source = self.sources.swap_remove(index);
        let Some(file) = source.password_file() else { return illegal };
        let secrets = file.get(&first.user);
        let scram = secrets.and_then(|secrets| Some((secrets, secrets.scram()?.clone())));
        // Compute it always, so that an unknown user takes as long as a known one.
        let (realm, name) = (source.realm.as_bytes(), first.user.as_bytes());
        let decoy = ScramSecret::decoy(self.decoy_key.expose(), realm, name, file.shapes());
        let (identity, secret) = match scram {
            Some((secrets, secret)) => {
                let (realm, stamp) = (Arc::clone(&source.realm), secrets.stamp(&self.stamps));
                (Some(Identity { user: Some(user.clone()), realm, stamp, terms: None }), secret)
            }
            None => (None, decoy),
        };
        let challenge = first.challenge(secret, &Base64UrlUnpadded::encode_string(&nonce));
        let data = Some(challenge.message().into());
        Answer::Continue { data, exchange: Box::new(ScramProof { challenge, source, user, identity }) }
    }
}

impl Exchange for Scram {
    fn step(self: Box<Self>, data: Option<Secret>) -> AuthFuture<'static> {
        Box::pin(async move { self.challenge(data.unwrap_or_default().expose()) })
    }
}

impl Exchange for ScramProof {
    fn step(self: Box<Self>, data: Option<Secret>) -> AuthFuture<'static> {
        Box::pin(async move {
            match (self.challenge.verify(data.unwrap_or_default().expose()), self.identity) {
                (Ok(verified), Some(identity)) => Answer::Accept { identity, data: Some(verified.server_final.into()) },
                (_, Some(_)) => self.source.refuse_user(self.user, ReasonCode::NotAuthorized, "wrong proof"),
                (_, None) => self.source.refuse_user(self.user, ReasonCode::NotAuthorized, "unknown user"),
            }
        })
    }
}

/// How long a verified password is remembered after its last use.
const PROVEN_FOR: Duration = Duration::from_secs(3600);
/// Number of remembered passwords per hour, about 50 bytes each.
const PROVEN_MAX: usize = 32_768;
