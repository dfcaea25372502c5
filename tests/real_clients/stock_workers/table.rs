use std::io::Write as _;
use std::time::Duration;

use super::FACTORS;
use super::acknowledgements;
use super::kind::{self, Kind};
use super::run::{Outcome, Path, Setup};

const MESSAGES: usize = 2359;

const ALL: [&Kind; 9] = [
    &kind::PAHO_PYTHON_START,
    &kind::PAHO_PYTHON_FOREVER,
    &kind::MQTT_JS_HANDLE_MESSAGE,
    &kind::MQTT_JS_ON_MESSAGE,
    &kind::MQTT_JS_ON_MESSAGE_REPORTS,
    &kind::HIVEMQ_BLOCKING,
    &kind::HIVEMQ_MANUAL,
    &kind::PAHO_GO,
    &kind::MOSQUITTO_SUB,
];

/// Each kind works on one message at a time.
const CONCURRENCY: &[&str] = &["concurrency=1"];

/// Three workers of 20 ms and one of 60 ms, with exponential work.
fn near<'a>(kind: &'a Kind, told: &'static [&'static str], policy: &'static str) -> Setup<'a> {
    let work = Duration::from_millis(20);
    Setup { kind, told, policy, factors: FACTORS, work, load: 0.7, messages: MESSAGES, path: None }
}

/// Four workers of 5 ms behind a proxy with a delay of 10 ms in each direction.
fn proxied(told: &'static [&'static str], load: f64, jitter: Duration) -> Setup<'static> {
    let path = Some(Path { delay: Duration::from_millis(10), jitter });
    Setup {
        work: Duration::from_millis(5),
        factors: &[1; 4],
        load,
        path,
        ..near(&kind::PAHO_PYTHON_START, told, "adaptive")
    }
}

fn setups() -> Vec<Setup<'static>> {
    let mut setups: Vec<_> = ALL.into_iter().map(|kind| near(kind, &[], "adaptive")).collect();
    setups.push(near(&kind::PAHO_PYTHON_START, &[], "round_robin"));
    let pahos = [&kind::PAHO_PYTHON_START, &kind::PAHO_PYTHON_FOREVER];
    setups.extend(pahos.map(|kind| near(kind, &["receive-maximum=1"], "adaptive")));
    let can_tell = ALL.into_iter().filter(|kind| !kind.name.contains("$load"));
    setups.extend(can_tell.map(|kind| near(kind, CONCURRENCY, "adaptive")));
    for load in [0.25, 0.5, 0.85] {
        setups.extend([&[], CONCURRENCY].map(|told| proxied(told, load, Duration::ZERO)));
    }
    setups.extend([&[], CONCURRENCY].map(|told| proxied(told, 0.5, Duration::from_millis(5))));
    setups
}

/// Name in the table. `TENBIN_STOCK` selects setups by parts of it.
fn name(setup: &Setup) -> String {
    let path = setup.path.map(|path| format!("{} ms + {} ms", path.delay.as_millis(), path.jitter.as_millis()));
    let told = if setup.told.is_empty() { "nothing told".to_owned() } else { setup.told.join(" ") };
    let path = path.map_or("near".to_owned(), |path| format!("proxy of {path}"));
    format!("{}; {}; {told}; {path}; load {}", setup.kind.name, setup.policy, setup.load)
}

/// Takes three quarters of an hour. A busy machine makes waits longer: see the lag.
///
/// - `TENBIN_STOCK=paho,proxy`: setups whose name has one of these parts; default: all.
/// - `TENBIN_STOCK_ROUNDS`: runs of each setup; default 5. The table has their medians.
/// - `TENBIN_STOCK_SEED`: seed of the first run; default 1.
#[test]
#[ignore = "the long form: .ci/long stock"]
fn stock_workers_print_a_table_of_waiting_times() {
    let number = |name, default| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let (rounds, seed) = (number("TENBIN_STOCK_ROUNDS", 5), number("TENBIN_STOCK_SEED", 1));
    let wanted = std::env::var("TENBIN_STOCK").unwrap_or_default();
    let is_wanted = |name: &str| wanted.split(',').any(|part| name.contains(part.trim()));
    say("acknowledgements of three messages of 300 ms, in ms after their arrival");
    for kind in ALL.into_iter().filter(|kind| is_wanted(kind.name) && kind.is_installed()) {
        let times = acknowledgements::observe(kind);
        say(&format!("  {:<36}{:?}", kind.name, times.iter().map(Duration::as_millis).collect::<Vec<_>>()));
    }
    let lacking = "lag: by how much the publisher was late; repeated: messages worked on twice";
    say(&format!("waiting times in ms, medians of {rounds} runs; {lacking}\n{HEAD}"));
    for setup in setups().iter().filter(|setup| is_wanted(&name(setup)) && setup.kind.is_installed()) {
        let outcomes: Vec<_> = (seed..seed + rounds).map(|seed| setup.run(seed)).collect();
        say(&row(&name(setup), &outcomes));
    }
}

const HEAD: &str = "| workers | mean | p99 | ideal mean | ideal p99 | ratio | means | lag p99 | repeated | last worker |\n\
    |---|---|---|---|---|---|---|---|---|---|";

fn row(name: &str, outcomes: &[Outcome]) -> String {
    let of = |value: fn(&Outcome) -> f64| median(outcomes.iter().map(value).collect());
    let mut means: Vec<_> = outcomes.iter().map(|outcome| outcome.waits.mean()).collect();
    means.sort_by(f64::total_cmp);
    let repeated: usize = outcomes.iter().map(|outcome| outcome.repeated).sum();
    let share = of(|outcome| {
        let last = *outcome.worked.last().expect("a group has workers");
        100.0 * last as f64 / outcome.worked.iter().sum::<usize>() as f64
    });
    format!(
        "| {name} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {:.1}–{:.1} | {:.1} | {repeated} | {share:.1} % |",
        of(|outcome| outcome.waits.mean()),
        of(|outcome| outcome.waits.p99()),
        of(|outcome| outcome.ideal.mean()),
        of(|outcome| outcome.ideal.p99()),
        of(|outcome| outcome.waits.mean() / outcome.ideal.mean()),
        means[0],
        means[means.len() - 1],
        of(|outcome| outcome.lag.p99()),
    )
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Past the test harness, which would capture the line.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
