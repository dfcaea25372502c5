//! Actions that rules or bounds refused, for operators: clients of MQTT 3.1.1 are not told.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenbin_codec::Text;

use super::state::Operations;
use crate::auth::Rights;
use crate::hooks::{Denial, Events};
use crate::values::{Bound, Peer, Recent};

/// Counts of denied actions since the start, by listener.
#[derive(Debug, Default)]
pub(crate) struct Denials(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_listener: BTreeMap<(Denied, Arc<str>), u64>,
    recent: Recent,
}

/// A denied action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Denied {
    Publish,
    Subscribe,
    Will,
}

impl Denied {
    /// Name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
            Self::Will => "will",
        }
    }
}

impl Denials {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, action: Denied, listener: Arc<str>, now: Instant) {
        let mut counts = self.counts();
        *counts.by_listener.entry((action, listener)).or_default() += 1;
        counts.recent.add(1, now);
    }

    /// Action, listener and count, in order.
    pub(crate) fn all(&self) -> Vec<(Denied, Arc<str>, u64)> {
        let counts = self.counts();
        let row = |((action, listener), count): (&(Denied, Arc<str>), &u64)| (*action, Arc::clone(listener), *count);
        counts.by_listener.iter().map(row).collect()
    }

    /// Number of the latest denials, and the time since the first of them; `None` = none for five minutes.
    pub(crate) fn recent(&self, now: Instant) -> Option<(u64, Duration)> {
        self.counts().recent.at(now)
    }
}

impl Operations {
    /// Counts and logs an action of a connected client that rules denied. `topic`: its topic or filter; `told`: the client
    /// gets the reason.
    #[cold]
    pub(crate) fn note_denied(
        &self,
        action: Denied,
        peer: Peer,
        rights: &Rights,
        topic: &(impl fmt::Debug + fmt::Display),
        told: bool,
    ) {
        let who = rights.principal();
        self.count_denied(action, rights, topic, Instant::now());
        let (client, listener) = (&who.client_id, &who.listener);
        let user = who.identity.user.as_ref().map(Text::as_str);
        tracing::info!(%peer, ?client, user, ?topic, %listener, told, "{} denied", action.name());
    }

    /// Counts a denied action, and tells hooks.
    pub(super) fn count_denied(&self, action: Denied, rights: &Rights, topic: &dyn fmt::Display, now: Instant) {
        let who = rights.principal();
        self.denials.add(action, Arc::clone(&who.listener), now);
        let user = who.identity.user.as_ref().map_or("anonymous", Text::as_str);
        let (action_name, client, listener) = (action.name(), &who.client_id, &who.listener);
        let told = format!("{action_name}: {client}, user {user}, at listener {listener}: {topic}");
        self.chronicle.note("denied", &told);
        if self.hooks.has(Events::DENIED) {
            let (client_id, user, topic) = (&who.client_id, who.identity.user.as_ref(), topic.to_string());
            let denial = Denial { client_id, user, listener: &who.listener, action: action.name(), topic: &topic };
            self.hooks.tell(Events::DENIED, |hooks| hooks.denied(&denial));
        }
    }

    /// Counts and logs a message of a client that a bound refused. `told`: the client gets the reason.
    #[cold]
    pub(crate) fn note_bound(&self, bound: Bound, peer: Peer, client: &Text, told: bool) {
        self.metrics.bounds.hit(bound, 1, Instant::now());
        tracing::info!(%peer, ?client, limit = bound.key(), told, "message refused: limit reached");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_are_counted_by_action_and_listener() {
        let (denials, now) = (Denials::default(), Instant::now());
        assert_eq!(denials.recent(now), None);
        for (action, listener) in [(Denied::Publish, "a"), (Denied::Subscribe, "b"), (Denied::Publish, "a")] {
            denials.add(action, listener.into(), now);
        }
        assert_eq!(denials.recent(now), Some((3, Duration::ZERO)));
        assert_eq!(denials.all(), [(Denied::Publish, "a".into(), 2), (Denied::Subscribe, "b".into(), 1)]);
    }
}
