use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use bytes::BytesMut;
use tenbin_codec::{PublishTemplate, QoS, ReasonCode, TopicFilter};
use tenbin_session::{Delivery, Publication};

use super::Grant;

/// The last retained message of each topic (MQTT 5.0 §3.3.1.3), in a tree of levels.
#[derive(Debug)]
pub(super) struct RetainedStore {
    tree: RwLock<Tree>,
    limits: RetainedLimits,
}

/// Bounds of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetainedLimits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// A retained message.
#[derive(Debug)]
pub(crate) struct Retained {
    template: PublishTemplate,
    qos: QoS,
    expires_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Tree {
    root: Node,
    messages: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Node {
    children: HashMap<Box<[u8]>, Node>,
    message: Option<Arc<Retained>>,
}

impl RetainedStore {
    pub(super) fn new(limits: RetainedLimits) -> Self {
        Self { tree: RwLock::default(), limits }
    }

    /// Takes the message in the place of the topic's last one `[MQTT-3.3.1-5]`; an empty payload removes that
    /// and is not kept itself `[MQTT-3.3.1-6]`, `[MQTT-3.3.1-7]`.
    ///
    /// # Errors
    /// Quota exceeded.
    pub(super) fn set(&self, publication: &Publication, now: Instant) -> Result<(), ReasonCode> {
        let levels = publication.topic.as_bytes();
        let retained = Retained {
            template: publication.template(&mut BytesMut::new()).detach(),
            qos: publication.qos,
            expires_at: publication.expires_at,
        };
        let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        if publication.payload.is_empty() || publication.expires_at.is_some_and(|at| at <= now) {
            if let Some(old) = remove(&mut tree.root, Some(levels)) {
                tree.messages -= 1;
                tree.bytes -= old.bytes();
            }
            return Ok(());
        }
        let (messages, bytes) = get(&tree.root, levels).map_or((0, 0), |old| (1, old.bytes()));
        let messages = tree.messages + 1 - messages;
        let bytes = tree.bytes + retained.bytes() - bytes;
        if messages > self.limits.messages || bytes > self.limits.bytes {
            return Err(ReasonCode::QuotaExceeded);
        }
        (tree.messages, tree.bytes) = (messages, bytes);
        let node = levels
            .split(|&byte| byte == b'/')
            .fold(&mut tree.root, |node, level| node.children.entry(level.into()).or_default());
        node.message = Some(Arc::new(retained));
        Ok(())
    }

    /// The messages whose topics match `filter` and whose time is not over.
    pub(super) fn matching(&self, filter: &TopicFilter, now: Instant) -> Vec<Arc<Retained>> {
        let tree = self.tree.read().unwrap_or_else(PoisonError::into_inner);
        let levels = filter.levels().collect::<Vec<_>>();
        let mut found = Vec::new();
        collect(&tree.root, &levels, true, &mut found);
        found.retain(|message| message.expires_at.is_none_or(|at| at > now)); // [MQTT-3.3.2-5]
        found
    }
}

impl Retained {
    /// The message as a SUBSCRIBE brings it: RETAIN set, with the identifier of the subscription.
    pub(crate) fn delivery(&self, grant: Grant) -> Delivery {
        Delivery {
            template: self.template.clone(),
            qos: self.qos.min(grant.options.qos),
            retain: true,
            subscription_identifiers: grant.identifier.map(|identifier| [identifier].into()),
            expires_at: self.expires_at,
            share: None,
        }
    }

    fn bytes(&self) -> usize {
        self.template.len() + size_of::<Self>()
    }
}

fn get<'a>(root: &'a Node, topic: &[u8]) -> Option<&'a Arc<Retained>> {
    let node = topic.split(|&byte| byte == b'/').try_fold(root, |node, level| node.children.get(level))?;
    node.message.as_ref()
}

/// Takes a topic's message out, and the levels that lead to nothing any more.
fn remove(node: &mut Node, topic: Option<&[u8]>) -> Option<Arc<Retained>> {
    let Some(topic) = topic else { return node.message.take() };
    let (level, rest) = match topic.iter().position(|&byte| byte == b'/') {
        Some(slash) => (&topic[..slash], Some(&topic[slash + 1..])),
        None => (topic, None),
    };
    let child = node.children.get_mut(level)?;
    let removed = remove(child, rest);
    if child.message.is_none() && child.children.is_empty() {
        node.children.remove(level);
    }
    removed
}

/// The recursion is as deep as filters, or retained topics below a `#`, may have levels.
fn collect(node: &Node, filter: &[&[u8]], is_root: bool, found: &mut Vec<Arc<Retained>>) {
    let Some((&level, rest)) = filter.split_first() else {
        found.extend(node.message.clone());
        return;
    };
    // [MQTT-4.7.2-1]: a leading wildcard does not match a leading $
    let visible = |name: &[u8]| !is_root || name.first() != Some(&b'$');
    match level {
        b"#" => {
            found.extend(node.message.clone());
            for (_, child) in node.children.iter().filter(|(name, _)| visible(name)) {
                collect(child, filter, false, found);
            }
        }
        b"+" => {
            for (_, child) in node.children.iter().filter(|(name, _)| visible(name)) {
                collect(child, rest, false, found);
            }
        }
        level => {
            if let Some(child) = node.children.get(level) {
                collect(child, rest, false, found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use proptest::prelude::*;
    use tenbin_codec::TopicName;

    use super::*;

    fn store(messages: usize, bytes: usize) -> RetainedStore {
        RetainedStore::new(RetainedLimits { messages, bytes })
    }

    fn publication(topic: &str, payload: &'static str) -> Publication {
        Publication { retain: true, ..Publication::new(TopicName::try_from(topic).unwrap(), Bytes::from(payload)) }
    }

    fn payloads(store: &RetainedStore, filter: &str, now: Instant) -> Vec<Vec<u8>> {
        let filter = TopicFilter::try_from(filter).unwrap();
        let mut found =
            store.matching(&filter, now).iter().map(|message| message.template.payload().to_vec()).collect::<Vec<_>>();
        found.sort();
        found
    }

    #[test]
    fn mqtt_3_3_1_5_to_7_the_last_message_stays_and_an_empty_one_removes_it() {
        let (store, now) = (store(10, 10_000), Instant::now());
        store.set(&publication("a/b", "1"), now).unwrap();
        store.set(&publication("a/b", "2"), now).unwrap();
        assert_eq!(payloads(&store, "a/+", now), [b"2"]);
        store.set(&publication("a/b", ""), now).unwrap();
        store.set(&publication("never/there", ""), now).unwrap();
        assert!(payloads(&store, "#", now).is_empty());
        let tree = store.tree.read().unwrap();
        assert_eq!((tree.messages, tree.bytes, tree.root.children.len()), (0, 0, 0));
    }

    #[test]
    fn mqtt_3_3_2_5_an_expired_message_is_not_sent() {
        let (store, now) = (store(10, 10_000), Instant::now());
        let expires_at = Some(now + Duration::from_secs(5));
        store.set(&Publication { expires_at, ..publication("a", "1") }, now).unwrap();
        assert_eq!(payloads(&store, "a", now + Duration::from_secs(4)).len(), 1);
        assert_eq!(payloads(&store, "a", now + Duration::from_secs(5)).len(), 0);
    }

    #[test]
    fn both_bounds_refuse_and_keep_what_is_there() {
        let now = Instant::now();
        let by_count = store(1, 10_000);
        by_count.set(&publication("a", "1"), now).unwrap();
        assert_eq!(by_count.set(&publication("b", "1"), now), Err(ReasonCode::QuotaExceeded));
        by_count.set(&publication("a", "2"), now).unwrap();
        assert_eq!(payloads(&by_count, "#", now), [b"2"]);
        let by_bytes = store(10, 1);
        assert_eq!(by_bytes.set(&publication("a", "1"), now), Err(ReasonCode::QuotaExceeded));
    }

    proptest! {
        /// Against a map from topic to payload, matched one by one. 256 cases.
        #[test]
        fn the_tree_finds_what_a_map_of_all_topics_finds(
            steps in prop::collection::vec(("[ab$]?(/[ab]?){0,3}", prop::bool::weighted(0.7)), 1..60),
            filters in prop::collection::vec("([ab$]|\\+)(/([ab]|\\+)){0,2}(/#)?", 1..10),
        ) {
            let (store, now) = (store(1000, 1_000_000), Instant::now());
            let mut model = std::collections::BTreeMap::new();
            for (topic, keep) in steps.iter().filter(|(topic, _)| !topic.is_empty()) {
                store.set(&publication(topic, if *keep { "x" } else { "" }), now).unwrap();
                if *keep { model.insert(topic.clone(), ()); } else { model.remove(topic); }
            }
            for text in filters {
                let filter = TopicFilter::try_from(&text[..]).unwrap();
                let expected =
                    model.keys().filter(|topic| filter.matches(&TopicName::try_from(&topic[..]).unwrap())).count();
                prop_assert_eq!(store.matching(&filter, now).len(), expected, "{}", text);
            }
        }
    }
}
