use std::cell::Cell;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use super::inline_text::InlineText;

/// A hash trie from text to value that shares its nodes between snapshots.
///
/// Used for filters without wildcards, for the levels below a node of the filter tree, and for the share groups of a
/// filter. A clone is a reference. A change copies only the path to it.
///
/// ```text
///   Branch: 16 slots, by the hash's next four bits, the lowest first
///     ├── Branch …
///     └── Leaf: hash, text, value ──► Leaf ──► Leaf    at most three, while there are hash bits to separate them
/// ```
///
/// A look-up visits one node per four bits. For a million texts that means five branches, of which three are few enough
/// to stay in near caches, and one or two leaves. A leaf holds texts of up to `N` bytes inline.
#[derive(Debug, Clone)]
pub(super) struct HashTrie<V, const N: usize> {
    root: Option<Arc<TrieNode<V, N>>>,
}

#[derive(Debug)]
enum TrieNode<V, const N: usize> {
    // INVARIANT: a branch with a single used slot never holds just a chain that could replace the branch.
    Branch([Option<Arc<Self>>; WIDTH]),
    // INVARIANT: a chain has at most CHAIN leaves where the hash has bits left.
    Leaf(Leaf<V, N>),
}

#[derive(Debug, Clone)]
struct Leaf<V, const N: usize> {
    hash: u64,
    text: InlineText<N>,
    value: V,
    // INVARIANT: a leaf.
    next: Option<Arc<TrieNode<V, N>>>,
}

/// A text to look up. The first branch on the way computes its hash: a few texts are compared without one.
#[derive(Debug)]
pub(super) struct Key<'a> {
    text: &'a [u8],
    hasher: &'a RandomState,
    hash: Cell<Option<u64>>,
}

impl<'a> Key<'a> {
    #[inline]
    pub(super) fn new(text: &'a [u8], hasher: &'a RandomState) -> Self {
        Self { text, hasher, hash: Cell::new(None) }
    }

    #[inline]
    fn hash(&self) -> u64 {
        if let Some(hash) = self.hash.get() {
            return hash;
        }
        // Not `hash_one`, which adds the length: no second value follows the text.
        let mut hasher = self.hasher.build_hasher();
        hasher.write(self.text);
        let hash = hasher.finish();
        self.hash.set(Some(hash));
        hash
    }

    #[inline]
    fn is_of<V, const N: usize>(&self, leaf: &Leaf<V, N>) -> bool {
        self.hash.get().is_none_or(|hash| hash == leaf.hash) && leaf.text.as_bytes() == self.text
    }
}

impl<V, const N: usize> HashTrie<V, N> {
    pub(super) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Returns the value of a text.
    #[inline]
    pub(super) fn get(&self, key: &Key<'_>) -> Option<&V> {
        let mut node = self.root.as_deref()?;
        let mut shift = 0;
        loop {
            match node {
                TrieNode::Branch(slots) => {
                    node = slots[place(key.hash(), shift)].as_deref()?;
                    shift += BITS;
                }
                TrieNode::Leaf(leaf) if key.is_of(leaf) => return Some(&leaf.value),
                TrieNode::Leaf(leaf) => node = leaf.next.as_deref()?,
            }
        }
    }

    /// Visits all values, in no particular order.
    pub(super) fn for_each<'a>(&'a self, mut each: impl FnMut(&'a V)) {
        if let Some(root) = &self.root {
            root.for_each(&mut each);
        }
    }
}

impl<V: Clone, const N: usize> HashTrie<V, N> {
    /// Sets or removes the value of a text.
    pub(super) fn set(&mut self, key: &Key<'_>, value: Option<V>) {
        let leaf = value.map(|value| Leaf { hash: key.hash(), text: key.text.into(), value, next: None });
        self.root = changed(self.root.as_ref(), 0, key, leaf);
    }
}

impl<V, const N: usize> Default for HashTrie<V, N> {
    fn default() -> Self {
        Self { root: None }
    }
}

impl<V, const N: usize> TrieNode<V, N> {
    fn for_each<'a>(&'a self, each: &mut impl FnMut(&'a V)) {
        match self {
            Self::Branch(slots) => slots.iter().flatten().for_each(|node| node.for_each(each)),
            Self::Leaf(_) => leaves(Some(self)).for_each(|leaf| each(&leaf.value)),
        }
    }
}

/// Returns the replacement for `node`, found at the hash's lowest `shift` bits, with `leaf` as the leaf of `key`, or
/// without one.
fn changed<V: Clone, const N: usize>(
    node: Option<&Arc<TrieNode<V, N>>>,
    shift: u32,
    key: &Key<'_>,
    leaf: Option<Leaf<V, N>>,
) -> Option<Arc<TrieNode<V, N>>> {
    if let Some(TrieNode::Branch(slots)) = node.map(|node| &**node) {
        let mut slots = slots.clone();
        let slot = &mut slots[place(key.hash(), shift)];
        *slot = changed(slot.as_ref(), shift + BITS, key, leaf);
        return branch(slots);
    }
    let (others, count) = without(node, key);
    match leaf {
        Some(leaf) => Some(with(others, count, leaf, shift)),
        None => others,
    }
}

/// Returns a branch of these slots, or an equivalent chain of leaves.
fn branch<V, const N: usize>(slots: [Option<Arc<TrieNode<V, N>>>; WIDTH]) -> Option<Arc<TrieNode<V, N>>> {
    let mut used = slots.iter().flatten();
    match (used.next(), used.next()) {
        (None, _) => None,
        (Some(only), None) if (1..=CHAIN).contains(&leaves(Some(only)).count()) => Some(Arc::clone(only)),
        _ => Some(Arc::new(TrieNode::Branch(slots))),
    }
}

/// Returns the chain from `first` without the leaf of `key`, and its length.
fn without<V: Clone, const N: usize>(
    first: Option<&Arc<TrieNode<V, N>>>,
    key: &Key<'_>,
) -> (Option<Arc<TrieNode<V, N>>>, usize) {
    let chain = || leaves(first.map(|node| &**node));
    let Some((at, found)) = chain().enumerate().find(|(_, leaf)| key.is_of(leaf)) else {
        return (first.cloned(), chain().count());
    };
    let others = chain()
        .take(at)
        .fold(found.next.clone(), |next, leaf| Some(Arc::new(TrieNode::Leaf(Leaf { next, ..leaf.clone() }))));
    (others, chain().count() - 1)
}

/// Adds a leaf of another text to `count` others, at the front of the chain or in a new branch.
fn with<V: Clone, const N: usize>(
    others: Option<Arc<TrieNode<V, N>>>,
    count: usize,
    leaf: Leaf<V, N>,
    shift: u32,
) -> Arc<TrieNode<V, N>> {
    if count < CHAIN || shift >= u64::BITS {
        return Arc::new(TrieNode::Leaf(Leaf { next: others, ..leaf }));
    }
    let mut slots: [Option<Arc<TrieNode<V, N>>>; WIDTH] = Default::default();
    let others = leaves(others.as_deref()).map(|leaf| Leaf { next: None, ..leaf.clone() });
    for leaf in others.chain([leaf]) {
        let slot = &mut slots[place(leaf.hash, shift)];
        let count = leaves(slot.as_deref()).count();
        *slot = Some(with(slot.take(), count, leaf, shift + BITS));
    }
    Arc::new(TrieNode::Branch(slots))
}

/// Iterates over the leaves from this one on.
fn leaves<V, const N: usize>(first: Option<&TrieNode<V, N>>) -> impl Iterator<Item = &Leaf<V, N>> {
    std::iter::successors(first.and_then(as_leaf), |leaf| leaf.next.as_deref().and_then(as_leaf))
}

fn as_leaf<V, const N: usize>(node: &TrieNode<V, N>) -> Option<&Leaf<V, N>> {
    match node {
        TrieNode::Leaf(leaf) => Some(leaf),
        TrieNode::Branch(_) => None,
    }
}

/// Returns the slot for the hash bits from `shift` on.
#[inline]
fn place(hash: u64, shift: u32) -> usize {
    (hash >> shift) as usize % WIDTH
}

const BITS: u32 = 4;
const WIDTH: usize = 1 << BITS;
/// Longest chain that is cheaper to search than another branch.
const CHAIN: usize = 3;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    type Trie = HashTrie<u32, 22>;

    fn values(trie: &Trie) -> Vec<u32> {
        let mut values = Vec::new();
        trie.for_each(|value| values.push(*value));
        values.sort_unstable();
        values
    }

    /// Checks the invariants: no branch that a chain could replace, no long chain where hash bits are left.
    fn check(node: Option<&TrieNode<u32, 22>>, shift: u32) {
        match node {
            None => {}
            Some(TrieNode::Leaf(_)) => assert!(shift >= u64::BITS || leaves(node).count() <= CHAIN),
            Some(TrieNode::Branch(slots)) => {
                let used = slots.iter().flatten().collect::<Vec<_>>();
                let of_first = leaves(Some(used[0])).count();
                assert!(used.len() > 1 || of_first == 0 || of_first > CHAIN);
                used.iter().for_each(|node| check(Some(node), shift + BITS));
            }
        }
    }

    fn key<'a>(hash: u64, text: &'a [u8], hasher: &'a RandomState) -> Key<'a> {
        Key { hash: Cell::new(Some(hash)), ..Key::new(text, hasher) }
    }

    proptest! {
        /// Compares the trie with a `HashMap`. The hashes have few different values, so that texts collide at all
        /// depths.
        #[test]
        fn hash_trie_matches_a_hash_map_and_keeps_snapshots(
            changes in prop::collection::vec((0u64..300, any::<Option<u32>>()), 1..300),
            spread in prop::sample::select(vec![1, 7, 1 << 60, 0x9E37_79B9_7F4A_7C15]),
            kinds in prop::sample::select(vec![1, 3, 50, 300]),
        ) {
            let (mut trie, mut model) = (Trie::default(), HashMap::new());
            let hasher = &RandomState::new();
            let text_of = |number: u64| {
                let text = format!("{number:0width$}", width = if number.is_multiple_of(5) { 30 } else { 1 });
                ((number % kinds).wrapping_mul(spread), text.into_bytes())
            };
            let mut halfway = None;
            for (at, (number, value)) in changes.iter().enumerate() {
                if at == changes.len() / 2 {
                    halfway = Some((trie.clone(), model.clone()));
                }
                let (hash, text) = text_of(*number);
                trie.set(&key(hash, &text, hasher), *value);
                match value {
                    Some(value) => model.insert(*number, *value),
                    None => model.remove(number),
                };
                check(trie.root.as_deref(), 0);
            }
            for (trie, model) in halfway.into_iter().chain([(trie, model)]) {
                for number in 0..300 {
                    let (hash, text) = text_of(number);
                    prop_assert_eq!(trie.get(&key(hash, &text, hasher)), model.get(&number));
                }
                let mut expected = model.into_values().collect::<Vec<_>>();
                expected.sort_unstable();
                prop_assert_eq!(values(&trie), expected);
            }
        }
    }

    #[test]
    fn hash_trie_is_empty_after_all_removals() {
        let mut trie = Trie::default();
        let hasher = &RandomState::new();
        (0..1000u32).for_each(|number| trie.set(&Key::new(&number.to_be_bytes(), hasher), Some(number)));
        assert_eq!(values(&trie), (0..1000).collect::<Vec<_>>());
        (0..1000u32).for_each(|number| trie.set(&Key::new(&number.to_be_bytes(), hasher), None));
        assert!(trie.is_empty());
    }
}
