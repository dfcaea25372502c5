//! The page of a large verification: 10 minutes of three variants, three runs each.

use std::fmt::Write as _;

use super::*;
use crate::judge::figure::Figure;
use crate::judge::measured::Figures;
use crate::judge::windows::{Effect, Phase, windows};
use crate::results::Happening;
use crate::template::Template;
use crate::units::Time;

/// Length of the measurement, and of the drain, in seconds.
const TIME: u64 = 600;
const DRAIN: u64 = 60;

const TEMPLATE: &str = "\
title: Faults of processes and networks on three brokers
base: { runtime: namespaces, seed: 7 }
systems:
  broker: { kind: rabbitmq, replicas: 3 }
  sensors: { publishes_to: broker, count: 8, size: 1KiB, rate: 20000, qos: 1 }
  readers: { subscribes_to: broker, count: 4, qos: 1, session_expiry: 1h }
  archive: { subscribes_to: broker, qos: 1, session_expiry: 1h }
actions:
  - { name: kill, target: broker-1, fault: kill, start: 60, duration: 2, every: 120s, times: 5 }
  - { name: slow-link-to-the-archive, fault: net.delay, delay: 50ms, from: broker, to: archive, start: 100, duration: 25 }
  - { name: partition-of-the-third-broker, fault: net.partition, from: broker-3, to: broker, both: true, start: 300, duration: 60.5 }
measure: { time: 600, warm_up: 5s, before: 50, drain: 60, repeat: 3 }
assert: [ lost = 0, duplicated = 0, received_bytes during slow-link-to-the-archive >= 0.95 x before, recovered after kill <= 10s ]
variants:
  standalone-with-a-long-name:
    published:
      - published_bytes before = 10.216 MB/s
      - received_bytes before = 10.217 MB/s
      - received_bytes during kill = 5.362 MB/s
      - p50 before = 0.034s
      - p50 during kill = 9.58s
  pair: {}
  cluster: { expect: fail }
";

/// Begins and ends, as the clock has them: in no whole ticks.
fn effects(run: u32) -> Vec<Effect> {
    let late = f64::from(run) * 0.0137;
    let effect = |action: &str, begin: f64, end: f64| Effect {
        action: action.to_owned(),
        begin: Time::from_secs_f64(begin + late),
        end: Time::from_secs_f64(end + late),
    };
    let kills = (0..5).map(|time| 60.0 + 120.0 * f64::from(time)).map(|at| effect("kill", at + 0.0042, at + 2.731));
    let others =
        [effect("slow-link-to-the-archive", 100.001, 125.0), effect("partition-of-the-third-broker", 300.003, 360.507)];
    kills.chain(others).collect()
}

fn events(run: u32) -> Vec<Event> {
    let mut events = Vec::new();
    let mut repetitions = std::collections::BTreeMap::new();
    for effect in effects(run) {
        let repetition = repetitions.entry(effect.action.clone()).and_modify(|number| *number += 1).or_insert(1);
        let targets = vec!["broker-1".to_owned(), "broker-2 → archive".to_owned()];
        for (at, happening) in [
            (effect.begin, Happening::Resolved { targets }),
            (effect.begin, Happening::Begun),
            (effect.end, Happening::Ended),
            (effect.end, Happening::Undone),
        ] {
            let (action, repetition) = (effect.action.clone(), *repetition);
            events.push(Event { time_ns: at.ns(), at: Some(at), action, repetition, happening });
        }
    }
    events.sort_by_key(|event| event.at);
    events
}

/// All figures of all phases. The second of three runs loses 4 messages.
fn figures(run: u32, windows: &[crate::judge::windows::Window]) -> Figures {
    let mut figures = Figures::default();
    for (number, window) in (1..).zip(windows) {
        for (figure, value) in [
            (Figure::Lost, if run == 2 { 4.0 } else { 0.0 }),
            (Figure::Duplicated, 0.0),
            (Figure::OutOfOrder, 0.0),
            (Figure::Unconfirmed, 12_345.0),
            (Figure::Refused, 0.0),
            (Figure::Reconnects, 12.0),
            (Figure::Unavailable, 1.29),
            (Figure::PublishedMessages, 20_000.0),
            (Figure::PublishedBytes, 20_480_000.0 + f64::from(run)),
            (Figure::ReceivedMessages, 100_000.0),
            (Figure::ReceivedBytes, 102_400_000.0 - 1e6 * f64::from(run)),
            (Figure::Backlog, 1_234_567.0),
            (Figure::P50, 0.0004 * f64::from(number)),
            (Figure::P99, 1.5 + 0.1 * f64::from(run)),
            (Figure::Max, 12.75),
        ] {
            figures.set(window.phase.clone(), figure, value);
        }
        if matches!(window.phase, Phase::After(_)) {
            figures.set(window.phase.clone(), Figure::Recovered, 4.25);
        }
    }
    figures
}

fn seconds(run: u32) -> String {
    let mut text = "second,published,published_bytes,received,received_bytes,p50_ms,p99_ms,max_ms\n".to_owned();
    for second in 0..TIME + DRAIN {
        let is_down = effects(run).iter().any(|effect| {
            effect.action == "kill" && effect.begin.secs() < second as f64 + 1.0 && effect.end.secs() > second as f64
        });
        let noise = (second * 7919 + u64::from(run) * 104_729) % 997;
        let published = if second >= TIME || is_down { 0 } else { 19_500 + noise };
        let received = if is_down { 0 } else { 5 * published };
        let ms = if is_down { 2_500.0 } else { 0.4 + noise as f64 / 1e3 };
        let times = if received == 0 { ",,".to_owned() } else { format!("{ms:.3},{:.3},{:.3}", ms * 4.0, ms * 30.0) };
        let bytes = (published * 1024, received * 1024);
        writeln!(text, "{second},{published},{},{received},{},{times}", bytes.0, bytes.1).unwrap();
    }
    text
}

fn link_rows() -> String {
    let machines = ["broker-1", "broker-2", "broker-3", "sensors", "readers", "archive"];
    let mut text = "second,from,to,bytes,packets,dropped,queued\n".to_owned();
    for second in 0..TIME {
        for (from, to) in machines.iter().flat_map(|from| machines.iter().map(move |to| (from, to))) {
            if from != to {
                writeln!(text, "{second},{from},{to},{},{},{},0", second * 1000, second, second / 599).unwrap();
            }
        }
    }
    text
}

/// Writes the results of `runs` runs of each variant; returns the page.
fn page(directory: &Path, runs: u32) -> String {
    let templates = Template::read("faults.yaml", TEMPLATE).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let mut variants = Vec::new();
    for template in &templates {
        let plan = Plan::new(template, None).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let mut verdicts = Vec::new();
        for number in 1..=runs {
            let windows = windows(&effects(number), plan.measure.before, plan.measure.time);
            let figures = figures(number, &windows);
            let mut verdict = RunVerdict::new(number, plan.seed, &windows, figures, &plan.assertions);
            verdict.notes = vec!["the system was not steady after 60s".to_owned()];
            verdicts.push(verdict);
            let run = directory_of(directory, &plan.variant, number);
            fs::create_dir_all(&run).unwrap();
            let lines = events(number).iter().map(|event| serde_json::to_string(event).unwrap() + "\n").collect();
            for (name, text) in [
                ("plan.json", plan.json()),
                ("events.jsonl", lines),
                ("seconds.csv", seconds(number)),
                ("links.csv", link_rows()),
            ] {
                fs::write(run.join(name), text).unwrap();
            }
        }
        variants.push(VariantVerdict::new(&plan.variant, plan.expect, verdicts, plan.published.clone()));
    }
    let verdict = Verdict::new("faults", templates[0].title.clone(), variants);
    fs::write(directory.join("verdict.json"), verdict.json()).unwrap();
    let path = directory.join("report.html");
    write(&[directory.to_owned()], &path).unwrap();
    fs::read_to_string(path).unwrap()
}

/// The figures of a page, by their id.
fn svgs(page: &str) -> Vec<(&str, &str)> {
    let figure = |text: &'_ str| -> Option<(usize, usize)> { Some((text.find("\">")?, text.find("</figure>")?)) };
    let figures = page.split("<figure id=\"").skip(1).map(|text| {
        let (id, end) = figure(text).expect("a whole figure");
        (&text[..id], &text[..end])
    });
    figures.flat_map(|(id, text)| text.split("<svg").skip(1).map(move |svg| (id, svg))).collect()
}

/// Well-formed, a page alone, and small. `TENBIN_WRITE_PAGE=DIR` keeps the results in that directory, for a look at them.
#[test]
fn page_of_ten_minutes_and_three_variants_is_one_small_file() {
    let directory = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("TENBIN_WRITE_PAGE").map(PathBuf::from);
    let page = page(kept.as_deref().unwrap_or(directory.path()), 3);
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    // What HTML lets one leave open is no XML: the head, and the doctype.
    let body = page.split_once("<body>").and_then(|(_, body)| body.split_once("</body>")).expect("a body").0;
    let body = format!("<body>{body}</body>");
    let document = roxmltree::Document::parse(&body).expect("well-formed");
    let ids: Vec<_> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(ids.len(), unique.len(), "an id twice: {ids:?}");
    for node in document.descendants() {
        assert!(!["script", "img", "link", "iframe", "object", "image", "use"].contains(&node.tag_name().name()));
        for attribute in node.attributes() {
            let (name, value) = (attribute.name(), attribute.value());
            assert!(!["src", "srcset", "data", "action"].contains(&name), "{name}={value}");
            assert!(name != "href" || ids.contains(&value.trim_start_matches('#')), "{name}={value}");
            assert!(!value.contains("url("), "{name}={value}");
        }
    }
    let head = page.split_once("<body>").expect("a body").0;
    for wrong in ["http:", "https:", "url(", "@import", "<link", "<script"] {
        assert!(!head.contains(wrong), "{wrong} in the head");
    }
    assert_eq!(svgs(&page).len(), 3 * 3 * 2 * 2, "three variants, three runs, two figures, two widths");
}

#[test]
fn drawn_edges_of_faults_are_within_50_ms_of_their_events() {
    let directory = tempfile::tempdir().unwrap();
    let page = page(directory.path(), 2);
    for (id, svg) in svgs(&page) {
        let svg = format!("<svg{}", svg.split_once("</svg>").expect("its end").0) + "</svg>";
        let svg = roxmltree::Document::parse(&svg).expect("well-formed");
        let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("{id}: {text}"));
        // The axis: M left,bottom h width
        let axis = svg.descendants().find_map(|node| {
            let path = node.attribute("d").filter(|_| node.attribute("class") == Some("x"))?;
            let (start, width) = path.strip_prefix('M')?.split_once('h')?;
            Some((number(start.split_once(',')?.0), number(width)))
        });
        let (left, width) = axis.expect("an axis");
        let second = |x: f64| (x - left) / width * (TIME + DRAIN) as f64;
        let zones = svg.descendants().filter(|node| node.attribute("class") == Some("z"));
        let drawn: Vec<_> = zones
            .map(|zone| {
                let of = |name| number(zone.attribute(name).expect("a rectangle"));
                (second(of("x")), second(of("x") + of("width")))
            })
            .collect();
        let run = if id.contains("-2-") { 2 } else { 1 };
        let log =
            Event::read(fs::read(directory_of(directory.path(), "pair", run).join("events.jsonl")).unwrap().as_slice());
        let log = log.unwrap();
        let edge = |event: &Event| {
            let is_begin = event.happening == Happening::Begun;
            (is_begin || event.happening == Happening::Undone).then(|| (is_begin, event.at.expect("a time").secs()))
        };
        let edges: Vec<_> = log.iter().filter_map(edge).collect();
        assert_eq!(edges.len(), 14);
        for (is_begin, at) in edges {
            let distance = |(from, to): &(f64, f64)| (if is_begin { from - at } else { to - at }).abs();
            let nearest = drawn.iter().map(distance).fold(f64::INFINITY, f64::min);
            assert!(nearest <= 0.05, "{id}: {at} s, {nearest} s from an edge of {drawn:?}");
        }
    }
}
