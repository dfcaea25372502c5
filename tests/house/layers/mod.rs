//! Keeps crates and their modules in layers: a crate imports those that `docs/ARCHITECTURE.md` allows it, and a module
//! imports lower ones only, which the page lists for the broker. Keeps secrets in a type that no log can show, and tests
//! patient.

mod floors;
mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use floors::{BROKER, FLOORS, Floors};
use imports::rust_files;

/// Shortest time-out for an event that must come: a loaded machine may stop any process for seconds.
const SHORTEST_PATIENCE: Duration = Duration::from_secs(5);

/// Files with shorter time-outs and their number. Each may expire: a poll, a repetition, or a check for silence.
const SHORT_TIMEOUTS: [(&str, usize); 9] = [
    ("crates/broker/src/registry/mod.rs", 2),        // silence
    ("crates/lab/tests/lab/probe.rs", 1),            // repetition
    ("crates/loadgen/src/run/engine/alarm.rs", 1),   // silence
    ("crates/loadgen/tests/wire/peer.rs", 2),        // silence
    ("crates/verify/src/runtime/nodes/trunk.rs", 1), // silence
    ("src/cluster/link/tests.rs", 1),                // silence
    ("tests/operation/admin/guard.rs", 1),           // a full socket
    ("tests/sn/mqtt_sn/emcute.rs", 1),               // poll
    ("tests/sn/sn_abuse/source.rs", 1),              // repetition
];

/// Imported modules by importing module.
type Arrows = BTreeMap<String, BTreeSet<String>>;

#[test]
fn modules_import_lower_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut mistakes, mut count) = (Vec::new(), 0);
    for Floors { source, modules, upward } in &FLOORS {
        let layers: Vec<&str> = modules.split_whitespace().collect();
        let listed: BTreeSet<String> = layers.iter().map(|&name| name.to_owned()).collect();
        let there = imports::modules(&root.join(source));
        mistakes.extend(there.symmetric_difference(&listed).map(|name| format!("{source}: {name} is not in both")));
        let layer = |name: &str| layers.iter().position(|&layer| layer == name);
        let arrows =
            |&(from, to, _): &(&str, &str, _)| to.split(' ').map(|to| format!("{from} → {to}")).collect::<Vec<_>>();
        let allowed: BTreeSet<String> = upward.iter().flat_map(arrows).collect();
        let mut used = BTreeSet::new();
        for import in imports::imports(&root.join(source)) {
            count += 1;
            if layer(&import.to) > layer(&import.from) {
                let arrow = format!("{} → {}", import.from, import.to);
                if !allowed.contains(&arrow) {
                    mistakes.push(format!("{source}/{}: {arrow}", import.file));
                }
                used.insert(arrow);
            }
        }
        mistakes
            .extend(allowed.difference(&used).map(|arrow| format!("{source}: {arrow} is opened: shorten the list")));
    }
    let sources = fs::read_dir(root.join("crates")).expect("a directory").count();
    assert_eq!(FLOORS.len(), sources + 1, "all crates and the program are in the list");
    assert!(count > 1000, "the trees are read: {count} imports");
    assert!(mistakes.is_empty(), "imports of higher modules, and other mistakes:\n{}", mistakes.join("\n"));
}

#[test]
fn broker_modules_import_the_documented_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut arrows = Arrows::new();
    for import in imports::imports(&root.join(BROKER)).into_iter().filter(|import| !import.is_test) {
        arrows.entry(import.from).or_default().insert(import.to);
    }
    assert!(arrows.len() > 10, "the tree is read");
    let page = fs::read_to_string(root.join("docs/ARCHITECTURE.md")).expect("the page");
    let block = page.split("```layers\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of arrows");
    assert!(documented(block) == arrows, "docs/ARCHITECTURE.md has other arrows; these are true:\n{}", shown(&arrows));
}

#[test]
fn crates_import_the_crates_of_their_row() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/ARCHITECTURE.md")).expect("the page");
    let rows: BTreeMap<&str, &str> = page.lines().filter_map(crate_row).collect();
    let mut mistakes = Vec::new();
    for entry in fs::read_dir(root.join("crates")).expect("a directory") {
        let directory = entry.expect("an entry").path();
        let name = directory.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).expect("a manifest");
        let Some(allowed) = rows.get(&name[..]) else {
            mistakes.push(format!("{name} has no row"));
            continue;
        };
        let imports = dependencies(&manifest);
        let illegal = imports.iter().filter(|import| !allowed.contains(&format!("`{import}`")));
        mistakes.extend(illegal.map(|import| format!("{name} imports {import}")));
    }
    assert!(rows.len() > 10, "the table is read");
    assert!(mistakes.is_empty(), "docs/ARCHITECTURE.md says otherwise:\n{}", mistakes.join("\n"));
}

#[test]
fn tests_wait_patiently_for_events() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for path in ["tests", "crates", "src", "examples"].into_iter().flat_map(|part| rust_files(&root.join(part))) {
        let text = fs::read_to_string(&path).expect("text in UTF-8");
        let path = path.strip_prefix(root).expect("a part of it");
        let is_of_tests = path.iter().any(|part| part == "tests" || part == "tests.rs");
        let tests_at = if is_of_tests { 0 } else { text.find("#[cfg(test)]").unwrap_or(text.len()) };
        let calls = text[tests_at..].match_indices("timeout(").map(|(at, _)| &text[tests_at + at..]);
        match calls.filter(|call| is_short(call)).count() {
            0 => {}
            count => found.push((path.to_str().expect("UTF-8").to_owned(), count)),
        }
    }
    found.sort();
    let expected = SHORT_TIMEOUTS.map(|(path, count)| (path.to_owned(), count));
    assert!(found == expected, "waits shorter than {SHORTEST_PATIENCE:?}, and their number: {found:#?}");
}

/// Whether a call of `timeout` or `set_read_timeout` has a shorter time as its literal first argument.
fn is_short(call: &str) -> bool {
    let argument = call.trim_start_matches("timeout(").trim_start().trim_start_matches("Some(");
    let Some(time) = argument.trim_start_matches("std::time::").strip_prefix("Duration::from_") else { return false };
    let Some((unit, number)) = time.split_once('(') else { return false };
    let digits = number.split(')').next().unwrap_or_default().replace('_', "");
    let Ok(number) = digits.parse() else { return false };
    let time = match unit {
        "secs" => Duration::from_secs(number),
        "millis" => Duration::from_millis(number),
        _ => Duration::ZERO,
    };
    time < SHORTEST_PATIENCE
}

#[test]
fn secrets_have_the_type_that_hides_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_test = |path: &Path| {
        let is_part = |part: &str| part.contains("tests") || ["benches", "examples"].contains(&part);
        path.iter().any(|part| is_part(part.to_str().expect("UTF-8")))
    };
    let (mut shown, mut hidden) = (Vec::new(), 0);
    for path in rust_files(&root.join("src")).into_iter().chain(rust_files(&root.join("crates"))) {
        let file = path.strip_prefix(root).expect("a file of the project");
        if is_test(file) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text in UTF-8");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let secrets = typed_names(line).filter(|(name, _)| names_secret(name));
            for (name, kind) in secrets {
                hidden += usize::from(kind.contains("Secret"));
                let is_shown = !kind.contains("Secret") && SHOWN_TYPES.iter().any(|shown| kind.contains(shown));
                if is_shown && !NO_SECRETS.contains(&name) {
                    shown.push(format!("{}: {}", file.display(), line.trim()));
                }
            }
        }
    }
    assert!(hidden > 20, "the tree is read: {hidden} secrets");
    assert!(shown.is_empty(), "a field or an argument that owns a secret has the type `Secret`:\n{}", shown.join("\n"));
}

/// Words in the names of secrets.
const SECRETS: [&str; 8] = ["password", "passwd", "passphrase", "token", "secret", "psk", "credential", "credentials"];
/// Owned types whose `Debug` prints their content.
const SHOWN_TYPES: [&str; 5] = ["String", "Bytes", "Vec<u8>", "Text", "[u8; 32]"];
/// Names with such a word for other things: the name of a pre-shared key is no secret.
const NO_SECRETS: [&str; 1] = ["psk_identity"];

fn names_secret(name: &str) -> bool {
    name == "authentication_data" || name.split('_').any(|word| SECRETS.contains(&word))
}

/// Names of fields and arguments in a line, with their types.
fn typed_names(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.match_indices(": ").map(|(at, colon)| {
        let start = line[..at].rfind(|other: char| !other.is_alphanumeric() && other != '_').map_or(0, |end| end + 1);
        let (mut depth, rest) = (0, &line[at + colon.len()..]);
        let is_end = |character: char| {
            depth += i32::from(['<', '['].contains(&character)) - i32::from(['>', ']'].contains(&character));
            depth <= 0 && [',', ')', '}', '=', '.'].contains(&character)
        };
        (&line[start..at], rest.split(is_end).next().unwrap_or_default())
    })
}

#[test]
fn typed_names_end_where_their_types_do() {
    let line = "    Start { plan: Box<Plan>, keys: HashMap<String, [u8; 32]>, token: Option<String> },";
    let found: Vec<_> = typed_names(line).map(|(name, kind)| (name, kind.trim())).collect();
    assert_eq!(found, [("plan", "Box<Plan>"), ("keys", "HashMap<String, [u8; 32]>"), ("token", "Option<String>")]);
    assert!(names_secret("upstream_password") && !names_secret("passwords_file"));
}

/// Name and allowed imports of a row of the table of crates.
fn crate_row(line: &str) -> Option<(&str, &str)> {
    let cells: Vec<&str> = line.strip_prefix("| `")?.split(" | ").collect();
    let (first, last) = (cells.first()?, cells.last()?);
    (cells.len() == 3).then_some((first.strip_suffix('`')?, last))
}

/// The project's own crates among the dependencies of a manifest, except those for tests.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut is_for_tests = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_for_tests = line.ends_with("dev-dependencies]") || !line.ends_with("dependencies]");
        } else if !is_for_tests && let Some(rest) = line.strip_prefix("tenbin-") {
            found.extend(rest.split(['.', ' ', '=']).next().map(str::to_owned));
        }
    }
    found
}

fn documented(block: &str) -> Arrows {
    let names = |list: &str| list.split(',').map(|name| name.trim().to_owned()).collect();
    let arrow = |line: &str| line.split_once('→').map(|(from, to)| (from.trim().to_owned(), names(to)));
    block.lines().filter_map(arrow).collect()
}

fn shown(arrows: &Arrows) -> String {
    let mut text = String::new();
    let modules = FLOORS.iter().find(|floors| floors.source == BROKER).map_or("", |floors| floors.modules);
    let layers: Vec<&str> = modules.split_whitespace().collect();
    for name in layers.iter().rev() {
        if let Some(to) = arrows.get(*name) {
            let mut to = to.iter().map(String::as_str).collect::<Vec<_>>();
            to.sort_by_key(|to| layers.iter().rposition(|layer| layer == to).map(std::cmp::Reverse));
            let _ = writeln!(text, "{name:<15} → {}", to.join(", "));
        }
    }
    text
}
