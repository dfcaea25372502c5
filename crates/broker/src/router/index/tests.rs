mod at_scale;

use std::num::NonZeroU16;
use std::sync::Arc;

use proptest::prelude::*;
use tenbin_balancer::{MemberLoad, Policy};
use tenbin_codec::{QoS, SubscriptionOptions};

use super::*;
use crate::auth::Rights;
use crate::outbox::{Budget, Limits, Outbox, OutboxCommon};
use crate::router::ordering_key::TopicKey;
use crate::values::{Grant, WhenFull};

fn outbox() -> (Arc<Outbox>, Arc<MemberLoad>) {
    let load = Arc::new(MemberLoad::new(Nanos(0)));
    let limits = Limits::for_tests(10, WhenFull::DropOldest);
    let common = OutboxCommon::for_tests(limits, Arc::new(Budget::new(10_000)));
    let outbox = Outbox::new(Arc::new(common), Arc::clone(&load));
    (Arc::new(outbox), load)
}

fn rights() -> Arc<Rights> {
    Arc::new(Rights::unlimited())
}

fn index() -> FilterIndex {
    let queues = GroupQueues::for_tests(10, 10_000, None);
    FilterIndex::new(ShareRules::new(Policy::RoundRobin, Vec::new()), Arc::new(queues), Arc::new(Access::unlimited()))
}

fn subscriber(number: u64, identifier: Option<u32>) -> Subscriber {
    let grant = Grant { options: SubscriptionOptions::at(QoS::AtLeastOnce), identifier, weight: NonZeroU16::MIN };
    Subscriber { number, outbox: outbox().0, rights: rights(), grant }
}

fn filter(text: &str) -> TopicFilter {
    TopicFilter::try_from(text).unwrap()
}

fn topic(text: &str) -> TopicName {
    TopicName::try_from(text).unwrap()
}

fn numbers(index: &FilterIndex, name: &str) -> Vec<u64> {
    index.matches(&topic(name)).targets.iter().map(|target| target.number).collect()
}

#[test]
fn groups_apply_rules_by_name_and_new_rules_when_set() {
    #[derive(serde::Deserialize)]
    struct File {
        share: Vec<crate::values::ShareRule>,
    }
    let rules = |text: &str| {
        let file: File = toml::from_str(text).unwrap();
        ShareRules::new(Policy::RoundRobin, file.share)
    };
    let index = index();
    let join = |name: &str| {
        let (outbox, load) = outbox();
        let receiver = Receiver { number: 1, outbox, load, rights: rights() };
        let options = SubscriptionOptions::at(QoS::AtLeastOnce);
        let grant = Grant { options, identifier: None, weight: NonZeroU16::MIN };
        index.edit().join(&filter(name).shared().unwrap(), &receiver, GroupMember::new(&receiver, grant), Nanos(0));
    };
    let group = |name: &str| index.group(&filter(name).shared().unwrap()).unwrap();
    join("$share/one/a/+");
    let before = index.versions().of_all();
    index.set_rules(rules("[[share]]\ngroup = \"one\"\nkey = \"topic\"\n[[share]]\npolicy = \"random\""));
    assert!(index.versions().of_all() > before, "routes know keys");
    join("$share/two/a/+");
    let one = group("$share/one/a/+");
    assert_eq!((one.members.rules().policy, one.members.rules().is_ordered), (Policy::Adaptive, true));
    assert_eq!(group("$share/two/a/+").members.rules(), Policy::Random.into());

    let keys = |name: &str| {
        let mut keys = index.matches(&topic(name)).groups;
        keys.sort_by_key(|route| route.group.number());
        keys.into_iter().map(|route| route.key).collect::<Vec<_>>()
    };
    let [TopicKey::Hash(x), TopicKey::None] = keys("a/x")[..] else { panic!("{:?}", keys("a/x")) };
    assert!(matches!(keys("a/x")[0], TopicKey::Hash(again) if again == x));
    assert!(matches!(keys("a/y")[0], TopicKey::Hash(y) if y != x));
    index.set_rules(rules("share = []"));
    assert!(matches!(keys("a/x")[..], [TopicKey::None, TopicKey::None]));
    assert_eq!(one.members.rules(), Policy::RoundRobin.into());
    assert_eq!(one.members.len(), 1);
}

#[test]
fn overlapping_filters_are_one_target_with_all_identifiers() {
    let index = index();
    for (text, identifier) in [("a/b", 1), ("a/+", 2), ("a/#", 3), ("#", 4), ("b/#", 5)] {
        index.edit().insert(&filter(text), subscriber(7, Some(identifier)));
    }
    let matches = index.matches(&topic("a/b"));
    assert_eq!(matches.targets.len(), 1);
    let mut identifiers = matches.targets[0].terms.clone().unwrap().identifiers.unwrap().identifiers.to_vec();
    identifiers.sort_unstable();
    assert_eq!(identifiers, [1, 2, 3, 4]);
}

#[test]
fn index_change_raises_its_part_version_and_frees_nodes() {
    let index = index();
    let versions = |name| (index.versions().of_all(), index.versions().of(index.part_of(&topic(name))));
    let elsewhere = (0..).map(|number| number.to_string());
    let elsewhere = elsewhere
        .filter(|name| {
            ["a/b", "/", "$SYS/a"].iter().all(|matched| index.part_of(&topic(matched)) != index.part_of(&topic(name)))
        })
        .take(1)
        .next()
        .unwrap();
    let filters = [
        ("a", "a"),
        ("a/b", "a/b"),
        ("+/b", "a/b"),
        ("a/+/c", "a/b/c"),
        ("a/#", "a/b"),
        ("#", "a"),
        ("+", "a"),
        ("/", "/"),
        ("$SYS/#", "$SYS/a"),
    ];
    for (text, matched) in filters {
        let (before, before_elsewhere) = (versions(matched), versions(&elsewhere));
        index.edit().insert(&filter(text), subscriber(1, None));
        let between = versions(matched);
        index.edit().remove(&filter(text), 1);
        assert!(before != between && between != versions(matched), "{text}");
        let is_anywhere = text.starts_with(['+', '#']);
        assert_eq!(versions(&elsewhere) != before_elsewhere, is_anywhere, "{text}");
    }
    let snapshot = index.snapshot.load();
    assert!(snapshot.exact.is_empty());
    assert!(snapshot.wildcards.is_empty());
}

#[test]
fn changes_of_one_edit_are_seen_together() {
    let index = index();
    let mut edit = index.edit();
    edit.insert(&filter("a"), subscriber(1, None));
    edit.insert(&filter("a/#"), subscriber(2, None));
    assert_eq!(numbers(&index, "a"), [0; 0]);
    drop(edit);
    assert_eq!(numbers(&index, "a"), [1, 2]);
}

fn join(index: &FilterIndex, text: &str, number: u64) {
    let (outbox, load) = outbox();
    let grant = Grant { options: SubscriptionOptions::default(), identifier: None, weight: NonZeroU16::MIN };
    let receiver = Receiver { number, outbox, load, rights: rights() };
    index.edit().join(&filter(text).shared().unwrap(), &receiver, GroupMember::new(&receiver, grant), Nanos(0));
}

#[test]
fn groups_have_share_name_and_filter_and_end_when_empty() {
    let index = index();
    let sizes = |name: &str| {
        let mut sizes =
            index.matches(&topic(name)).groups.iter().map(|route| route.group.members.len()).collect::<Vec<_>>();
        sizes.sort_unstable();
        sizes
    };
    join(&index, "$share/g/a/+", 1);
    join(&index, "$share/g/a/+", 2);
    join(&index, "$share/h/a/+", 3);
    join(&index, "$share/g/a/b", 1);
    assert_eq!(sizes("a/b"), [1, 1, 2]);
    assert_eq!(sizes("a/c"), [1, 2]);
    for (text, number) in [("$share/g/a/+", 1), ("$share/g/a/+", 2), ("$share/h/a/+", 3), ("$share/g/a/b", 1)] {
        index.edit().leave(&filter(text).shared().unwrap(), number);
    }
    assert_eq!(sizes("a/b"), [0usize; 0]);
}

/// Levels from a small alphabet, so that filters and topics match often.
fn levels(alphabet: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(alphabet), 1..5).prop_map(|levels| levels.join("/"))
}

fn any_filter() -> impl Strategy<Value = TopicFilter> {
    let hash = prop::bool::weighted(0.3);
    (levels(&["a", "b", "", "+", "$d"]), hash).prop_map(|(levels, hash)| {
        let text = if hash { format!("{levels}/#") } else { levels };
        filter(if text.is_empty() { "/" } else { &text })
    })
}

proptest! {
    /// Compares with the naive model: a list of (filter, number), matched one by one. 256 cases.
    #[test]
    fn index_matches_a_list_of_all_subscriptions(
        changes in prop::collection::vec((any_filter(), 1u64..200, any::<bool>()), 1..120),
        topics in prop::collection::vec(levels(&["a", "b", "", "$d", "c"]), 1..20),
    ) {
        let index = index();
        let mut model: Vec<(TopicFilter, u64)> = Vec::new();
        for (filter, number, add) in changes {
            model.retain(|known| *known != (filter.clone(), number));
            if add {
                index.edit().insert(&filter, subscriber(number, None));
                model.push((filter, number));
            } else {
                index.edit().remove(&filter, number);
            }
        }
        for name in topics.iter().filter(|name| !name.is_empty()) {
            let mut expected = model
                .iter()
                .filter(|(filter, _)| filter.matches(&topic(name)))
                .map(|(_, number)| *number)
                .collect::<Vec<_>>();
            expected.sort_unstable();
            expected.dedup();
            prop_assert_eq!(numbers(&index, name), expected);
        }
    }
}

#[test]
fn index_keeps_many_subscribers_and_many_children() {
    let index = index();
    // out of order, so that chunks also split in the middle
    let order = (0..1000u64).map(|i| i * 617 % 1000 + 1).collect::<Vec<_>>();
    order.iter().for_each(|&number| index.edit().insert(&filter("a/#"), subscriber(number, None)));
    order.iter().for_each(|&number| index.edit().insert(&filter(&format!("b/{number}/+")), subscriber(number, None)));
    assert_eq!(numbers(&index, "a/x"), (1..=1000).collect::<Vec<_>>());
    assert_eq!(numbers(&index, "b/500/x"), [500]);
    order.iter().filter(|number| *number % 2 == 0).for_each(|&number| index.edit().remove(&filter("a/#"), number));
    assert_eq!(numbers(&index, "a/x"), (1..=1000).filter(|n| n % 2 == 1).collect::<Vec<_>>());
}

#[test]
fn new_group_copies_few_groups_of_its_filter() {
    for text in ["t", "t/+"] {
        let index = index();
        let names = (0..1000).map(|number| format!("$share/{number}/{text}")).collect::<Vec<_>>();
        names.iter().for_each(|name| join(&index, name, 1));
        let groups = index.matches(&topic(&text.replace('+', "x"))).groups;
        assert_eq!(groups.len(), 1000);
        // Each copied reference to a group raises its counter: the old snapshot keeps its references.
        let _before = index.snapshot.load_full();
        let counts = || groups.iter().map(|route| Arc::strong_count(&route.group)).collect::<Vec<_>>();
        let counts_before = counts();
        join(&index, &format!("$share/new/{text}"), 1);
        let copied = counts().iter().zip(&counts_before).filter(|(after, before)| after > before).count();
        assert!(copied <= 64, "{text}: {copied} of 1000");
        names.iter().for_each(|name| index.edit().leave(&filter(name).shared().unwrap(), 1));
        assert_eq!(index.matches(&topic(&text.replace('+', "x"))).groups.len(), 1);
    }
}

#[test]
fn groups_count_for_one_owner_until_they_end() {
    let mut queues = GroupQueues::for_tests(10, 10_000, None);
    queues.groups_per_topic = 2;
    let rules = ShareRules::new(Policy::RoundRobin, Vec::new());
    let index = FilterIndex::new(rules, Arc::new(queues), Arc::new(Access::unlimited()));
    let owners = ["127.0.0.1", "127.0.0.2"].map(|address| {
        let memory = crate::memory::Memory::unlimited();
        memory.account(crate::memory::Owner::Address(address.parse().unwrap()))
    });
    let receivers = [0, 0, 1].map(|owner: usize| {
        let (outbox, load) = outbox();
        outbox.charge_to(&owners[owner]);
        Receiver { number: Arc::as_ptr(&outbox).addr() as u64, outbox, load, rights: rights() }
    });
    let may =
        |name: &str, receiver: &Receiver| index.edit().may_join(&filter(name).shared().unwrap(), &receiver.outbox);
    let join = |name: &str, receiver: &Receiver| {
        let grant =
            Grant { options: SubscriptionOptions::at(QoS::AtLeastOnce), identifier: None, weight: NonZeroU16::MIN };
        index.edit().join(&filter(name).shared().unwrap(), receiver, GroupMember::new(receiver, grant), Nanos(0));
    };
    let leave = |name: &str, receiver: &Receiver| index.edit().leave(&filter(name).shared().unwrap(), receiver.number);
    let counts = || owners.each_ref().map(|owner| owner.groups_of_a_topic());
    let [first, second, other] = &receivers;
    join("$share/a/t", first);
    join("$share/b/t", second);
    assert_eq!(["$share/c/t", "$share/a/t", "$share/a/u"].map(|name| may(name, second)), [false, true, true]);
    assert!(may("$share/c/t", other));
    join("$share/b/t", other);
    join("$share/a/t", second);
    join("$share/a/t", second);
    assert_eq!(counts(), [2, 1]);
    leave("$share/b/t", second);
    assert_eq!(counts(), [1, 1], "the other owner has it alone");
    assert!(may("$share/c/t", second));
    leave("$share/a/t", first);
    assert_eq!(counts(), [1, 1], "another client of the owner is a member");
    leave("$share/a/t", second);
    leave("$share/b/t", other);
    assert_eq!(counts(), [0, 0]);
}

#[test]
fn group_is_watched_if_a_subscription_may_cover_it() {
    let index = index();
    for name in ["a", "b", "c"] {
        join(&index, &format!("$share/{name}/x/#"), 1);
    }
    let watched = |far| {
        let groups = index.watched_groups(0, 10, far);
        groups.iter().map(|group| group.name().share_name.to_string()).collect::<String>()
    };
    index.edit().insert(&filter("#"), subscriber(1, None));
    index.edit().insert(&filter("$SYS/broker/#"), subscriber(1, None));
    assert_eq!((&*watched(false), &*watched(true)), ("", ""));
    for (text, near, far) in [
        ("$SYS/share/b/x%2F%23/members", "b", "b"),
        ("$SYS/share/c/#", "c", "c"),
        ("$SYS/share/+/+/decisions", "abc", "abc"),
        ("$SYS/share/#", "abc", "abc"),
        ("$SYS/#", "", "abc"),
        ("$SYS/+/a/+/shadow", "", "abc"),
    ] {
        index.edit().insert(&filter(text), subscriber(2, None));
        assert_eq!((&*watched(false), &*watched(true)), (near, far), "{text}");
        assert_eq!(
            numbers(&index, "$SYS/share/b/x%2F%23/members").contains(&2),
            filter(text).matches(&topic("$SYS/share/b/x%2F%23/members"))
        );
        index.edit().remove(&filter(text), 2);
        assert_eq!(watched(true), "", "{text}");
    }
    index.edit().insert(&filter("$SYS/share/#"), subscriber(2, None));
    let number = index.watched_groups(0, 2, false)[1].number().get();
    assert_eq!(index.watched_groups(number, 2, false).len(), 1, "the rest");
}
