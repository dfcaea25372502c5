use std::sync::Arc;

use arc_swap::ArcSwap;
use tenbin_codec::ReasonCode;

use super::acl::Acl;
use super::bans::{Suspect, is_banned};
#[cfg(feature = "web")]
use super::jwt;
use super::passwords::{Passwords, refuse};
use super::scram::METHOD;
use super::settings::ListenerSettings;
use super::source::{Kind, Source};
use super::{
    Action, Answer, AuthFuture, AuthRequest, Authenticator, Authorizer, Decision, Effect, Identity, KnownRealm,
    Principal, Settings, Standing,
};
use crate::config::{Ban, Bridge};

/// Authenticator and authorizer of the configuration: the sources of each listener, asked in order, and ACL rules.
#[derive(Debug)]
pub(crate) struct Configured {
    settings: ArcSwap<Settings>,
    /// Bans that are not in the configuration.
    further_bans: ArcSwap<Vec<Ban>>,
    passwords: Passwords,
}

impl Configured {
    /// `decoy_key` derives the challenges for unknown users. It must be the same in every run, so that these do not
    /// change.
    pub(crate) fn new(settings: Settings, decoy_key: [u8; 32]) -> Self {
        let (settings, further_bans) = (ArcSwap::from_pointee(settings), ArcSwap::default());
        Self { settings, further_bans, passwords: Passwords::new(decoy_key) }
    }

    /// Replaces the settings; listeners keep their realms, and closed ones their settings. Returns the realms to store, if
    /// they have changed.
    pub(super) fn replace(&self, mut settings: Settings) -> Option<Vec<KnownRealm>> {
        let before = self.settings.load();
        settings.recall(before.realms());
        settings.keep_closed(&before);
        #[cfg(feature = "web")]
        settings.take_keys_over(&before);
        let changed = (settings.realms() != before.realms()).then(|| settings.realms().to_vec());
        self.settings.store(Arc::new(settings));
        changed
    }

    pub(super) fn is_open(&self) -> bool {
        self.settings.load().is_open()
    }

    pub(super) fn is_banned(&self, suspect: &Suspect<'_>) -> bool {
        is_banned(&self.settings.load().bans, suspect) || is_banned(&self.further_bans.load(), suspect)
    }

    /// Whether the Client Identifier is for a bridge of the broker, which connects through its own listener.
    pub(super) fn is_reserved(&self, client_id: &str, listener: &str) -> bool {
        !Bridge::is_listener(listener) && self.settings.load().of_bridges.contains(client_id)
    }

    /// The bans of the configuration.
    pub(super) fn bans(&self) -> Vec<Ban> {
        self.settings.load().bans.clone()
    }

    /// Replaces the bans that are not in the configuration.
    pub(super) fn set_further_bans(&self, bans: Vec<Ban>) {
        self.further_bans.store(Arc::new(bans));
    }

    /// Name of the source that has accepted a client, see [`super::Access::source_of`].
    pub(super) fn source_of(&self, listener: &str, identity: &Identity) -> Arc<str> {
        if identity.user.is_none() {
            return "anonymous".into();
        }
        let settings = self.settings.load();
        let mut sources = settings.listeners.get(listener).into_iter().flat_map(|listener| &listener.sources);
        let source = sources.find(|source| source.realm == identity.realm);
        source.map_or_else(|| "custom".into(), |source| Arc::clone(&source.name))
    }

    /// Whether the client's realm is or was a source's realm.
    pub(super) fn has_realm(&self, principal: &Principal) -> bool {
        self.settings.load().realms().iter().any(|known| known.realm == principal.identity.realm)
    }

    /// Whether a client has the same rights through the listeners of both.
    pub(super) fn is_alike_for(&self, one: &Principal, other: &Principal) -> bool {
        let settings = self.settings.load();
        if one.listener == other.listener || settings.is_open() {
            return true;
        }
        let acl_of = |who: &Principal| settings.listeners.get(&who.listener).map(|listener| listener.acl);
        match (acl_of(one), acl_of(other)) {
            (Some(true), Some(true)) => settings.is_alike_for(one, other),
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

    /// Asks the sources of a listener in order.
    async fn ask(&self, listener: &ListenerSettings, request: AuthRequest) -> Answer {
        let of_kind = |is_wanted: fn(&Kind) -> bool| {
            let sources = listener.sources.iter().filter(|source| is_wanted(&source.kind));
            Some(sources.cloned().collect::<Vec<_>>()).filter(|sources| !sources.is_empty())
        };
        let is_method = |name: &str| request.method.as_ref().is_some_and(|method| *method == name);
        if is_method(METHOD)
            && let Some(sources) = of_kind(|kind| matches!(kind, Kind::Scram(_)))
        {
            return self.passwords.begin_scram(sources, request);
        }
        // A client without data yet is asked for its token.
        #[cfg(feature = "web")]
        if is_method(jwt::METHOD)
            && request.data.is_none()
            && let Some(sources) = of_kind(|kind| matches!(kind, Kind::Jwt(_)))
        {
            return jwt::ask(sources, request);
        }
        for source in &listener.sources {
            let answer = match &source.kind {
                Kind::Listener(user) => source.admit(user, &request),
                Kind::Certificate(certificates) => certificates.answer(source, &request),
                Kind::Passwords(file) if request.method.is_none() => self.passwords.check(source, file, &request).await,
                Kind::Passwords(_) | Kind::Scram(_) => Answer::NotMine,
                #[cfg(feature = "web")]
                Kind::Jwt(jwt) => jwt.answer(source, &request).await,
                #[cfg(feature = "web")]
                Kind::Http(http) => http.answer(source, &request).await,
            };
            if !matches!(answer, Answer::NotMine) {
                return answer;
            }
        }
        self.at_the_end(listener, &request).await
    }

    /// Answers a client that no source has taken.
    async fn at_the_end(&self, listener: &ListenerSettings, request: &AuthRequest) -> Answer {
        if request.method.is_some() {
            return refuse(ReasonCode::BadAuthenticationMethod, "unknown Authentication Method"); // [MQTT-4.12.0-1]
        }
        let is_nothing_offered = request.user_name.is_none() && request.password.is_none();
        // Without a source credentials prove nothing.
        if is_nothing_offered || listener.sources.is_empty() {
            return match listener.anonymous {
                true => Answer::Accept { identity: Identity::anonymous(), data: None },
                false => refuse(ReasonCode::NotAuthorized, "anonymous"),
            };
        }
        self.passwords.refuse_unknown(&listener.sources, request).await
    }

    /// Whether a source still knows the user.
    fn standing_at(&self, source: &Source, identity: &Identity) -> Standing {
        let Some(file) = source.password_file() else {
            // A restored identity without rules has no terms. With a stamp, a password file has accepted it.
            let is_ours = identity.terms.is_some() || identity.stamp == 0;
            let is_ours = is_ours
                && match &source.kind {
                    Kind::Listener(user) => identity.user.as_ref() == Some(user),
                    Kind::Certificate(certificates) => certificates.knows(identity.user.as_ref()),
                    _ => true,
                };
            return if is_ours { Standing::Current } else { Standing::Revoked };
        };
        let user = identity.user.as_ref().filter(|_| identity.terms.is_none());
        match user.and_then(|user| file.get(user.as_str())) {
            Some(secrets) if secrets.stamp(&self.passwords.stamps) == identity.stamp => Standing::Current,
            Some(_) => Standing::Stale,
            None => Standing::Revoked,
        }
    }
}

impl Authenticator for Configured {
    fn authenticate(&self, request: AuthRequest) -> AuthFuture<'_> {
        Box::pin(async move {
            let listener = self.settings.load().listeners.get(&request.listener).cloned();
            match listener {
                Some(listener) => self.ask(&listener, request).await,
                None => refuse(ReasonCode::NotAuthorized, "the listener is not configured"),
            }
        })
    }

    fn standing(&self, principal: &Principal) -> Standing {
        let settings = self.settings.load();
        let Some(listener) = settings.listeners.get(&principal.listener) else { return Standing::Revoked };
        let identity = &principal.identity;
        if identity.user.is_none() {
            return if listener.anonymous { Standing::Current } else { Standing::Revoked };
        }
        let of_realm = listener.sources.iter().filter(|source| source.realm == identity.realm);
        let standings = of_realm.map(|source| self.standing_at(source, identity));
        standings.fold(Standing::Revoked, |best, standing| match (best, standing) {
            (Standing::Current, _) | (_, Standing::Current) => Standing::Current,
            (Standing::Stale, _) | (_, Standing::Stale) => Standing::Stale,
            _ => Standing::Revoked,
        })
    }
}

impl Authorizer for Configured {
    fn authorize(&self, who: &Principal, action: Action<'_>) -> Decision {
        let settings = self.settings.load();
        let listener = settings.listeners.get(&who.listener);
        if listener.is_none_or(|listener| listener.acl) {
            return settings.allows(listener, who, action).into();
        }
        // Only rules of its identity apply.
        let is_allowed =
            who.identity.terms.is_none() || Acl { rules: Vec::new(), default: Effect::Allow }.allows(who, action);
        is_allowed.into()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tenbin_codec::Text;

    use super::*;
    use crate::Config;
    use crate::auth::{Origin, PasswordFile, Secrets, TransportProtocol};

    fn settings(path: &std::path::Path) -> Settings {
        let text = format!("[[listeners]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\npassword_file = {path:?}\n");
        Settings::load(&Config::parse(&text).unwrap(), true).unwrap()
    }

    async fn answer(access: &Configured, user: &'static str, password: &'static str) -> Result<(), ReasonCode> {
        let request = AuthRequest {
            client_id: Text::EMPTY,
            user_name: Some(Text::from_static(user)),
            password: Some(password.into()),
            origin: Origin::direct(SocketAddr::from(([127, 0, 0, 1], 1)).into(), None, TransportProtocol::Tcp),
            listener: "l".into(),
            method: None,
            data: None,
            current: None,
        };
        assert!(format!("{request:?}").contains("password: Some(***)"), "{request:?}");
        match access.authenticate(request).await {
            Answer::Accept { .. } => Ok(()),
            Answer::RefuseLogin(refusal) => Err(refusal.reason),
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
        access.passwords.hashing.close();
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
