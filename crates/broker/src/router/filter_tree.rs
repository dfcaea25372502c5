use std::hash::RandomState;
use std::sync::Arc;

use tenbin_codec::{TopicFilter, TopicName};

use super::hash_trie::{HashTrie, Key};
use super::matches::MatchSetBuilder;
use super::subscribers::FilterEntry;

/// One level of the tree of filters with wildcards. A clone shares the nodes below; a change copies the path from the
/// root.
#[derive(Debug, Clone, Default)]
pub(super) struct FilterNode {
    children: Children,
    plus: Option<Arc<Self>>,
    /// Subscriptions to the filter that ends here.
    here: FilterEntry,
    /// Subscriptions to the filter that continues with `#` here.
    hash: Option<Arc<FilterEntry>>,
}

/// The levels below a node, by name. Names of up to 22 bytes are stored inline.
pub(super) type Children = HashTrie<FilterNode, 22>;

impl FilterNode {
    pub(super) fn is_empty(&self) -> bool {
        self.children.is_empty() && self.plus.is_none() && self.here.is_empty() && self.hash.is_none()
    }

    pub(super) fn children(&self) -> &Children {
        &self.children
    }

    /// Returns whether a filter continues with a wildcard here.
    pub(super) fn has_wildcard(&self) -> bool {
        self.plus.is_some() || self.hash.is_some()
    }

    /// Returns the level below with this name; `+` stands for the wildcard.
    pub(super) fn child(&self, level: &[u8], hasher: &RandomState) -> Option<&Self> {
        if level == b"+" { self.plus.as_deref() } else { self.children.get(&Key::new(level, hasher)) }
    }

    /// Returns the subscriptions to `filter`, which begins at this level.
    pub(super) fn entry(&self, filter: &TopicFilter, hasher: &RandomState) -> Option<&FilterEntry> {
        let mut node = self;
        for level in filter.levels() {
            if level == b"#" {
                return node.hash.as_deref();
            }
            node = node.child(level, hasher)?;
        }
        Some(&node.here)
    }

    /// Adds the subscriptions to all filters that match `topic`.
    ///
    /// Goes level by level: the loads of one level's nodes overlap, while a depth-first search would wait for each
    /// node.
    pub(super) fn collect<'a>(&'a self, topic: &TopicName, hasher: &RandomState, builder: &mut MatchSetBuilder<'a>) {
        if self.is_empty() {
            return;
        }
        // [MQTT-4.7.2-1]: a leading wildcard does not match a leading $
        let mut wildcards_apply = !topic.starts_with_dollar();
        let mut nodes = Vec::with_capacity(NODES);
        nodes.push(self);
        let mut begin = 0;
        for level in topic.as_bytes().split(|&byte| byte == b'/') {
            let key = Key::new(level, hasher);
            let end = nodes.len();
            for at in begin..end {
                let node = nodes[at];
                if let Some(child) = node.children.get(&key) {
                    nodes.push(child);
                }
                if wildcards_apply {
                    if let Some(plus) = &node.plus {
                        nodes.push(plus);
                    }
                    if let Some(entry) = &node.hash {
                        builder.add(entry);
                    }
                }
            }
            if nodes.len() == end {
                return;
            }
            (begin, wildcards_apply) = (end, true);
        }
        for node in &nodes[begin..] {
            if let Some(entry) = &node.hash {
                builder.add(entry); // "a/#" matches "a" too
            }
            if !node.here.is_empty() {
                builder.add(&node.here);
            }
        }
    }

    /// Visits the entries of all filters that match a topic of these levels, with the filter.
    ///
    /// `path`: the filter's levels so far. As deep as the topic has levels, which are bounded.
    pub(super) fn visit_matches(
        &self,
        levels: &[&[u8]],
        hasher: &RandomState,
        path: &mut Vec<Vec<u8>>,
        visit: &mut impl FnMut(&[u8], &FilterEntry),
    ) {
        // [MQTT-4.7.2-1]: a leading wildcard does not match a leading $
        let wildcards_apply = !path.is_empty() || levels.first().is_none_or(|level| level.first() != Some(&b'$'));
        if let Some(entry) = self.hash.as_ref().filter(|_| wildcards_apply) {
            visit(&[path.as_slice(), &[b"#".to_vec()]].concat().join(&b'/'), entry);
        }
        let Some((&level, below)) = levels.split_first() else {
            if !self.here.is_empty() {
                visit(&path.join(&b'/'), &self.here);
            }
            return;
        };
        let named = self.children.get(&Key::new(level, hasher)).map(|child| (level, child));
        let plus = self.plus.as_deref().filter(|_| wildcards_apply).map(|child| (&b"+"[..], child));
        for (name, child) in named.into_iter().chain(plus) {
            path.push(name.to_vec());
            child.visit_matches(below, hasher, path, visit);
            path.pop();
        }
    }

    /// Changes the entry of `filter`, and removes nodes that become empty.
    pub(super) fn change(&mut self, filter: &TopicFilter, hasher: &RandomState, change: impl FnOnce(&mut FilterEntry)) {
        // Not recursive: a filter may have many levels, and a thread's stack is small.
        let mut path = Vec::new();
        let mut node = Some(&*self);
        let mut is_prefix = false;
        for level in filter.levels() {
            is_prefix = level == b"#";
            if !is_prefix {
                path.push((level, node));
                node = node.and_then(|node| node.child(level, hasher));
            }
        }
        let mut changed = node.cloned().unwrap_or_default();
        if is_prefix {
            let mut entry = changed.hash.as_deref().cloned().unwrap_or_default();
            change(&mut entry);
            changed.hash = (!entry.is_empty()).then(|| Arc::new(entry));
        } else {
            change(&mut changed.here);
        }
        for (level, parent) in path.into_iter().rev() {
            let mut parent = parent.cloned().unwrap_or_default();
            let child = (!changed.is_empty()).then_some(changed);
            match level {
                b"+" => parent.plus = child.map(Arc::new),
                level => parent.children.set(&Key::new(level, hasher), child),
            }
            changed = parent;
        }
        *self = changed;
    }
}

/// More nodes than most topics visit. Where filters have both the topic's level and `+`, a topic visits both.
const NODES: usize = 32;
