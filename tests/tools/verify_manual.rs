//! The commands of docs/VERIFY.md work as they stand, and plans need no installed system.
//!
//! A run that takes minutes, or that this machine lacks something for, is planned instead. A printed line says so.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Deserializer, Value};

const PAGE: &str = include_str!("../../docs/VERIFY.md");
const TENBIN: &str = env!("CARGO_BIN_EXE_tenbin");
/// Most seconds of measurement of a command that runs as it stands.
const SHORT: f64 = 30.0;

/// Blocks of the page in one language.
fn blocks(language: &str) -> Vec<&'static str> {
    let start = format!("```{language}\n");
    let rest = PAGE.match_indices(&start).map(|(at, _)| &PAGE[at + start.len()..]);
    rest.filter_map(|rest| rest.split("```").next()).collect()
}

/// Runs a line in a shell that finds the programs.
fn shell(line: &str, directory: &Path) -> Output {
    let programs = Path::new(TENBIN).parent().expect("a directory");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", line]).env("PATH", path).current_dir(directory);
    shell.output().expect("bash is there")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// The line to run instead of `line`, with the reason; `None` if it runs as it stands.
fn instead(line: &str, directory: &Path) -> Option<(String, String)> {
    let skipped = |reason: &str| Some(("true".to_owned(), reason.to_owned()));
    if line.contains("systems/install") {
        return skipped("it downloads");
    }
    let words: Vec<_> = line.split_whitespace().skip_while(|word| word.contains('=')).collect();
    if let ["tenbin-verify", "report", results, ..] = words[..] {
        let is_there = directory.join(results).exists();
        return if is_there { None } else { skipped("its run was only planned") };
    }
    let ["tenbin-verify", "run", file, ..] = words[..] else { return None };
    let variants: Vec<_> = words.windows(2).filter(|pair| pair[0] == "--variant").map(|pair| pair[1]).collect();
    let chosen: String = variants.iter().map(|variant| format!(" --variant {variant}")).collect();
    let plan = format!("tenbin-verify plan {file}{chosen}");
    // Variables ahead of the command are prerequisites too.
    let variables = line.split("tenbin-verify").next().unwrap_or_default();
    let check = shell(&format!("{variables} tenbin-verify check {file}"), directory);
    let is_chosen = |line: &str| {
        variants.is_empty() || variants.iter().any(|variant| line.contains(&format!(", variant {variant}: ")))
    };
    if text(&check).lines().any(|line| line.contains("cannot run here") && is_chosen(line)) {
        return Some((plan, text(&check)));
    }
    let plans = shell(&format!("{plan} --json"), directory).stdout;
    let plans = Deserializer::from_slice(&plans).into_iter::<Value>().map(|plan| plan.expect("plans as JSON"));
    let seconds: f64 = plans.map(|plan| plan["measure"]["time"].as_f64().expect("seconds")).sum();
    (seconds > SHORT).then(|| (plan, format!("it measures for {seconds} s")))
}

#[test]
fn commands_of_the_page_work() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let files = blocks("yaml");
    for block in &files {
        let name = block.lines().next().and_then(|line| line.strip_prefix("# "));
        let name =
            name.filter(|name| name.ends_with(".yaml")).unwrap_or_else(|| panic!("no name of a file in\n{block}"));
        fs::write(directory.join(name), block).expect("a file");
        let check = shell(&format!("tenbin-verify check {name}"), directory);
        assert!(check.status.success(), "{name}: {}", text(&check));
    }
    let lines: Vec<_> = blocks("sh").into_iter().flat_map(str::lines).collect();
    assert!(files.len() >= 4 && lines.len() >= 12, "the page has examples");
    for line in lines {
        let line = match instead(line, directory) {
            Some((other, reason)) => {
                println!("not run: {line}: {}", reason.trim());
                other
            }
            None => line.to_owned(),
        };
        let done = shell(&line, directory);
        assert!(done.status.success(), "{line}\n{}", text(&done));
    }
}

#[test]
fn plan_of_every_ready_verification_needs_no_system() {
    let tenbin = |arguments: &[&str]| {
        let output =
            Command::new(TENBIN).args(arguments).env_clear().env("PATH", "/nowhere").output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        output.stdout
    };
    let list = String::from_utf8(tenbin(&["verify", "list"])).expect("text");
    let names: Vec<_> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() >= 18, "{list}");
    for name in names {
        let plans = || tenbin(&["verify", "plan", name, "--json", "--seed", "7"]);
        assert_eq!(plans(), plans(), "the same seed plans {name} anew");
        let shown = String::from_utf8(tenbin(&["verify", "plan", name])).expect("text");
        assert!(shown.contains("begin to measure"), "{name}: {shown}");
        let lacks_kafka = shown.contains("the program java (missing here");
        assert_eq!(lacks_kafka, shown.contains("kafka (java)"), "{name}: {shown}");
    }
}

#[test]
fn mistaken_files_start_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let wrong = "systems:\n  broker: { kind: tenbim }\n  pub: { publishes_to: broker }\n";
    fs::write(directory.path().join("wrong.yaml"), wrong).expect("a file");
    for command in ["run wrong.yaml --out results", "plan wrong.yaml", "check wrong.yaml"] {
        let done = shell(&format!("tenbin-verify {command}"), directory.path());
        let text = text(&done);
        assert_eq!(done.status.code(), Some(2), "{command}: {text}");
        assert!(text.contains("wrong.yaml:2:19: unknown kind \"tenbim\"; did you mean \"tenbin\"?"), "{text}");
    }
    let left: Vec<_> =
        fs::read_dir(directory.path()).expect("a directory").flatten().map(|file| file.file_name()).collect();
    assert_eq!(left, ["wrong.yaml"]);
}
