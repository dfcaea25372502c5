//! Cache of the routes that a publisher's messages took.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tenbin_codec::TopicName;

use super::Router;
use super::matches::MatchSet;
use super::versions::Part;
use crate::memory::{Account, Charge, Kind};

/// Matches of the topics that a connection published to lately, valid while no subscription changes.
#[derive(Debug, Default)]
pub(super) struct RouteCache {
    /// Version for changes that concern all routes.
    version: u64,
    /// Index in `routes` by topic.
    places: FxHashMap<Box<[u8]>, usize>,
    routes: Vec<KnownRoute>,
    /// Index of the route found last, which is mostly the next one too.
    last: usize,
    /// Number of targets in all routes, which determines their memory.
    targets: usize,
    /// Charge for the whole cache; `None` for the broker's own.
    charge: Option<Charge>,
    /// Matches of the last topic that is not cached.
    uncached: MatchSet,
}

/// The matches of one topic.
#[derive(Debug)]
pub(super) struct KnownRoute {
    pub(super) topic: TopicName,
    pub(super) matches: MatchSet,
    part: Part,
    /// Version of the part, read before the matches were made.
    version: u64,
}

impl KnownRoute {
    fn new(router: &Router, topic: &TopicName) -> Self {
        let part = router.index.part_of(topic);
        let version = router.index.versions().of(part);
        Self { topic: topic.detach(), matches: router.matches(topic), part, version }
    }

    fn bytes(&self) -> usize {
        ROUTE_BYTES + 2 * self.topic.as_bytes().len() + self.matches.bytes()
    }

    #[inline]
    fn holds(&self, router: &Router) -> bool {
        router.index.versions().of(self.part) == self.version
    }
}

impl RouteCache {
    pub(super) fn new(account: Option<Arc<Account>>) -> Self {
        let charge = account.map(|account| Charge::nothing(&account, Kind::Routes));
        Self { charge, ..Self::default() }
    }

    pub(super) fn find(&mut self, router: &Router, topic: &TopicName) -> &MatchSet {
        if topic.as_bytes().len() > TOPIC_BYTES_MAX {
            self.uncached = router.matches(topic);
            return &self.uncached;
        }
        match self.place_of(router, topic.as_bytes()) {
            Some(place) if self.routes[place].holds(router) => &self.routes[place].matches,
            Some(place) => self.renew(place, KnownRoute::new(router, topic)),
            None => self.remember(KnownRoute::new(router, topic)),
        }
    }

    /// Returns a valid cached route, without adding one.
    #[inline]
    pub(super) fn find_known(&mut self, router: &Router, topic: &[u8]) -> Option<&KnownRoute> {
        let place = self.place_of(router, topic)?;
        Some(&self.routes[place]).filter(|route| route.holds(router))
    }

    #[inline]
    fn place_of(&mut self, router: &Router, topic: &[u8]) -> Option<usize> {
        let version = router.index.versions().of_all();
        if version != self.version {
            self.clear();
            self.version = version;
        }
        if self.routes.get(self.last).is_none_or(|route| route.topic.as_bytes() != topic) {
            self.last = *self.places.get(topic)?;
        }
        Some(self.last)
    }

    fn remember(&mut self, route: KnownRoute) -> &MatchSet {
        let targets = route.matches.targets.len();
        if self.routes.len() >= ROUTES_MAX || self.targets + targets > TARGETS_MAX {
            self.clear();
        }
        let bytes = route.bytes();
        if self.charge.as_mut().is_some_and(|charge| charge.resize(charge.bytes() + bytes).is_err()) {
            self.clear();
            self.uncached = route.matches;
            return &self.uncached;
        }
        let place = self.routes.len();
        self.targets += targets;
        self.places.insert(route.topic.as_bytes().into(), place);
        self.routes.push(route);
        &self.routes[place].matches
    }

    /// Replaces an outdated route.
    fn renew(&mut self, place: usize, route: KnownRoute) -> &MatchSet {
        let old = &self.routes[place];
        let targets = self.targets - old.matches.targets.len() + route.matches.targets.len();
        let (old, new) = (old.bytes(), route.bytes());
        let has_room = |charge: &mut Charge| charge.resize(charge.bytes().saturating_sub(old) + new).is_ok();
        if targets > TARGETS_MAX || !self.charge.as_mut().is_none_or(has_room) {
            self.clear();
            return self.remember(route);
        }
        self.targets = targets;
        self.routes[place] = route;
        &self.routes[place].matches
    }

    fn clear(&mut self) {
        // The new tables are empty, so their capacity leaves with the charge.
        (self.places, self.routes) = Default::default();
        self.targets = 0;
        self.charge.iter_mut().for_each(|charge| charge.set(0));
    }
}

/// Longest topic in the cache, in bytes. The cache has two copies of each topic, so longer ones cost more memory than
/// the look-up saves time.
const TOPIC_BYTES_MAX: usize = 256;
/// Bytes of a cached route beside its topic, targets and groups: its places in both tables.
const ROUTE_BYTES: usize = 176;
/// Limits per connection: cached topics, and targets in all of them, unless a single topic has more.
const ROUTES_MAX: usize = 256;
const TARGETS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::values::Identity;

    #[test]
    fn routes_of_long_topics_are_not_cached() {
        let (router, memory) = (Router::for_tests(), Memory::unlimited());
        let account = memory.account_of(&Identity::anonymous(), None);
        let mut cache = RouteCache::new(Some(account));
        for number in 0..ROUTES_MAX {
            for length in [4, TOPIC_BYTES_MAX, TOPIC_BYTES_MAX + 1, 60_000] {
                let topic = TopicName::try_from(&format!("{number:0>length$}")[..]).unwrap();
                cache.find(&router, &topic);
            }
        }
        assert_eq!(cache.charge.as_ref().map(Charge::bytes), Some(memory.used()), "the cache is charged");
        assert!(memory.used() > 0);
        let bytes = cache.routes.iter().map(|route| 2 * route.topic.as_bytes().len()).sum::<usize>();
        assert!(!cache.routes.is_empty(), "short topics are cached");
        assert!(bytes <= ROUTES_MAX * 2 * TOPIC_BYTES_MAX, "{bytes} bytes of topics");
    }
}
