use std::ops::{Bound, ControlFlow};
use std::sync::PoisonError;
use std::time::Instant;

use super::{Cursor, LEVEL_BYTES, RetainedNode, RetainedStore, Tree};

impl RetainedStore {
    /// Removes expired messages, visiting at most about `visits` topic levels. Continues where the last call ended, and
    /// does nothing while no message can have expired.
    ///
    /// Returns whether there is more to visit.
    pub(in crate::router) fn sweep(&self, visits: usize, now: Instant) -> bool {
        let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        let mut expired = Vec::new();
        if tree.sweep_at.is_some() || tree.may_have_expired(now) {
            expired = tree.sweep(visits, now);
            self.unretain(&expired);
        }
        let is_more = tree.sweep_at.is_some();
        drop(tree);
        self.tell_expired(&expired);
        is_more
    }
}

impl Tree {
    /// Removes all expired messages, and returns their topics. It walks the whole tree, so it runs only if room is
    /// needed and a message may have expired.
    pub(super) fn purge(&mut self, now: Instant) -> Vec<Box<[u8]>> {
        self.sweep_at = None;
        self.sweep(usize::MAX, now)
    }

    pub(super) fn may_have_expired(&self, now: Instant) -> bool {
        self.first_expiry.is_some_and(|first| first <= now)
    }

    /// Visits up to `visits` nodes, and returns the topics of the removed messages.
    fn sweep(&mut self, visits: usize, now: Instant) -> Vec<Box<[u8]>> {
        let from = self.sweep_at.take();
        if from.is_none() {
            self.next_first_expiry = None;
        }
        let mut sweep = Sweep { now, visits, gone: Vec::new(), bytes: 0, kept_until: None, path: Vec::new() };
        let is_over = sweep.visit(&mut self.root, from.as_ref().map(|from| &from.0[..]), true).is_continue();
        self.messages -= sweep.gone.len();
        self.bytes -= sweep.bytes;
        self.next_first_expiry = earlier(self.next_first_expiry, sweep.kept_until);
        if is_over {
            self.first_expiry = self.next_first_expiry;
        } else {
            sweep.path.reverse();
            self.sweep_at = Some(Cursor(sweep.path));
        }
        sweep.gone
    }
}

/// A walk through a part of the tree: a node before its children, children by name.
struct Sweep {
    now: Instant,
    /// Nodes left to visit.
    visits: usize,
    /// Topics of the removed messages.
    gone: Vec<Box<[u8]>>,
    bytes: usize,
    /// Earliest expiry of the remaining messages.
    kept_until: Option<Instant>,
    /// Position where the visits were used up, deepest level first.
    path: Vec<Box<[u8]>>,
}

impl Sweep {
    /// Visits `node` and the nodes below it, and removes levels that become empty.
    fn visit(&mut self, node: &mut RetainedNode, from: Option<&[Box<[u8]>]>, is_root: bool) -> ControlFlow<()> {
        if from.is_none() {
            self.look_at(node);
            self.visits = self.visits.saturating_sub(1);
            if self.visits == 0 && !is_root {
                return ControlFlow::Break(());
            }
        }
        let from = from.and_then(<[_]>::split_first);
        let first = from.map_or(Bound::Unbounded, |(first, _)| Bound::Included(&first[..]));
        let (mut empty, mut flow) = (Vec::new(), ControlFlow::Continue(()));
        for (name, child) in node.children.range_mut::<[u8], _>((first, Bound::Unbounded)) {
            // The broker's own messages are not counted, and do not expire.
            if is_root && **name == *b"$SYS" {
                continue;
            }
            let below = from.filter(|(first, _)| *first == name).map(|(_, below)| below);
            flow = self.visit(child, below, false);
            if child.message.is_none() && child.children.is_empty() {
                empty.push(name.clone());
            }
            if flow.is_break() {
                self.path.push(name.clone());
                break;
            }
        }
        self.bytes += empty.len() * LEVEL_BYTES;
        for name in empty {
            node.children.remove(&name);
        }
        flow
    }

    fn look_at(&mut self, node: &mut RetainedNode) {
        let Some(at) = node.message.as_ref().and_then(|message| message.expires_at) else { return };
        if at > self.now {
            self.kept_until = earlier(self.kept_until, Some(at));
        } else if let Some(message) = node.message.take() {
            self.bytes += message.bytes();
            self.gone.push(message.template.topic().into());
        }
    }
}

/// Returns the earlier of both, or the only one.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;
    use tenbin_session::Publication;

    use super::super::tests::{publication, store};
    use super::*;

    #[test]
    fn sweep_removes_expired_messages_in_small_steps() {
        let (store, now) = (store(10_000, 1 << 30), Instant::now());
        let expires_at = Some(now + Duration::from_secs(1));
        for number in 0..500 {
            store.set(&Publication { expires_at, ..publication(&format!("gone/{number}/x"), "1") }, now).unwrap();
            store.set(&publication(&format!("stays/{number}"), "1"), now).unwrap();
        }
        assert!(!store.sweep(100, now), "nothing has expired yet");
        let later = now + Duration::from_secs(1);
        let mut steps = 0;
        loop {
            let before = store.totals().0;
            let is_more = store.sweep(100, later);
            assert!(before - store.totals().0 <= 100);
            steps += 1;
            if !is_more {
                break;
            }
        }
        // There are about 1500 levels, and each step visits the levels that lead to its start again.
        assert!((10..30).contains(&steps), "{steps}");
        assert_eq!(store.totals().0, 500);
        assert!(!store.tree.read().unwrap().root.children.contains_key(&b"gone"[..]));
        assert!(!store.sweep(100, later + Duration::from_secs(9)), "what stays does not expire");
    }

    #[test]
    fn message_added_behind_a_sweep_is_found_by_the_next() {
        let (store, now) = (store(100, 1 << 20), Instant::now());
        let expiring = |topic, seconds| Publication {
            expires_at: Some(now + Duration::from_secs(seconds)),
            ..publication(topic, "1")
        };
        for topic in ["b", "c"] {
            store.set(&expiring(topic, 1), now).unwrap();
        }
        let at = |seconds| now + Duration::from_secs(seconds);
        assert!(store.sweep(2, at(1)), "b");
        store.set(&expiring("a", 3), at(1)).unwrap();
        while store.sweep(2, at(1)) {}
        assert_eq!(store.totals().0, 1);
        assert!(!store.sweep(100, at(2)));
        store.sweep(100, at(3));
        assert_eq!(store.totals(), (0, 0));
    }

    proptest! {
        /// Adds messages while a sweep is in progress. Afterwards the store must have the totals of a fresh store that
        /// never held the expired ones, to the byte. 256 cases.
        #[test]
        fn sweep_removes_exactly_the_expired_messages(
            steps in prop::collection::vec(("[ab$](/[ab]?){0,3}", prop::option::weighted(0.6, 1u64..5)), 1..60),
            visits in 1usize..8,
        ) {
            let (store, start) = (store(1000, 1 << 30), Instant::now());
            let at = |seconds| start + Duration::from_secs(seconds);
            let mut model = BTreeMap::new();
            for (number, (topic, expiry)) in steps.iter().enumerate() {
                let expires_at = expiry.map(at);
                store.set(&Publication { expires_at, ..publication(topic, "x") }, start).unwrap();
                model.insert(topic, expires_at);
                store.sweep(visits, at(number as u64 % 4));
            }
            while store.sweep(visits, at(3)) {}
            store.sweep(usize::MAX, at(3));
            let fresh = RetainedStore::new(store.limits, None, Arc::default());
            for (topic, expires_at) in model {
                if expires_at.is_none_or(|expiry| expiry > at(3)) {
                    fresh.set(&Publication { expires_at, ..publication(topic, "x") }, start).unwrap();
                }
            }
            prop_assert_eq!(store.totals(), fresh.totals());
        }
    }
}
