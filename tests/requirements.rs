//! Checks `requirements.toml`, the table of the standard's statements and their tests, and prints its sum. It has no
//! test harness, so that the sum shows without `--nocapture`.
#![allow(clippy::print_stdout, reason = "the sum is what this is for")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Deserialize;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("requirements: test");
        }
        return ExitCode::SUCCESS;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut problems = mistakes_are_found(root);
    match Table::read(&root.join("tests/requirements.toml")) {
        Ok(table) => {
            let ids = std::fs::read_to_string(root.join("tests/requirements_ids.txt")).expect("a committed file");
            problems.extend(table.check_ids(&ids));
            problems.extend(table.check_rows());
            problems.extend(table.check_tests(root));
            problems.extend(table.check_share_of_exempt());
            table.print_sum();
        }
        Err(error) => problems.push(error),
    }
    match Table::read(&root.join("tests/sn_requirements.toml")) {
        Ok(table) => {
            let crates = ["sn", "sn-codec", "sn-gateway"].map(|name| root.join("crates").join(name).join("src"));
            let marks = marks(&crates.each_ref().map(PathBuf::as_path));
            problems.extend(table.check_marks(&marks));
            problems.extend(table.check_rows());
            problems.extend(table.check_tests(root));
            println!(
                "\nrequirements: {} rules of MQTT-SN, {} of them open",
                table.requirement.len(),
                table.open().count()
            );
        }
        Err(error) => problems.push(error),
    }
    for problem in &problems {
        println!("  {problem}");
    }
    let result = if problems.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {} mistakes in tests/requirements.toml and tests/sn_requirements.toml\n",
        problems.len()
    );
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Bound on statements without a test, in percent of those that bind the broker.
const EXEMPT_PERCENT_MAX: usize = 5;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    requirement: Vec<Requirement>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    id: String,
    binds: Binds,
    text: String,
    status: Status,
    #[serde(default)]
    tests: Vec<String>,
    reason: Option<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Binds {
    Server,
    Client,
    Both,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Status {
    Tested,
    Exempt,
    /// Not enforced yet; only in the table of MQTT-SN.
    Open,
}

impl Table {
    fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        toml::from_str(&text).map_err(|error| error.to_string())
    }

    /// Reports statements that are missing, unknown, repeated or open.
    fn check_ids(&self, expected: &str) -> Vec<String> {
        let open = self.open().map(|row| format!("{}: open", row.id));
        let expected: BTreeSet<&str> = expected.lines().filter(|line| !line.starts_with('#')).collect();
        let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
        for row in &self.requirement {
            *rows.entry(&row.id).or_default() += 1;
        }
        let missing = expected.iter().filter(|id| !rows.contains_key(**id)).map(|id| format!("{id}: no row"));
        let unknown = rows.keys().filter(|id| !expected.contains(**id)).map(|id| format!("{id}: no such statement"));
        let twice = rows.iter().filter(|(_, rows)| **rows > 1).map(|(id, rows)| format!("{id}: {rows} rows"));
        missing.chain(unknown).chain(twice).chain(open).collect()
    }

    /// Reports tested rules without a mark in the source, rules with two rows, and marks without a row.
    fn check_marks(&self, marks: &BTreeSet<String>) -> Vec<String> {
        let rows: BTreeSet<&str> = self.requirement.iter().map(|row| &row.id[..]).collect();
        let tested = self.requirement.iter().filter(|row| row.status == Status::Tested);
        let unmarked = tested.filter(|row| !marks.contains(&row.id)).map(|row| format!("{}: no line names it", row.id));
        let unknown = marks.iter().filter(|mark| !rows.contains(&mark[..])).map(|mark| format!("{mark}: no row"));
        let twice = (rows.len() < self.requirement.len()).then(|| "a rule has two rows".to_owned());
        unmarked.chain(unknown).chain(twice).collect()
    }

    fn open(&self) -> impl Iterator<Item = &Requirement> {
        self.requirement.iter().filter(|row| row.status == Status::Open)
    }

    /// Reports rows whose status does not fit their tests and reason.
    fn check_rows(&self) -> Vec<String> {
        let mistake = |row: &Requirement| {
            let has_reason = row.reason.as_ref().is_some_and(|reason| !reason.trim().is_empty());
            if row.text.trim().is_empty() {
                return Some(format!("{}: no text", row.id));
            }
            match (row.status, row.tests.is_empty(), has_reason) {
                (Status::Tested, false, false) | (Status::Exempt | Status::Open, true, true) => None,
                (Status::Tested, true, _) => Some(format!("{}: tested, and no test", row.id)),
                (Status::Tested, false, true) => Some(format!("{}: tested, and a reason why not", row.id)),
                (_, false, _) => Some(format!("{}: not tested, and tests", row.id)),
                (_, true, false) => Some(format!("{}: not tested, and no reason", row.id)),
            }
        };
        self.requirement.iter().filter_map(mistake).collect()
    }

    /// Reports tests that do not exist.
    fn check_tests(&self, root: &Path) -> Vec<String> {
        let mistake =
            |row: &Requirement, test| find_test(root, test).err().map(|why| format!("{}: {test}: {why}", row.id));
        self.requirement.iter().flat_map(|row| row.tests.iter().filter_map(|test| mistake(row, test))).collect()
    }

    fn check_share_of_exempt(&self) -> Option<String> {
        let (binding, exempt) = (self.binding_the_server().count(), self.exempt_of_the_server());
        (exempt * 100 > binding * EXEMPT_PERCENT_MAX)
            .then(|| format!("{exempt} of {binding} statements exempt: more than {EXEMPT_PERCENT_MAX} %"))
    }

    fn print_sum(&self) {
        let exempt = || self.requirement.iter().filter(|row| row.status == Status::Exempt);
        let (all, binding) = (self.requirement.len(), self.binding_the_server().count());
        let tests: BTreeSet<&String> = self.requirement.iter().flat_map(|row| &row.tests).collect();
        println!("\nrequirements: {all} statements of MQTT 5.0 and 3.1.1, {binding} of them bind the server");
        println!("  covered: {} by {} tests", all - exempt().count(), tests.len());
        let percent = 100.0 * self.exempt_of_the_server() as f64 / binding as f64;
        println!("  exempt: {} ({percent:.1} % of those that bind the server)", exempt().count());
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for row in exempt() {
            reasons.entry(row.reason.as_deref().unwrap_or_default()).or_default().push(&row.id);
        }
        for (reason, ids) in reasons {
            println!("    {}: {reason}", ids.join(", "));
        }
    }

    fn binding_the_server(&self) -> impl Iterator<Item = &Requirement> {
        self.requirement.iter().filter(|row| row.binds != Binds::Client)
    }

    fn exempt_of_the_server(&self) -> usize {
        self.binding_the_server().filter(|row| row.status == Status::Exempt).count()
    }
}

/// Rules that comments name as `[SN-…]` in the Rust files of these directories.
fn marks(directories: &[&Path]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut pending: Vec<PathBuf> = directories.iter().map(|directory| directory.to_path_buf()).collect();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("a directory of the project");
            pending.extend(entries.map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text in UTF-8");
        let parts = text.split("[SN-").skip(1).filter_map(|rest| rest.split_once(']'));
        found.extend(parts.map(|(id, _)| format!("SN-{id}")));
    }
    found
}

/// Looks up a test by its name in the table: follows `mod` lines from the crate's root, then searches a function of
/// that name with a test attribute.
fn find_test(root: &Path, name: &str) -> Result<(), String> {
    let mut parts: Vec<&str> = name.split("::").collect();
    let test = parts.pop().filter(|_| !parts.is_empty()).ok_or("no path to it")?;
    let (directory, files) = crate_root(root, parts[0]);
    let mut directory = directory;
    let mut text = read_first(&files)?;
    for module in &parts[1..] {
        let declared = |line: &str| declares(line, module);
        let line = text.lines().find(|line| declared(line)).ok_or_else(|| format!("no module {module}"))?;
        if line.trim_end().ends_with('{') {
            let indentation = &line[..line.len() - line.trim_start().len()];
            let end = format!("{indentation}}}");
            let body = text.lines().skip_while(|line| !declared(line)).take_while(|line| *line != end);
            text = body.collect::<Vec<_>>().join("\n");
        } else {
            text = read_first(&[directory.join(format!("{module}.rs")), directory.join(module).join("mod.rs")])?;
        }
        directory.push(module);
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_it = |line: &str| {
        let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        rest.and_then(|rest| rest.strip_prefix(test)).is_some_and(|rest| rest.starts_with('('))
    };
    let line = lines.iter().position(|line| is_it(line)).ok_or("no such function")?;
    let above = lines[..line].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let is_there = |attribute: &str| above.clone().any(|line| line.starts_with(attribute));
    if !is_there("#[test]") && !is_there("#[tokio::test") {
        return Err("no test".to_owned());
    }
    if is_there("#[ignore") { Err("ignored".to_owned()) } else { Ok(()) }
}

/// Returns the directory of a crate's modules, and two candidates for its root file.
fn crate_root(root: &Path, name: &str) -> (PathBuf, [PathBuf; 2]) {
    let package = |name: &str| root.join("crates").join(name.strip_prefix("tenbin-").unwrap_or(name));
    let (tests, file) = match name.split_once('/') {
        Some((name, file)) => (package(name).join("tests"), file),
        None if name.starts_with("tenbin-") => {
            let source = package(name).join("src");
            return (source.clone(), [source.join("lib.rs"), source.join("main.rs")]);
        }
        None => (root.join("tests"), name),
    };
    let directory = tests.join(file);
    (directory.clone(), [directory.join("main.rs"), tests.join(format!("{file}.rs"))])
}

fn declares(line: &str, module: &str) -> bool {
    let line = line.trim();
    let visible =
        ["pub ", "pub(crate) ", "pub(super) "].into_iter().find_map(|visibility| line.strip_prefix(visibility));
    let line = visible.unwrap_or(line);
    let rest = line.strip_prefix("mod ").and_then(|rest| rest.strip_prefix(module));
    rest.is_some_and(|rest| matches!(rest.trim(), ";" | "{"))
}

fn read_first(files: &[PathBuf]) -> Result<String, String> {
    let read = files.iter().find_map(|file| std::fs::read_to_string(file).ok());
    read.ok_or_else(|| format!("no file {}", files[0].display()))
}

/// Tests [`find_test`] itself: names that it must find, and names that it must not find.
fn mistakes_are_found(root: &Path) -> Vec<String> {
    let there = [
        "protocol::wills::disconnect_with_will_publishes_it",
        "protocol::conformance::s3_01_connect::mqtt_3_1_3_2_the_client_identifier_names_the_session",
        "tenbin-codec::text::tests::mqtt_1_5_4_3_a_byte_order_mark_is_kept",
        "tenbin-codec/rules::connect::mqtt_3_1_0_1_the_first_packet_is_connect",
        "tenbin-client/scripted::receiving::on_receipt_the_client_acknowledges",
        "tenbin-session::connection::tests::sending::mqtt_4_4_0_2_a_refusal_ends_the_message",
    ];
    let not_there = [
        "disconnect_with_will_publishes_it",
        "wills::disconnect_with_will_publishes_it",
        "protocol::wills::disconnect_with_will_publishes",
        "protocol::wills::with_will",
        "protocol::retained::disconnect_with_will_publishes_it",
        "protocol::conformance::s3_02_connack::mqtt_3_1_3_2_the_client_identifier_names_the_session",
        "protocol::conformance::mqtt_3_1_3_2_the_client_identifier_names_the_session",
        "tenbin-codec::text::mqtt_1_5_4_3_a_byte_order_mark_is_kept::tests",
    ];
    let lost = there.iter().filter_map(|name| find_test(root, name).err().map(|why| format!("lost: {name}: {why}")));
    let made_up = not_there.iter().filter(|name| find_test(root, name).is_ok()).map(|name| format!("made up: {name}"));
    lost.chain(made_up).collect()
}
