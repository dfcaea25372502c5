use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tenbin_codec::TopicName;

use super::*;

pub(super) fn store(messages: usize, bytes: usize) -> RetainedStore {
    RetainedStore::new(RetainedLimits { messages, bytes }, None, Arc::default())
}

pub(super) fn publication(topic: &str, payload: &'static str) -> Publication {
    Publication { retain: true, ..Publication::new(TopicName::try_from(topic).unwrap(), Bytes::from(payload)) }
}

fn payloads(store: &RetainedStore, filter: &str, now: Instant) -> Vec<Vec<u8>> {
    let filter = TopicFilter::try_from(filter).unwrap();
    let mut found = pages(store, &filter, 2, 5, now).into_iter().map(|(_, payload)| payload).collect::<Vec<_>>();
    found.sort();
    found
}

/// Returns the topics and payloads of all matching messages, read page by page.
fn pages(
    store: &RetainedStore,
    filter: &TopicFilter,
    messages: usize,
    visits: usize,
    now: Instant,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let before = found.len();
        let room = PageRoom { messages, bytes: usize::MAX, visits };
        store.page(filter, &mut cursor, room, now, |message| {
            found.push((message.template.topic().to_vec(), message.template.payload().to_vec()));
        });
        assert!(found.len() - before <= messages);
        if cursor.is_none() {
            return found;
        }
    }
}

#[test]
fn broker_messages_do_not_count_against_retained_limits() {
    let (store, now) = (store(1, 10_000), Instant::now());
    for topic in ["$SYS/a", "$SYS/b", "x"] {
        store.set(&publication(topic, "1"), now).unwrap();
    }
    store.set(&publication("$SYS/a", ""), now).unwrap();
    assert_eq!(store.totals().0, 1);
    assert_eq!(payloads(&store, "$SYS/#", now).len(), 1);
    assert_eq!(payloads(&store, "#", now).len(), 1);
}

#[test]
fn refused_retained_message_removes_the_previous_one() {
    let (mut store, now) = (store(10, 10_000), Instant::now());
    for topic in ["a", "b"] {
        store.set(&publication(topic, "old"), now).unwrap();
    }
    // As after a reload with a smaller bound.
    store.limits = RetainedLimits { messages: 1, bytes: 1 };
    store.set(&publication("a", "new"), now).unwrap();
    assert_eq!(payloads(&store, "a", now), [b"new"]);
    store.set(&publication("b", "larger"), now).unwrap_err();
    assert_eq!(payloads(&store, "#", now), [b"new"], "what is not the last message any more is gone");
    store.set(&publication("c", "1"), now).unwrap_err();
    assert_eq!(store.totals().0, 1);
}

#[test]
fn page_continues_after_its_last_topic_was_removed() {
    let (store, now) = (store(100, 100_000), Instant::now());
    for topic in ["a", "a/1", "a/2", "a/2/x", "b"] {
        store.set(&publication(topic, "1"), now).unwrap();
    }
    let filter = TopicFilter::try_from("#").unwrap();
    let (mut found, mut cursor) = (Vec::new(), None);
    for gone in ["a", "a/1", "a/2", "a/2/x", "b"] {
        let room = PageRoom { messages: 1, bytes: usize::MAX, visits: 100 };
        store.page(&filter, &mut cursor, room, now, |message| found.push(message.template.topic().to_vec()));
        store.set(&publication(gone, ""), now).unwrap();
    }
    assert_eq!(found, [&b"a"[..], b"a/1", b"a/2", b"a/2/x", b"b"]);
}

#[test]
fn mqtt_3_3_1_5_to_7_last_message_stays_until_an_empty_one() {
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
fn retained_limits_refuse_and_keep_existing_messages() {
    let now = Instant::now();
    let by_count = store(1, 10_000);
    by_count.set(&publication("a", "1"), now).unwrap();
    by_count.set(&publication("b", "1"), now).unwrap_err();
    by_count.set(&publication("a", "2"), now).unwrap();
    assert_eq!(payloads(&by_count, "#", now), [b"2"]);
    let by_bytes = store(10, 1);
    by_bytes.set(&publication("a", "1"), now).unwrap_err();
}

#[test]
fn expired_retained_messages_and_their_levels_make_room() {
    let (store, now) = (store(2, 1 << 20), Instant::now());
    let expiring = |topic| Publication { expires_at: Some(now + Duration::from_secs(1)), ..publication(topic, "1") };
    store.set(&expiring("a/b/c"), now).unwrap();
    store.set(&publication("a/d", "1"), now).unwrap();
    store.set(&publication("x", "1"), now).unwrap_err();
    store.set(&publication("x", "1"), now + Duration::from_secs(1)).unwrap();
    let tree = store.tree.read().unwrap();
    assert_eq!(tree.messages, 2);
    assert!(!tree.root.children[&b"a"[..]].children.contains_key(&b"b"[..]));
    drop(tree);
    for topic in ["a/d", "x"] {
        store.set(&publication(topic, ""), now).unwrap();
    }
    assert_eq!(store.totals(), (0, 0));
}

#[test]
fn topic_levels_count_against_retained_bytes() {
    let (store, now) = (store(10, 100_000), Instant::now());
    store.set(&publication(&"x/".repeat(100), "1"), now).unwrap();
    store.set(&publication(&"y/".repeat(100), "1"), now).unwrap_err();
    store.set(&publication(&"x/".repeat(99), "1"), now).unwrap();
}

#[test]
fn refusal_names_the_bound_that_is_too_low() {
    let directory = tempfile::tempdir().unwrap();
    let durable = Arc::new(Durable::open(directory.path(), tenbin_store::Sync::Never, 0).unwrap());
    let limits = RetainedLimits { messages: 1, bytes: usize::MAX };
    let (store, now) = (RetainedStore::new(limits, Some(durable), Arc::default()), Instant::now());
    // Legal in a packet of MQTT 3.1.1.
    let payload = Bytes::from(vec![0; tenbin_codec::VARINT_MAX as usize - 3]);
    let large = Publication { payload, ..publication("a", "") };
    assert_eq!(store.set(&large, now).unwrap_err().bound, None, "no bound is to be raised");
    store.set(&publication("a", "1"), now).unwrap();
    let bound = store.set(&publication("b", "1"), now).unwrap_err().bound;
    assert_eq!(bound, Some(values::Bound::RetainedMessages));
}

proptest! {
    /// Compares the tree with a map of all topics that are matched one by one. 256 cases.
    #[test]
    fn retained_tree_matches_a_map_of_all_topics(
        steps in prop::collection::vec(("[ab$]?(/[ab]?){0,3}", prop::bool::weighted(0.7)), 1..60),
        filters in prop::collection::vec("([ab$]|\\+)(/([ab]|\\+)){0,2}(/#)?", 1..10),
    ) {
        let (store, now) = (store(1000, 1_000_000), Instant::now());
        let mut model = BTreeMap::new();
        for (topic, keep) in steps.iter().filter(|(topic, _)| !topic.is_empty()) {
            store.set(&publication(topic, if *keep { "x" } else { "" }), now).unwrap();
            if *keep { model.insert(topic.clone(), ()); } else { model.remove(topic); }
        }
        for text in filters {
            let filter = TopicFilter::try_from(&text[..]).unwrap();
            let expected =
                model.keys().filter(|topic| filter.matches(&TopicName::try_from(&topic[..]).unwrap())).count();
            for (messages, visits) in [(usize::MAX, usize::MAX), (1, 100), (3, 2), (100, 1)] {
                let mut found = pages(&store, &filter, messages, visits, now);
                prop_assert_eq!(found.len(), expected, "{}", text);
                found.dedup();
                prop_assert_eq!(found.len(), expected, "{} twice", text);
            }
        }
    }
}
