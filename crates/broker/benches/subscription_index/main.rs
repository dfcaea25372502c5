//! Cost of a million subscriptions: matches, changes, memory.
//!
//! ```text
//! cargo bench -p tenbin-broker --bench subscription_index           # 1,000,000 exact filters, 100,000 with wildcards
//! cargo bench -p tenbin-broker --bench subscription_index -- --exact 10000 --wildcards 20000 \
//!     --sessions 100 --rounds 20
//! cargo bench -p tenbin-broker --bench subscription_index --no-run   # then, with the printed path, instructions:
//! valgrind --tool=callgrind --toggle-collect='*matches_of_one*' PATH --count
//! ```
//!
//! The bench runs many short rounds, so that some are undisturbed, and prints the best and the median per operation.
//! The ratio compares with a look-up in the standard library's `HashMap` of the same million topics, in random order.
//! It is the median over rounds, each with its own look-ups, so it is comparable between machines and days.
//!
//! *Random order* means topics of the whole plant, each for the first time: the index's data on them is in no near
//! cache, as between other work of a broker. *Hot* means the same few topics repeatedly. The topics' own bytes are hot
//! in both cases, as after a read from a socket. A match includes dropping its result. A connection that publishes to a
//! topic repeatedly caches its match until a subscription changes, and pays none of this.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]
#![allow(clippy::print_stdout, reason = "and prints what it finds")]

mod figures;
mod filters;

use std::time::{Duration, Instant};

use figures::{Found, Reference, resident};
use filters::{FORMS, Plant, filter, topic};
use tenbin_balancer::Rng;
use tenbin_broker::bench::{Session, Subscriptions};
use tenbin_codec::{TopicFilter, TopicName};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number_after = |name: &str| {
        let index = arguments.iter().position(|argument| argument == name)?;
        arguments.get(index + 1)?.parse::<u64>().ok()
    };
    let plant = Plant {
        exact: number_after("--exact").unwrap_or(1_000_000),
        wildcards: number_after("--wildcards").unwrap_or(100_000),
    };
    let sessions = number_after("--sessions").unwrap_or(10_000).max(FORMS);
    let rounds = number_after("--rounds").unwrap_or(100);
    let stage = Stage::build(plant, sessions);
    if arguments.iter().any(|argument| argument == "--count") {
        return count(&stage);
    }
    let reference = Reference::of((0..plant.exact).map(|sensor| plant.exact(sensor)));
    let rng = &mut Rng::new(1);
    Found::print_head();
    matches(&stage, &reference, rounds, rng);
    changes(&stage, &reference, rounds, rng);
    one_filter(&reference, &stage, rounds, rng);
}

/// All sessions and subscriptions.
struct Stage {
    plant: Plant,
    subscriptions: Subscriptions,
    sessions: Vec<Session>,
}

impl Stage {
    /// Builds all subscriptions and prints their cost.
    fn build(plant: Plant, count: u64) -> Self {
        let before = resident();
        let (subscriptions, sessions) = with_sessions(count);
        let with_sessions = resident();
        println!("{count} sessions: {:.0} bytes each", (with_sessions - before) / count as f64);
        let stage = Self { plant, subscriptions, sessions };

        let begun = Instant::now();
        for sensor in 0..plant.exact {
            stage.subscribe(stage.session_of(sensor), &filter(plant.exact(sensor)));
        }
        let with_exact = resident();
        told("without wildcards", plant.exact, begun.elapsed(), with_exact - with_sessions);

        let begun = Instant::now();
        let mut wildcards = 0;
        plant.each_wildcard(|form, text| {
            // Different forms have different sessions, so that a message has as many receivers as matching filters.
            let of_form = stage.sessions.len() as u64 / FORMS;
            stage.subscribe(spread(wildcards) % of_form * FORMS + form, &filter(text));
            wildcards += 1;
        });
        told("with wildcards", wildcards, begun.elapsed(), resident() - with_exact);
        stage
    }

    fn session_of(&self, sensor: u64) -> u64 {
        spread(sensor) % self.sessions.len() as u64
    }

    fn subscribe(&self, session: u64, filter: &TopicFilter) {
        self.subscriptions.subscribe(&self.sessions[session as usize], filter, Instant::now());
    }
}

fn told(what: &str, count: u64, took: Duration, bytes: f64) {
    let each = took.as_nanos() as f64 / count as f64;
    println!(
        "{count} subscriptions {what}: {:.1} s, {each:.0} ns each; {:.0} MB, {:.0} bytes each",
        took.as_secs_f64(),
        bytes / 1e6,
        bytes / count as f64
    );
}

fn with_sessions(count: u64) -> (Subscriptions, Vec<Session>) {
    let mut subscriptions = Subscriptions::new().expect("the default configuration");
    let sessions = (0..count).map(|_| subscriptions.session()).collect();
    (subscriptions, sessions)
}

/// Runs matches only, for counting their instructions.
fn count(stage: &Stage) {
    let (plant, rng) = (&stage.plant, &mut Rng::new(1));
    let exact = topics(ROUND, |rng| plant.exact(below(rng, plant.exact)), rng);
    let watched = topics(ROUND, |rng| plant.watched(below(rng, plant.sensors())), rng);
    matches_of_one(stage, &exact);
    matches_of_ten(stage, &watched);
    println!("{ROUND} topics of 1 exact filter, {ROUND} of {FORMS} wildcards: divide what is counted by that");
}

#[inline(never)]
fn matches_of_one(stage: &Stage, topics: &[TopicName]) {
    receivers(stage, topics, 1);
}

#[inline(never)]
fn matches_of_ten(stage: &Stage, topics: &[TopicName]) {
    receivers(stage, topics, FORMS);
}

fn matches(stage: &Stage, reference: &Reference, rounds: u64, rng: &mut Rng) {
    let plant = &stage.plant;
    let [mut look_up, mut exact, mut hot, mut nobody] = <[Found; 4]>::default();
    let [mut wildcards, mut wildcards_hot] = <[Found; 2]>::default();
    let few = topics(HOT, |rng| plant.exact(below(rng, plant.exact)), rng);
    let few_watched = topics(HOT, |rng| plant.watched(below(rng, plant.sensors())), rng);
    // The first round warms up branch predictors.
    for round in 0..=rounds {
        let known = topics(ROUND, |rng| plant.exact(below(rng, plant.exact)), rng);
        let begun = Instant::now();
        let reference_ns = reference.look_up(&known);
        let looked_up = begun.elapsed();
        let exact_topics = topics(ROUND, |rng| plant.exact(below(rng, plant.exact)), rng);
        let took_exact = receivers(stage, &exact_topics, 1);
        let took_nobody = receivers(stage, &topics(ROUND, |rng| plant.nobodys(below(rng, plant.exact)), rng), 0);
        let watched = topics(ROUND, |rng| plant.watched(below(rng, plant.sensors())), rng);
        let took_wildcards = receivers(stage, &watched, FORMS);
        receivers(stage, &few, 1);
        let took_hot = receivers(stage, &few, 1);
        receivers(stage, &few_watched, FORMS);
        let took_wildcards_hot = receivers(stage, &few_watched, FORMS);
        if round > 0 {
            look_up.add(looked_up, ROUND, reference_ns);
            exact.add(took_exact, ROUND, reference_ns);
            nobody.add(took_nobody, ROUND, reference_ns);
            wildcards.add(took_wildcards, ROUND, reference_ns);
            hot.add(took_hot, HOT, reference_ns);
            wildcards_hot.add(took_wildcards_hot, HOT, reference_ns);
        }
    }
    look_up.print("HashMap look-up, random order", "");
    exact.print("match of 1 exact filter, random order", "goal 300 ns");
    hot.print("match of 1 exact filter, hot", "goal 300 ns");
    wildcards.print(&format!("match of {FORMS} wildcards, random order"), "goal 2000 ns");
    wildcards_hot.print(&format!("match of {FORMS} wildcards, hot"), "goal 2000 ns");
    nobody.print("match of nothing, random order", "");
}

/// Creates topics whose bytes are adjacent in memory.
fn topics(count: usize, mut text: impl FnMut(&mut Rng) -> String, rng: &mut Rng) -> Vec<TopicName> {
    (0..count).map(|_| topic(text(rng))).collect()
}

#[inline(never)]
fn receivers(stage: &Stage, topics: &[TopicName], expected: u64) -> Duration {
    let begun = Instant::now();
    let found: usize = topics.iter().map(|topic| stage.subscriptions.receivers(topic)).sum();
    let took = begun.elapsed();
    assert_eq!(found as u64, expected * topics.len() as u64, "who receives what is published");
    took
}

/// Subscribing and unsubscribing, on the full index and on an empty one.
fn changes(stage: &Stage, reference: &Reference, rounds: u64, rng: &mut Rng) {
    let plant = &stage.plant;
    let empty = Subscriptions::new().expect("the default configuration");
    let cases = [("no wildcard", false), ("wildcards", true)];
    for ((name, is_wildcard), (subscriptions, place)) in cases
        .into_iter()
        .flat_map(|case| [(case, (&stage.subscriptions, "at that size")), (case, (&empty, "at first"))])
    {
        let [mut subscribing, mut unsubscribing] = <[Found; 2]>::default();
        for round in 0..=rounds {
            let known = topics(ROUND, |rng| plant.exact(below(rng, plant.exact)), rng);
            let reference_ns = reference.look_up(&known);
            let new = (0..CHANGES as u64).map(|_| plant.exact.max(plant.wildcards) + below(rng, plant.exact));
            let text = |sensor| if is_wildcard { plant.of_sensor(sensor) } else { plant.exact(sensor) };
            let new: Vec<_> = new.map(|sensor| (&stage.sessions[stage.session_of(sensor) as usize], sensor)).collect();
            let new: Vec<_> = new.into_iter().map(|(session, sensor)| (session, filter(text(sensor)))).collect();
            let [subscribed, unsubscribed] = change(subscriptions, &new);
            if round > 0 {
                subscribing.add(subscribed, CHANGES, reference_ns);
                unsubscribing.add(unsubscribed, CHANGES, reference_ns);
            }
        }
        subscribing.print(&format!("subscribe, {name}, {place}"), "");
        unsubscribing.print(&format!("unsubscribe, {name}, {place}"), "");
    }
}

#[inline(never)]
fn change(subscriptions: &Subscriptions, new: &[(&Session, TopicFilter)]) -> [Duration; 2] {
    let begun = Instant::now();
    new.iter().for_each(|(session, filter)| subscriptions.subscribe(session, filter, begun));
    let subscribed = begun.elapsed();
    let begun = Instant::now();
    new.iter().for_each(|(session, filter)| subscriptions.unsubscribe(session, filter));
    [subscribed, begun.elapsed()]
}

/// Many sessions with the same filter.
fn one_filter(reference: &Reference, stage: &Stage, rounds: u64, rng: &mut Rng) {
    let popular = || filter("plant/announcements".to_owned());
    for count in [1_000, 10_000, 100_000] {
        let (subscriptions, mut sessions) = with_sessions(count + CHANGES as u64);
        let before = resident();
        // Later sessions have numbers between the others', as if they had subscribed again.
        let mut further = Vec::new();
        for _ in 0..CHANGES {
            further.push((sessions.swap_remove(below(rng, sessions.len() as u64) as usize), popular()));
        }
        sessions.iter().for_each(|session| subscriptions.subscribe(session, &popular(), Instant::now()));
        let bytes = (resident() - before) / count as f64;
        println!("1 filter with {count} subscribers: {bytes:.0} bytes each");
        let further: Vec<_> = further.iter().map(|(session, filter)| (session, filter.clone())).collect();
        let [mut subscribing, mut unsubscribing, mut matching] = <[Found; 3]>::default();
        let announcement = [topic("plant/announcements".to_owned())];
        for round in 0..=rounds {
            let known = topics(ROUND, |rng| stage.plant.exact(below(rng, stage.plant.exact)), rng);
            let reference_ns = reference.look_up(&known);
            let begun = Instant::now();
            let found = subscriptions.receivers(&announcement[0]);
            let took = begun.elapsed();
            assert_eq!(found as u64, count, "everybody receives it");
            let [subscribed, unsubscribed] = change(&subscriptions, &further);
            if round > 0 {
                matching.add(took, count as usize, reference_ns);
                subscribing.add(subscribed, CHANGES, reference_ns);
                unsubscribing.add(unsubscribed, CHANGES, reference_ns);
            }
        }
        subscribing.print("  one more subscribes", "");
        unsubscribing.print("  one unsubscribes", "");
        matching.print("  match, for each receiver", "");
    }
}

fn below(rng: &mut Rng, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// Hashes a number, so that neighbours are far apart.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

/// Topics per round in random order.
const ROUND: usize = 1_000;
/// Topics that are matched repeatedly.
const HOT: usize = 64;
/// Subscriptions added and removed per round.
const CHANGES: usize = 100;
