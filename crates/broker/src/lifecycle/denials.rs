//! Actions that rules denied, for operators: clients of MQTT 3.1.1 are not told.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenbin_codec::Text;

use super::BrokerState;
use crate::auth::Rights;
use crate::hooks::{Denial, Events};
use crate::values::Peer;

/// Counts of denied actions since the start, by listener.
#[derive(Debug, Default)]
pub(crate) struct Denials(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_listener: BTreeMap<(Denied, Arc<str>), u64>,
    /// First and last denial, and their number, since there was none for [`QUIET`].
    recent: Option<(Instant, Instant, u64)>,
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
        let (first, last, count) = counts.recent.take().unwrap_or((now, now, 0));
        let is_over = now.saturating_duration_since(last) > QUIET;
        counts.recent = Some(if is_over { (now, now, 1) } else { (first, now, count + 1) });
    }

    /// Action, listener and count, in order.
    #[cfg(any(feature = "admin", test))]
    pub(crate) fn all(&self) -> Vec<(Denied, Arc<str>, u64)> {
        let counts = self.counts();
        let row = |((action, listener), count): (&(Denied, Arc<str>), &u64)| (*action, Arc::clone(listener), *count);
        counts.by_listener.iter().map(row).collect()
    }

    /// Number of the latest denials, and the time since the first of them; `None` = none for five minutes.
    #[cfg(any(feature = "admin", test))]
    pub(crate) fn recent(&self, now: Instant) -> Option<(u64, Duration)> {
        let (first, last, count) = self.counts().recent?;
        let is_recent = now.saturating_duration_since(last) <= QUIET;
        is_recent.then(|| (count, now.saturating_duration_since(first)))
    }
}

impl BrokerState {
    /// Counts and logs an action of a connected client that rules denied. `topic`: its topic or filter.
    #[cold]
    pub(crate) fn note_denied(
        &self,
        action: Denied,
        peer: Peer,
        rights: &Rights,
        topic: &(impl fmt::Debug + fmt::Display),
    ) {
        let who = rights.principal();
        self.count_denied(action, rights, topic, Instant::now());
        let (client, listener) = (&who.client_id, &who.listener);
        let user = who.identity.user.as_ref().map(Text::as_str);
        tracing::info!(%peer, ?client, user, ?topic, %listener, "{} denied", action.name());
    }

    /// Counts a denied action, and tells hooks.
    pub(super) fn count_denied(&self, action: Denied, rights: &Rights, topic: &dyn fmt::Display, now: Instant) {
        let who = rights.principal();
        self.denials.add(action, Arc::clone(&who.listener), now);
        if self.hooks.has(Events::DENIED) {
            let (client_id, user, topic) = (&who.client_id, who.identity.user.as_ref(), topic.to_string());
            let denial = Denial { client_id, user, listener: &who.listener, action: action.name(), topic: &topic };
            self.hooks.tell(Events::DENIED, |hooks| hooks.denied(&denial));
        }
    }
}

/// Time without denials after which the next one is the first.
const QUIET: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_denials_end_after_a_quiet_time() {
        let (denials, begin) = (Denials::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(denials.recent(begin), None);
        denials.add(Denied::Publish, "a".into(), at(0));
        denials.add(Denied::Publish, "a".into(), at(200));
        denials.add(Denied::Subscribe, "b".into(), at(400));
        assert_eq!(denials.recent(at(450)), Some((3, Duration::from_secs(450))));
        assert_eq!(denials.recent(at(701)), None);
        denials.add(Denied::Publish, "a".into(), at(800));
        assert_eq!(denials.recent(at(801)), Some((1, Duration::from_secs(1))));
        assert_eq!(denials.all(), [(Denied::Publish, "a".into(), 3), (Denied::Subscribe, "b".into(), 1)]);
    }
}
