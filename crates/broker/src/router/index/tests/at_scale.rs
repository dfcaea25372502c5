//! Tests at a hundredth of the size of `benches/subscription_index`, with checks of how little a change copies.

use std::collections::HashMap;

use tenbin_balancer::Rng;

use super::*;

/// Subscribers that differ only in their numbers.
struct Crowd(Subscriber);

impl Crowd {
    fn new() -> Self {
        Self(subscriber(0, None))
    }

    fn one(&self, number: u64) -> Subscriber {
        Subscriber { number, ..self.0.clone() }
    }
}

fn below(rng: &mut Rng, bound: u64) -> u64 {
    rng.next_u64() % bound
}

/// A path in a plant. Each level is a name or, with `wildcards`, possibly a wildcard.
fn path(rng: &mut Rng, wildcards: bool) -> String {
    let mut levels = Vec::new();
    for (kind, count) in [("site", 10), ("line", 5), ("sensor", 300), ("quantity", 3)] {
        let number = below(rng, count);
        for level in [kind.to_owned(), number.to_string()] {
            match below(rng, 20) {
                0 if wildcards => return [&levels[..], &["#".to_owned()]].concat().join("/"),
                1..=4 if wildcards => levels.push("+".to_owned()),
                _ => levels.push(level),
            }
        }
    }
    levels.join("/")
}

#[test]
fn index_finds_matches_among_ten_thousand_filters() {
    let (index, crowd, rng) = (index(), Crowd::new(), &mut Rng::new(7));
    let mut exact: HashMap<String, Vec<u64>> = HashMap::new();
    for number in 1..=10_000 {
        let text = path(rng, false);
        index.edit().insert(&filter(&text), crowd.one(number));
        exact.entry(text).or_default().push(number);
    }
    let mut wildcards = Vec::new();
    for number in 10_001..=11_000 {
        let filter = filter(&path(rng, true));
        index.edit().insert(&filter, crowd.one(number));
        wildcards.push((filter, number));
    }
    let mut topics: Vec<_> = exact.keys().take(200).cloned().collect();
    topics.extend((0..100).map(|_| path(rng, false)));
    let check = |exact: &HashMap<String, Vec<u64>>, wildcards: &[(TopicFilter, u64)]| {
        let mut found = 0;
        for name in &topics {
            let matching = wildcards.iter().filter(|(filter, _)| filter.matches(&topic(name)));
            let mut expected = exact.get(name).cloned().unwrap_or_default();
            expected.extend(matching.map(|(_, number)| number));
            expected.sort_unstable();
            assert_eq!(numbers(&index, name), expected, "{name}");
            found += expected.len();
        }
        found
    };
    let before = check(&exact, &wildcards);
    for (text, numbers) in &mut exact {
        numbers.retain(|number| {
            let stays = number % 3 == 0;
            if !stays {
                index.edit().remove(&filter(text), *number);
            }
            stays
        });
    }
    wildcards.retain(|(filter, number)| {
        let stays = number % 3 == 0;
        if !stays {
            index.edit().remove(filter, *number);
        }
        stays
    });
    let after = check(&exact, &wildcards);
    assert!(before > 2 * after && after > topics.len() / 10, "{before} and {after} were found");
    exact
        .iter()
        .for_each(|(text, numbers)| numbers.iter().for_each(|number| index.edit().remove(&filter(text), *number)));
    wildcards.iter().for_each(|(filter, number)| index.edit().remove(filter, *number));
    let snapshot = index.snapshot.load();
    assert!(snapshot.exact.is_empty() && snapshot.wildcards.is_empty());
}

/// Returns how many subscriptions of others `change` copies. Each copy raises the reference counter of its rights.
fn copied(index: &FilterIndex, others: &[Subscriber], change: impl FnOnce()) -> usize {
    let _before = index.snapshot.load_full();
    let counts = || others.iter().map(|other| Arc::strong_count(&other.rights)).collect::<Vec<_>>();
    let counts_before = counts();
    change();
    counts().iter().zip(&counts_before).filter(|(after, before)| after > before).count()
}

#[test]
fn a_change_copies_few_subscriptions_of_others() {
    let crowd = Crowd::new();
    let access = Arc::new(Access::unlimited());
    let one = |number| {
        let principal = Arc::unwrap_or_clone(crowd.0.rights.principal());
        Subscriber { rights: Arc::new(Rights::new(Arc::clone(&access), principal)), ..crowd.one(number) }
    };
    for form in ["site/N/line", "site/+/N/line", "site/N/#", "all", "all/+", "all/#"] {
        let index = index();
        let text = |number: u64| filter(&form.replace('N', &number.to_string()));
        // In random order, and without every second number, which comes later.
        let others = (0..4096u64).map(|i| one(i * 617 % 4096 * 2)).collect::<Vec<_>>();
        others.iter().for_each(|other| index.edit().insert(&text(other.number), other.clone()));
        for number in [1, 1001, 8191, 9001] {
            let subscribing = copied(&index, &others, || index.edit().insert(&text(number), one(number)));
            let unsubscribing = copied(&index, &others, || index.edit().remove(&text(number), number));
            assert!(subscribing.max(unsubscribing) <= 64, "{form}: {subscribing} and {unsubscribing} of 4096");
        }
    }
}

#[test]
fn a_filter_may_have_a_thousand_levels() {
    let (index, crowd) = (index(), Crowd::new());
    let levels = vec!["a"; 999].join("/");
    for (number, end) in [(1, "a"), (2, "+"), (3, "#")] {
        index.edit().insert(&filter(&format!("{levels}/{end}")), crowd.one(number));
    }
    index.edit().insert(&filter(&format!("+/{levels}")), crowd.one(4));
    assert_eq!(numbers(&index, &format!("{levels}/a")), [1, 2, 3, 4]);
    assert_eq!(numbers(&index, &levels), [3]);
    index.edit().remove(&filter(&format!("{levels}/+")), 2);
    assert_eq!(numbers(&index, &format!("{levels}/b")), [3]);
}

fn crowded_filter() -> impl Strategy<Value = TopicFilter> {
    let names = ["a", "b", "c", "d", "e", "", "+", "+", "a-name-that-is-longer-than-others"];
    let levels = prop::collection::vec(prop::sample::select(names.to_vec()), 1..7);
    (levels, prop::bool::weighted(0.3)).prop_map(|(levels, hash)| {
        let text = if hash { format!("{}/#", levels.join("/")) } else { levels.join("/") };
        filter(if text.is_empty() { "/" } else { &text })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares with the naive model: hundreds of filters, few of them repeated, from few sessions and from many.
    #[test]
    fn index_matches_a_list_of_hundreds_of_filters(
        changes in prop::collection::vec((crowded_filter(), any::<u64>(), prop::bool::weighted(0.8)), 200..600),
        sessions in prop::sample::select(vec![3u64, 40, 10_000]),
        topics in prop::collection::vec(
            prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "", "a-name-that-is-longer-than-others"]), 1..8),
            30,
        ),
    ) {
        let (index, crowd) = (index(), Crowd::new());
        let mut model: Vec<(TopicFilter, u64)> = Vec::new();
        for (filter, number, add) in changes {
            let number = number % sessions;
            match add {
                true => index.edit().insert(&filter, crowd.one(number)),
                false => {
                    // Remove an existing subscription, if the filter has one.
                    let known = model.iter().find(|(known, _)| *known == filter).map_or(number, |(_, number)| *number);
                    index.edit().remove(&filter, known);
                    model.retain(|(other, number)| (other, *number) != (&filter, known));
                }
            }
            if add && !model.contains(&(filter.clone(), number)) {
                model.push((filter, number));
            }
        }
        for name in topics.iter().map(|levels| levels.join("/")).filter(|name| !name.is_empty()) {
            let matching = model.iter().filter(|(filter, _)| filter.matches(&topic(&name)));
            let mut expected = matching.map(|(_, number)| *number).collect::<Vec<_>>();
            expected.sort_unstable();
            expected.dedup();
            prop_assert_eq!(numbers(&index, &name), expected);
        }
    }
}
