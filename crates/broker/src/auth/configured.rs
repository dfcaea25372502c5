use std::hash::RandomState;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use base64ct::{Base64UrlUnpadded, Encoding};
use bytes::Bytes;
use tenbin_codec::{ReasonCode, Text};

use super::acl::Verdict;
use super::hashing::HashWorkers;
use super::password_file::random;
use super::password_hash::verify;
use super::recent::RecentSet;
use super::scram::{Challenge, ClientFirst, METHOD, ScramSecret, hmac};
use super::settings::ListenerSettings;
use super::{
    AclAction, Action, Answer, AuthFuture, AuthRequest, Authenticator, Authorizer, Decision, Exchange, Identity,
    KnownRealm, PasswordFile, Principal, Settings, Standing,
};
use crate::values::network;

/// Authenticator and authorizer of the configuration: password files and ACL rules, per listener.
#[derive(Debug)]
pub(crate) struct Configured {
    settings: ArcSwap<Settings>,
    hashing: Arc<HashWorkers>,
    /// Keyed hashes of recently verified passwords with their entries, to skip the slow check.
    proven: RecentSet<[u8; 32]>,
    /// Key of these hashes; `None` = the system has no random numbers, and no password is remembered.
    proven_key: Option<[u8; 32]>,
    /// Hasher of the stamps, random for each process.
    stamps: RandomState,
    /// Key of the challenges for unknown users.
    decoy_key: [u8; 32],
}

impl Configured {
    /// `decoy_key` derives the challenges for unknown users. It must be the same in every run, so that these do not
    /// change.
    pub(crate) fn new(settings: Settings, decoy_key: [u8; 32]) -> Self {
        let stamps = RandomState::new();
        Self {
            settings: ArcSwap::from_pointee(settings),
            hashing: Arc::new(HashWorkers::new()),
            proven: RecentSet::new(PROVEN_MAX, PROVEN_FOR),
            proven_key: random().ok(),
            stamps,
            decoy_key,
        }
    }

    /// Replaces the settings; listeners keep their realms, and closed ones their settings. Returns the realms to store, if they have changed.
    pub(super) fn replace(&self, mut settings: Settings) -> Option<Vec<KnownRealm>> {
        let before = self.settings.load();
        settings.recall(before.realms());
        settings.keep_closed(&before);
        let changed = (settings.realms() != before.realms()).then(|| settings.realms().to_vec());
        self.settings.store(Arc::new(settings));
        changed
    }

    pub(super) fn is_open(&self) -> bool {
        self.settings.load().is_open()
    }

    /// Whether a client has the same rights through the listeners of both.
    pub(super) fn is_alike_for(&self, one: &Principal, other: &Principal) -> bool {
        let settings = self.settings.load();
        if one.listener == other.listener || settings.is_open() {
            return true;
        }
        let acl_of = |who: &Principal| settings.listeners.get(&who.listener).map(|listener| listener.acl);
        match (acl_of(one), acl_of(other)) {
            (Some(true), Some(true)) => settings.acl.is_alike_for(one, other),
            (Some(false), Some(false)) => true,
            _ => false,
        }
    }

    /// Whether the ACL does not apply to the listener of `one` but applies to that of `other`.
    pub(super) fn is_more_trusted(&self, one: &Principal, other: &Principal) -> bool {
        let settings = self.settings.load();
        let has_acl = |who: &Principal| settings.listeners.get(&who.listener).is_some_and(|listener| listener.acl);
        let is_exempt = |who: &Principal| settings.listeners.get(&who.listener).is_some_and(|listener| !listener.acl);
        !settings.is_open() && is_exempt(one) && has_acl(other)
    }

    async fn check_password(&self, listener: ListenerSettings, request: AuthRequest) -> Answer {
        let Some(passwords) = listener.passwords else {
            // Without a password file credentials prove nothing.
            return if listener.anonymous { anonymous() } else { Answer::Refuse(ReasonCode::NotAuthorized) };
        };
        if request.user_name.is_none() && request.password.is_none() {
            return if listener.anonymous { anonymous() } else { Answer::Refuse(ReasonCode::NotAuthorized) };
        }
        let user = request.user_name.clone().unwrap_or(Text::EMPTY);
        let secrets = passwords.get(user.as_str());
        let known = secrets.and_then(|secrets| secrets.hash()).map(ToOwned::to_owned);
        // Hash for unknown users too, so that the time does not reveal whether a user exists.
        let (exists, hash) = (known.is_some(), known.unwrap_or_else(|| passwords.decoy()));
        let password = request.password.clone().unwrap_or_default();
        // The proof covers the entry's hash: the proof of a changed or removed entry never matches.
        let proof = self.proven_key.map(|key| hmac(&key, &[hash.as_bytes(), &[0], &password]));
        let is_proven = exists && proof.is_some_and(|proof| self.proven.contains(&proof, Instant::now()));
        let address = network(request.origin.peer.address());
        let checked = match is_proven {
            true => Some(true),
            false => {
                let check = move |memory: &mut _| verify(&password, &hash, memory);
                self.hashing.run(&request.listener, address, check).await
            }
        };
        let Some(fits) = checked else { return Answer::Refuse(ReasonCode::ServerBusy) };
        if fits && exists {
            proof.into_iter().for_each(|proof| self.proven.insert(proof, Instant::now()));
            self.hashing.succeeded(address);
        } else {
            self.hashing.failed(address);
        }
        match secrets {
            Some(secrets) if fits && exists => {
                let stamp = secrets.stamp(&self.stamps);
                let identity = Identity { user: Some(user.detach()), realm: listener.realm, stamp };
                Answer::Accept { identity, data: None }
            }
            _ => Answer::Refuse(ReasonCode::BadUserNameOrPassword),
        }
    }

    fn begin_scram(&self, passwords: Arc<PasswordFile>, realm: Arc<str>, request: AuthRequest) -> Answer {
        let scram = Scram { passwords, realm, stamps: self.stamps.clone(), decoy_key: self.decoy_key, request };
        match scram.request.data.clone() {
            Some(data) => scram.challenge(&data),
            // A client without data yet gets an empty challenge first.
            None => Answer::Continue { data: None, exchange: Box::new(scram) },
        }
    }
}

impl Authenticator for Configured {
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_> {
        Box::pin(async move {
            let listener = self.settings.load().listeners.get(&request.listener).cloned();
            let Some(listener) = listener else { return Answer::Refuse(ReasonCode::NotAuthorized) };
            match (&request.method, listener.passwords.clone()) {
                (None, _) => self.check_password(listener, request).await,
                (Some(method), Some(passwords)) if *method == METHOD => {
                    self.begin_scram(passwords, listener.realm, request)
                }
                _ => Answer::Refuse(ReasonCode::BadAuthenticationMethod), // [MQTT-4.12.0-1]
            }
        })
    }

    fn standing(&self, principal: &Principal) -> Standing {
        let settings = self.settings.load();
        let Some(listener) = settings.listeners.get(&principal.listener) else { return Standing::Revoked };
        let identity = &principal.identity;
        let Some(user) = &identity.user else {
            return if listener.anonymous { Standing::Current } else { Standing::Revoked };
        };
        let secrets = listener.passwords.as_ref().and_then(|passwords| passwords.get(user.as_str()));
        match secrets {
            Some(secrets) if listener.realm == identity.realm => {
                let is_same = secrets.stamp(&self.stamps) == identity.stamp;
                if is_same { Standing::Current } else { Standing::Stale }
            }
            _ => Standing::Revoked,
        }
    }
}

impl Authorizer for Configured {
    fn authorize(&self, who: &Principal, action: Action<'_>) -> Decision {
        let settings = self.settings.load();
        if settings.listeners.get(&who.listener).is_some_and(|listener| !listener.acl) {
            return Decision::Allow;
        }
        let acl = &settings.acl;
        let allowed = match action {
            Action::Publish(topic) | Action::Will(topic) => {
                acl.verdict(who, AclAction::Publish, topic.as_bytes()) == Verdict::All
            }
            Action::Receive(topic) => acl.verdict(who, AclAction::Subscribe, topic.as_bytes()) == Verdict::All,
            // Forbidden topics that the filter matches are filtered message by message.
            Action::Subscribe(filter) => acl.verdict(who, AclAction::Subscribe, filter.as_bytes()) != Verdict::Nothing,
            Action::SubscribeShared(filter) => {
                acl.verdict(who, AclAction::Subscribe, filter.as_bytes()) == Verdict::All
            }
        };
        allowed.into()
    }
}

/// SCRAM exchange that waits for the client's first message.
struct Scram {
    passwords: Arc<PasswordFile>,
    realm: Arc<str>,
    stamps: RandomState,
    decoy_key: [u8; 32],
    request: AuthRequest,
}

/// SCRAM exchange that waits for the client's last message.
struct ScramProof {
    challenge: Challenge,
    /// `None` for an unknown user: then no proof is accepted.
    identity: Option<Identity>,
}

impl Scram {
    fn challenge(self, data: &[u8]) -> Answer {
        let refused = Answer::Refuse(ReasonCode::NotAuthorized);
        let (Ok(first), Ok(nonce)) = (ClientFirst::parse(data), random::<18>()) else { return refused };
        let Ok(user) = Text::try_from(&first.user[..]) else { return refused };
        // A User Name in CONNECT must be the same user.
        if self.request.user_name.as_ref().is_some_and(|name| *name != user) {
            return refused;
        }
        let secrets = self.passwords.get(&first.user);
        let scram = secrets.and_then(|secrets| Some((secrets, secrets.scram()?.clone())));
        // Compute it always, so that an unknown user takes as long as a known one.
        let (realm, name) = (self.realm.as_bytes(), first.user.as_bytes());
        let decoy = ScramSecret::decoy(&self.decoy_key, realm, name, self.passwords.shapes());
        let (identity, secret) = match scram {
            Some((secrets, secret)) => {
                let stamp = secrets.stamp(&self.stamps);
                (Some(Identity { user: Some(user), realm: self.realm, stamp }), secret)
            }
            None => (None, decoy),
        };
        let challenge = first.challenge(secret, &Base64UrlUnpadded::encode_string(&nonce));
        let data = Some(challenge.message());
        Answer::Continue { data, exchange: Box::new(ScramProof { challenge, identity }) }
    }
}

impl Exchange for Scram {
    fn step(self: Box<Self>, data: Option<Bytes>) -> AuthFuture<'static> {
        Box::pin(async move { self.challenge(&data.unwrap_or_default()) })
    }
}

impl Exchange for ScramProof {
    fn step(self: Box<Self>, data: Option<Bytes>) -> AuthFuture<'static> {
        Box::pin(async move {
            match (self.challenge.verify(&data.unwrap_or_default()), self.identity) {
                (Ok(verified), Some(identity)) => Answer::Accept { identity, data: Some(verified.server_final) },
                _ => Answer::Refuse(ReasonCode::NotAuthorized),
            }
        })
    }
}

fn anonymous() -> Answer {
    Answer::Accept { identity: Identity::anonymous(), data: None }
}

/// How long a verified password is remembered after its last use.
const PROVEN_FOR: Duration = Duration::from_secs(3600);
/// Number of remembered passwords per hour, about 50 bytes each.
const PROVEN_MAX: usize = 32_768;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::Config;
    use crate::auth::{Origin, Secrets, TransportProtocol};

    fn settings(path: &std::path::Path) -> Settings {
        let text = format!("[[listeners]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\npassword_file = {path:?}\n");
        Settings::load(&Config::parse(&text).unwrap(), true).unwrap()
    }

    async fn answer(access: &Configured, user: &'static str, password: &'static str) -> Result<(), ReasonCode> {
        let request = AuthRequest {
            client_id: Text::EMPTY,
            user_name: Some(Text::from_static(user)),
            password: Some(Bytes::from_static(password.as_bytes())),
            origin: Origin::direct(SocketAddr::from(([127, 0, 0, 1], 1)).into(), None, TransportProtocol::Tcp),
            listener: "l".into(),
            method: None,
            data: None,
            current: None,
        };
        match access.authenticate(request).await {
            Answer::Accept { .. } => Ok(()),
            Answer::Refuse(reason) => Err(reason),
            _ => panic!("no extended authentication"),
        }
    }

    #[tokio::test]
    async fn proven_password_is_not_hashed_again_until_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwords");
        let set = |user, password: &[u8]| PasswordFile::set(&path, user, &Secrets::new(password, false).unwrap());
        set("alice", b"first").unwrap();
        set("bob", b"other").unwrap();
        let access = Configured::new(settings(&path), [0; 32]);
        assert_eq!(answer(&access, "alice", "first").await, Ok(()));
        assert_eq!(answer(&access, "alice", "wrong").await, Err(ReasonCode::BadUserNameOrPassword));
        // From here on every password that needs hashing gets Server busy.
        access.hashing.close();
        assert_eq!(answer(&access, "alice", "first").await, Ok(()));
        let busy = Err(ReasonCode::ServerBusy);
        for (user, password) in [("alice", "wrong"), ("alice", ""), ("bob", "first"), ("carol", "first")] {
            assert_eq!(answer(&access, user, password).await, busy, "{user} {password}");
        }
        // The same password in a changed entry, another password, and no entry.
        for change in [Some(&b"first"[..]), Some(b"second"), None] {
            match change {
                Some(password) => set("alice", password).unwrap(),
                None => assert!(PasswordFile::delete(&path, "alice").unwrap()),
            }
            access.replace(settings(&path));
            assert_eq!(answer(&access, "alice", "first").await, busy, "{change:?}");
        }
    }
}
