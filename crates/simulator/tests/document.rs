//! `docs/SIMULATOR.md` shows the output of its commands.
//!
//! `UPDATE=1 cargo test -p tenbin-simulator --test document` writes it.

use std::fs;

use clap::Parser;
use tenbin_simulator::{SimulateArgs, run_to};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    args: SimulateArgs,
}

/// Where the page's commands run.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const PATH: &str = "docs/SIMULATOR.md";
/// A command, and then its output.
const COMMAND: &str = "```\ntenbin-simulate ";
const OUTPUT: &str = "\n```\n\n```text\n";

/// Output of a command. The list of single scenarios is left out.
fn output(arguments: &str) -> String {
    let args = Program::parse_from(["simulate"].into_iter().chain(arguments.split_whitespace())).args;
    let mut out = Vec::new();
    run_to(&args, &mut out).expect("a command of the page runs");
    let out = String::from_utf8(out).expect("a table is text");
    let is_listed = |line: &&str| line.contains(" against ");
    let lines: Vec<_> = out.lines().filter(|line| !is_listed(line)).map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned() + "\n"
}

/// Whether two outputs agree: in all words, and in numbers but for the last two digits, which differ between mathematical
/// libraries.
fn agree(shown: &str, printed: &str) -> bool {
    let words = |text: &str| text.split([' ', '/', '\n']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    let (shown, printed): (Vec<_>, Vec<_>) = (words(shown), words(printed));
    let near = |(a, b): (&String, &String)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(near), Ok(is)) => (near - is).abs() <= 2.0 * last_digit(b) + 0.02 * is.abs(),
        _ => a == b,
    };
    shown.len() == printed.len() && shown.iter().zip(&printed).all(near)
}

/// Value of the last digit of a printed number.
fn last_digit(number: &str) -> f64 {
    number.split_once('.').map_or(1.0, |(_, digits)| 0.1_f64.powi(digits.len() as i32))
}

#[test]
fn page_shows_what_its_commands_print() {
    std::env::set_current_dir(ROOT).expect("the workspace is there");
    let page = fs::read_to_string(PATH).expect("the page is there");
    let (mut written, mut rest, mut commands) = (String::new(), page.as_str(), 0);
    while let Some((before, after)) = rest.split_once(COMMAND) {
        let (arguments, after) = after.split_once('\n').expect("a command ends");
        written += &format!("{before}{COMMAND}{arguments}");
        rest = &page[page.len() - after.len() - 1..];
        let Some(shown) = rest.strip_prefix(OUTPUT) else { continue };
        let (shown, after) = shown.split_once("```").expect("an output ends");
        let printed = output(arguments);
        assert!(
            agree(shown, &printed) || std::env::var_os("UPDATE").is_some(),
            "tenbin-simulate {arguments}: {printed}"
        );
        written += &format!("{OUTPUT}{printed}```");
        (rest, commands) = (after, commands + 1);
    }
    assert!(commands >= 3, "{commands} commands with output");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(PATH, written + rest).expect("the page can be written");
    }
}
