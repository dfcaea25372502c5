//! Compares the tables of docs/VERIFY.md with the code: keys, defaults, faults, figures, kinds, ready verifications.

use std::collections::BTreeSet;

use super::error::Complaints;
use super::node::YamlNode;
use super::*;
use crate::judge::figure::{FIGURES, Unit};
use crate::kind::KINDS;
use crate::library;

const PAGE: &str = include_str!("../../../../docs/VERIFY.md");

/// Cells of the table whose first heading is `heading`.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let start = format!("| {heading} |");
    let lines = PAGE.lines().skip_while(|line| !line.starts_with(&start)).skip(2);
    let rows: Vec<_> = lines.take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(!rows.is_empty(), "docs/VERIFY.md has no table {heading:?}");
    rows
}

fn cells(line: &'static str) -> Vec<&'static str> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(str::trim).collect()
}

/// Words in backticks.
fn words(cell: &'static str) -> Vec<&'static str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// First words of a table's rows.
fn keys(heading: &str) -> BTreeSet<&'static str> {
    table(heading).into_iter().flat_map(|row| words(row[0])).collect()
}

/// Documented defaults, as `key: value`.
fn defaults(heading: &str) -> Vec<String> {
    let is_value = |row: &Vec<&'static str>| row[2].starts_with('`');
    table(heading)
        .into_iter()
        .filter(is_value)
        .map(|row| format!("{}: {}", words(row[0])[0], words(row[2])[0]))
        .collect()
}

/// The first variant of a file, and the keys of each map that was looked for.
fn read(text: &str) -> (Template, Vec<(String, Vec<&'static str>)>) {
    let mut complaints = Complaints::new("t.yaml");
    let root = YamlNode::parse(text, &mut complaints).unwrap();
    let variant = variants::expand(&root, &mut complaints).remove(0);
    let template = template("t.yaml", variant, &mut complaints).unwrap();
    let keys = complaints.keys.clone();
    complaints.end(template).map_or_else(|mistakes| panic!("{mistakes}\nin\n{text}"), |template| (template, keys))
}

/// A file with these keys more: of `base`, a system, clients, an action, `measure`.
fn file([of_file, base, system, topic, clients, measure]: [&str; 6]) -> String {
    let (pub_, sub) = ("publishes_to: b", "subscribes_to: b");
    let fits_both: Vec<_> = clients.split(", ").filter(|key| !key.starts_with("rate")).collect();
    format!(
        "base: {{ {base} }}\nsystems:\n  b: {{ kind: command, command: x, ready: {{ port: 1 }}, disk: {{ size: 1GiB }}, \
         topic: {{ {topic} }}, {system} }}\n  p: {{ {pub_}, {clients} }}\n  s: {{ {sub}, {} }}\nmeasure: {{ {measure} }}\n\
         assert: [ lost = 0 ]\n{of_file}\n",
        fits_both.join(", ")
    )
}

fn without_places(mut template: Template) -> Template {
    template.systems.iter_mut().for_each(|system| system.place = Place::default());
    for client in &mut template.clients {
        (client.place, client.to_place) = (Place::default(), Place::default());
    }
    for action in &mut template.actions {
        (action.place, action.start_place) = (Place::default(), Place::default());
    }
    template
}

#[test]
fn every_key_of_a_file_is_documented() {
    let (_, known) = read(&file([""; 6]));
    let of = |path: &str| {
        let found = known.iter().filter(|(known, _)| known == path).flat_map(|(_, keys)| keys.iter().copied());
        found.collect::<BTreeSet<_>>()
    };
    for (heading, path) in [
        ("key of the file", ""),
        ("key of `base`", "base"),
        ("key of a system", "systems.b"),
        ("key of `ready`", "systems.b.ready"),
        ("key of `topic`", "topic"),
        ("key of `disk`", "disk"),
        ("key of `measure`", "measure"),
    ] {
        assert_eq!(keys(heading), of(path), "{heading}");
    }
    let clients: BTreeSet<_> = of("systems.p").union(&of("systems.s")).copied().collect();
    assert_eq!(keys("key of clients"), clients);
}

#[test]
fn documented_defaults_are_those_of_the_code() {
    let none = without_places(read(&file([""; 6])).0);
    let of_system = defaults("key of a system").into_iter().filter(|key| !key.starts_with("kind:")).collect::<Vec<_>>();
    let of = |heading: &str| defaults(heading).join(", ");
    let all = [
        defaults("key of the file").join("\n"),
        of("key of `base`"),
        of_system.join(", "),
        of("key of `topic`"),
        of("key of clients"),
        of("key of `measure`"),
    ];
    assert!(all.iter().all(|keys| keys.contains(':')), "{all:?}");
    let given = without_places(read(&file(all.each_ref().map(String::as_str))).0);
    assert_eq!(given, none);
}

#[test]
fn faults_are_documented_with_parameters_and_defaults() {
    let rows = table("fault");
    let documented: BTreeSet<_> = rows.iter().map(|row| words(row[0])[0]).collect();
    assert_eq!(documented, FAULTS.into_iter().chain(["command"]).collect());
    let common = keys("key of an action");
    for row in rows {
        let (fault, parameters) = (words(row[0])[0], words(row[1]));
        // A default is in parentheses behind its parameter.
        let has_default = |word: &str| row[1].contains(&format!("`{word}` (`"));
        let is_default = |word: &str| row[1].contains(&format!("(`{word}`)"));
        let names: Vec<_> = parameters.iter().copied().filter(|word| !is_default(word)).collect();
        let values = parameters.iter().copied().filter(|word| is_default(word));
        let defaults: Vec<_> = names.iter().filter(|name| has_default(name)).zip(values).collect();
        let given = |name: &str| match name {
            "delay" | "jitter" | "by" => "1ms",
            "rate" => "1Mbit/s",
            "bytes" => "1MiB",
            "partition" => "[[b], [p]]",
            "undo" | "command" => "x",
            _ => "1%",
        };
        // One of both is required.
        let required = names.iter().filter(|name| !has_default(name) || (fault == "clock.skew" && **name == "by"));
        let required: Vec<_> = required.map(|name| format!("{name}: {}", given(name))).collect();
        let defaults = defaults.into_iter().filter(|(name, _)| fault != "clock.skew" || **name != "by");
        let defaults: Vec<_> = defaults.map(|(name, value)| format!("{name}: {value}")).collect();
        let target = if names.contains(&"partition") { "" } else { "target: b" };
        let action = |more: &[String]| {
            let keys: Vec<_> = [target.to_owned()].into_iter().chain(more.iter().cloned()).collect();
            let keys: Vec<_> = keys.into_iter().filter(|key| !key.is_empty()).collect();
            format!("actions: [ {{ fault: {fault}, start: 20, duration: 5, {} }} ]", keys.join(", "))
        };
        let of = |more: &[String]| read(&file([&action(more), "", "", "", "", ""]));
        let (template, known) = of(&required);
        let known = known.into_iter().filter(|(path, _)| path == "actions[1]").flat_map(|(_, keys)| keys);
        let own: BTreeSet<_> = known.filter(|key| !common.contains(key)).collect();
        assert_eq!(own, names.into_iter().collect(), "{fault}");
        let explicit = without_places(of(&[required, defaults].concat()).0);
        assert_eq!(explicit.actions, without_places(template).actions, "defaults of {fault}");
    }
}

#[test]
fn keys_common_to_all_actions_are_documented() {
    let action = |fault: &str| format!("actions: [ {{ fault: {fault}, start: 20, duration: 5, target: b }} ]");
    let mut found = BTreeSet::new();
    for fault in ["kill", "net.partition"] {
        let (_, known) = read(&file([&action(fault), "", "", "", "", ""]));
        found.extend(known.into_iter().filter(|(path, _)| path == "actions[1]").flat_map(|(_, keys)| keys));
    }
    found.remove("partition");
    assert_eq!(keys("key of an action"), found);
}

#[test]
fn figures_kinds_and_ready_verifications_are_documented() {
    let unit = |unit: Unit| match unit {
        Unit::Count => "number",
        Unit::Time => "time",
        Unit::Messages => "msg/s",
        Unit::Bytes => "MB/s",
    };
    let figures: Vec<_> = FIGURES.iter().map(|(_, name, of, text)| format!("`{name}` {} {text}", unit(*of))).collect();
    assert_eq!(table("figure").iter().map(|row| row.join(" ")).collect::<Vec<_>>(), figures);
    assert_eq!(keys("kind"), KINDS.iter().map(|(name, _)| *name).collect());
    let title = |ready: &library::Ready| Template::read(ready.name, ready.text).unwrap()[0].title.clone().unwrap();
    let ready: Vec<_> = library::ALL.iter().map(|ready| format!("`{}` {}", ready.name, title(ready))).collect();
    assert_eq!(table("name").iter().map(|row| row.join(" ")).collect::<Vec<_>>(), ready);
    let runtimes = table("key of `base`").into_iter().find(|row| row[0] == "`runtime`").unwrap();
    assert_eq!(words(runtimes[1]), RUNTIMES.map(|(name, _)| name));
}
