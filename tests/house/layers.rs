//! Keeps crates and the broker's modules in layers: a crate imports those that `docs/ARCHITECTURE.md` allows it, and a
//! module of the broker imports lower ones only, which the page lists too. Keeps secrets in a type that no log can show, and
//! tests patient.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Modules of the broker, the lowest first. A module may import those before it.
const LAYERS: [&str; 27] = [
    "values",
    "slices",
    "descriptors",
    "metrics",
    "trace",
    "config",
    "gateways",
    "hooks",
    "admission",
    "log_limiter",
    "connection_settings",
    "memory",
    "auth",
    "webhooks",
    "threads",
    "durable",
    "backlog",
    "outbox",
    "router",
    "registry",
    "lifecycle",
    "tasks",
    "net",
    "control",
    "broker",
    "bench",
    "fuzzing",
];

/// Shortest time-out for an event that must come: a loaded machine may stop any process for seconds.
const SHORTEST_PATIENCE: Duration = Duration::from_secs(5);

/// Files with shorter time-outs and their number. Each may expire: a poll, a repetition, or a check for silence.
const SHORT_TIMEOUTS: [(&str, usize); 8] = [
    ("crates/broker/src/registry/mod.rs", 2),        // silence
    ("crates/lab/tests/lab/probe.rs", 1),            // repetition
    ("crates/loadgen/src/run/engine/alarm.rs", 1),   // silence
    ("crates/loadgen/tests/wire/peer.rs", 2),        // silence
    ("crates/verify/src/runtime/nodes/trunk.rs", 1), // silence
    ("tests/operation/admin/guard.rs", 1),           // a full socket
    ("tests/sn/mqtt_sn/emcute.rs", 1),               // poll
    ("tests/sn/sn_abuse/source.rs", 1),              // repetition
];

/// Imported modules by importing module.
type Arrows = BTreeMap<String, BTreeSet<String>>;

#[test]
fn broker_modules_import_lower_ones_as_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join("crates/broker/src");
    let layer = |name: &str| {
        LAYERS.iter().position(|&layer| layer == name).unwrap_or_else(|| panic!("module {name} is in no layer"))
    };
    let (mut arrows, mut upward) = (Arrows::new(), Vec::new());
    for path in rust_files(&source) {
        let file = path.strip_prefix(&source).expect("a file of the broker");
        let parts = file.iter().map(|part| part.to_str().expect("UTF-8")).collect::<Vec<_>>();
        let from = parts[0].trim_end_matches(".rs");
        if from == "lib" {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text in UTF-8");
        let is_test = parts.iter().any(|part| ["tests", "tests.rs", "for_tests.rs"].contains(part));
        let tests_at = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
        for (at, to) in imports(&text).into_iter().filter(|(_, to)| to != from) {
            if layer(&to) > layer(from) {
                upward.push(format!("{}: {from} → {to}", file.display()));
            }
            if !is_test && at < tests_at {
                arrows.entry(from.to_owned()).or_default().insert(to);
            }
        }
    }
    assert!(arrows.len() > 10, "the tree is read");
    assert!(upward.is_empty(), "imports of higher modules:\n{}", upward.join("\n"));
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

/// Positions and modules of all paths that begin with `crate::`, outside of comments.
fn imports(text: &str) -> Vec<(usize, String)> {
    let is_code = |at: usize| {
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        !text[line..at].contains("//")
    };
    let mut found = Vec::new();
    for (at, _) in text.match_indices("crate::").filter(|&(at, _)| is_code(at)) {
        let rest = &text[at + "crate::".len()..];
        let paths = match rest.strip_prefix('{') {
            Some(list) => list.split(';').next().unwrap_or_default().split(',').collect(),
            None => vec![rest],
        };
        let names = paths.into_iter().filter_map(|path| module(path.trim()));
        found.extend(names.map(|name| (at, name)));
    }
    found
}

/// The module that a path begins with. `Policy` and the rest of the crate's public names stand for their modules.
fn module(path: &str) -> Option<String> {
    let name = path.split(|other: char| !other.is_alphanumeric() && other != '_').next().unwrap_or_default();
    let module = match name {
        "" | "Policy" => return None,
        "Config" | "ConfigError" => "config",
        "Broker" | "BrokerBuilder" => "broker",
        "Authenticator" | "Authorizer" => "auth",
        "StoreError" => "durable",
        "LogLimiter" => "log_limiter",
        "MetricsSnapshot" => "metrics",
        name => name,
    };
    Some(module.to_owned())
}

fn documented(block: &str) -> Arrows {
    let names = |list: &str| list.split(',').map(|name| name.trim().to_owned()).collect();
    let arrow = |line: &str| line.split_once('→').map(|(from, to)| (from.trim().to_owned(), names(to)));
    block.lines().filter_map(arrow).collect()
}

fn shown(arrows: &Arrows) -> String {
    let mut text = String::new();
    for name in LAYERS.iter().rev() {
        if let Some(to) = arrows.get(*name) {
            let mut to = to.iter().map(String::as_str).collect::<Vec<_>>();
            to.sort_by_key(|to| LAYERS.iter().rposition(|layer| layer == to).map(std::cmp::Reverse));
            let _ = writeln!(text, "{name:<15} → {}", to.join(", "));
        }
    }
    text
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            files.extend(rust_files(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
    files
}
