//! Commands of the pages: programs know their subcommands and options, cargo's packages and suites exist, recipes and
//! scripts exist.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::page::Page;
use crate::root;

/// Pages on which each command has to be known to this test.
const STRICT: [&str; 2] = ["README.md", "CONTRIBUTING.md"];
/// Pages with commands of other programs too.
const OTHERS: [&str; 9] = [
    "SECURITY.md",
    "docs/TESTING.md",
    "docs/access.md",
    "docs/balancing.md",
    "docs/cluster.md",
    "docs/configuration.md",
    "docs/embedding.md",
    "docs/install.md",
    "docs/measuring.md",
];
/// Programs of other projects.
const FOREIGN: [&str; 6] = ["grep", "helm", "mdbook", "mosquitto_pub", "python3", "rustup"];
/// The project's programs, with their packages.
const PROGRAMS: [(&str, &str); 4] = [
    ("tenbin", "tenbin"),
    ("tenbin-loadgen", "tenbin-loadgen"),
    ("tenbin-simulate", "tenbin-simulator"),
    ("tenbin-verify", "tenbin-verify"),
];

#[test]
fn commands_of_the_pages_exist() {
    let mut known = Known::read();
    let (mut count, mut wrong) = (0, Vec::new());
    for path in STRICT.into_iter().chain(OTHERS) {
        let page = Page::read(path);
        let is_command = |span: &String| {
            let first = span.split(' ').next().unwrap_or_default();
            span.contains(' ')
                && (["cargo", "just"].contains(&first) || PROGRAMS.iter().any(|(name, _)| *name == first))
        };
        let spans = page.spans().into_iter().map(|span| without_variables(&span)).filter(is_command);
        for line in page.shell_lines().into_iter().chain(spans) {
            for words in commands(&line) {
                match known.check(&words) {
                    Ok(true) => count += 1,
                    Ok(false) if STRICT.contains(&path) => wrong.push(format!("{path}: {line}: unknown program")),
                    Ok(false) => {}
                    Err(error) => wrong.push(format!("{path}: {line}: {error}")),
                }
            }
        }
    }
    assert!(count > 60, "the commands are found: {count}");
    assert!(wrong.is_empty(), "wrong commands:\n{}", wrong.join("\n"));
}

#[test]
fn wrong_commands_are_found() {
    let mut known = Known::read();
    for line in [
        "tenbin brokr",
        "tenbin admin dead-letters billing bury",
        "tenbin broker --lisen 1883",
        "cargo run --release broker --lisen 1883",
        "cargo test --test no_such_suite",
        "cargo test --test operation no_such_test",
        "cargo test -p tenbin-nothing",
        "cargo bench -p tenbin-balancer --bench nothing",
        "cargo build --profile fast",
        "just nothing",
        ".ci/nothing",
    ] {
        assert!(known.check(&commands(line)[0]).is_err(), "{line}");
    }
    assert_eq!(known.check(&commands("true")[0]), Ok(false));
    assert_eq!(commands("A=1 b 'c d' | e && f > g &"), [vec!["b", "c d"], vec!["e"], vec!["f"]]);
}

/// Commands of a line with their words, without variables, redirections and `sudo`.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut quote, mut is_target) = (String::new(), None, false);
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (None, ' ' | '|' | '&' | ';' | '>') => {
                let whole = std::mem::take(&mut word);
                if !whole.is_empty() && !std::mem::take(&mut is_target) {
                    commands.last_mut().expect("one").push(whole);
                }
                match c {
                    '>' => is_target = true,
                    ' ' => {}
                    _ => commands.push(Vec::new()),
                }
            }
            (None, _) => word.push(c),
        }
    }
    for words in &mut commands {
        let skipped = words.iter().take_while(|word| word.contains('=') && !word.starts_with('-') || *word == "sudo");
        let skipped = skipped.count();
        words.drain(..skipped);
    }
    commands.retain(|words| !words.is_empty());
    commands
}

fn without_variables(span: &str) -> String {
    let is_variable = |word: &&str| word.contains('=') && word.starts_with(|c: char| c.is_ascii_uppercase());
    span.split(' ').skip_while(is_variable).collect::<Vec<_>>().join(" ")
}

/// The repository's packages, recipes, and texts of help.
struct Known {
    /// Directories of packages by name.
    packages: BTreeMap<String, PathBuf>,
    justfile: String,
    help: BTreeMap<Vec<String>, Option<String>>,
}

impl Known {
    fn read() -> Self {
        let crates = fs::read_dir(root().join("crates")).expect("a directory").map(|entry| entry.expect("one").path());
        let others = ["", "benches/relay", "examples/tenants"].map(|path| root().join(path));
        let named = crates.chain(others).map(|path| {
            let manifest = fs::read_to_string(path.join("Cargo.toml")).expect("a manifest");
            let package = manifest.split("[package]").nth(1).expect("a package");
            let name = package.split("name = \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a name");
            (name.to_owned(), path)
        });
        let justfile = fs::read_to_string(root().join("justfile")).expect("a file");
        Self { packages: named.collect(), justfile, help: BTreeMap::new() }
    }

    /// Whether the command is one of the project's, or an error if it is wrong.
    fn check(&mut self, words: &[String]) -> Result<bool, String> {
        let (first, rest) = words.split_first().expect("a word");
        // A program of an unpacked archive is `./tenbin`.
        match first.strip_prefix("./").unwrap_or(first) {
            "cargo" => self.cargo(rest),
            "just" => self.recipe(rest),
            name if PROGRAMS.iter().any(|(program, _)| *program == name) => self.program(name, rest),
            path if path.contains('/') && !path.starts_with("target/") => match root().join(path).is_file() {
                true => Ok(()),
                false => Err(format!("there is no {path}")),
            },
            name => return Ok(FOREIGN.contains(&name)),
        }
        .map(|()| true)
    }

    fn recipe(&self, words: &[String]) -> Result<(), String> {
        let name = words.iter().find(|word| !word.starts_with('-'));
        let is_there = |name: &String| {
            self.justfile.lines().any(|line| {
                line.strip_prefix(&name[..]).is_some_and(|rest| rest.starts_with([':', ' ']) && rest.contains(':'))
            })
        };
        name.is_none_or(is_there).then_some(()).ok_or_else(|| format!("no recipe {name:?}"))
    }

    fn cargo(&mut self, words: &[String]) -> Result<(), String> {
        let mut rest = words.iter().skip_while(|word| word.starts_with('+'));
        let Some(command) = rest.next() else { return Ok(()) };
        if !["run", "test", "bench", "build", "check"].contains(&&command[..]) {
            return Ok(()); // a tool, or a command without names of ours
        }
        let (mut directories, mut filters, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(word) = rest.next() {
            let mut value = || rest.next().cloned().unwrap_or_default();
            match &word[..] {
                "-p" => {
                    let name = value();
                    directories.push(self.packages.get(&name).ok_or(format!("no package {name}"))?.clone());
                }
                "--test" => targets.push(("tests", value())),
                "--bench" => targets.push(("benches", value())),
                "--example" => targets.push(("examples", value())),
                "--profile" => {
                    let name = value();
                    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
                    if !manifest.contains(&format!("[profile.{name}]\n")) {
                        return Err(format!("no profile {name}"));
                    }
                }
                "--features" | "--target" | "--test-threads" => drop(value()),
                "--workspace" => directories.extend(self.packages.values().cloned()),
                "--lib" => targets.push(("src", String::new())),
                option if option.starts_with('-') => {}
                argument if command == "run" => {
                    let package = directories.first().cloned().unwrap_or(root().join(""));
                    let name = self.packages.iter().find(|(_, path)| **path == package).expect("it is there").0;
                    let Some((program, _)) = PROGRAMS.iter().find(|(_, of)| of == name) else { return Ok(()) };
                    let arguments: Vec<_> = [argument.to_owned()].into_iter().chain(rest.cloned()).collect();
                    return self.program(program, &arguments);
                }
                filter => filters.push(filter.to_owned()),
            }
        }
        if directories.is_empty() {
            directories.push(root().to_owned());
        }
        let mut files = Vec::new();
        for (kind, name) in &targets {
            let places = directories.iter().flat_map(|directory| {
                let path = directory.join(kind);
                let folder = path.join(name);
                let is_there = *kind == "src" || folder.join("main.rs").exists();
                [path.join(format!("{name}.rs"))]
                    .into_iter()
                    .filter(|file| file.exists())
                    .chain(is_there.then_some(folder))
            });
            let found: Vec<_> = places.collect();
            if found.is_empty() {
                return Err(format!("no {name} in {kind}"));
            }
            files.extend(found);
        }
        let text: String = files.iter().map(|path| content(path)).collect();
        let missing =
            filters.into_iter().find(|filter| !text.is_empty() && !filter.split("::").all(|part| text.contains(part)));
        missing.map_or(Ok(()), |filter| Err(format!("no test {filter}")))
    }

    fn program(&mut self, program: &str, words: &[String]) -> Result<(), String> {
        let mut path = vec![program.to_owned()];
        // Options before a subcommand, and of the last one, are in the help of one of them.
        let mut helps = Vec::new();
        let (mut is_below, mut has_argument) = (true, false);
        for word in words {
            let Some(help) = self.help(&path) else { return Ok(()) };
            helps.push(help.clone());
            if word == "--" || word.starts_with('…') {
                break;
            }
            if word.starts_with('-') {
                let option = word.split('=').next().unwrap_or_default();
                let is_there = |help: &String| {
                    help.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_').any(|part| part == option)
                };
                if !helps.iter().any(is_there) && !["-V", "--version"].contains(&option) {
                    return Err(format!("{} has no option {option}", path.join(" ")));
                }
            } else if is_below {
                let subcommands = help.split("\nCommands:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
                let is_subcommand =
                    |line: &str| line.strip_prefix("  ").is_some_and(|line| line.split(' ').next() == Some(word));
                if subcommands.is_some_and(|lines| lines.lines().any(is_subcommand)) {
                    path.push(word.clone());
                } else if let Some(usage) =
                    help.lines().find(|line| line.starts_with("Usage: ") && line.ends_with("<COMMAND>"))
                {
                    // As the share name in `dead-letters <GROUP> <COMMAND>`.
                    if usage.ends_with("> <COMMAND>") && !std::mem::replace(&mut has_argument, true) {
                        continue;
                    }
                    return Err(format!("{} has no command {word}", path.join(" ")));
                } else {
                    is_below = false;
                }
            }
        }
        Ok(())
    }

    /// The help of a command; `None` if its program is not built here.
    fn help(&mut self, path: &[String]) -> Option<String> {
        let run = || {
            // `tenbin loadgen` is the program `tenbin-loadgen`.
            let siblings = ["loadgen", "simulate", "verify"];
            let (name, rest) = match path {
                [_, second, rest @ ..] if siblings.contains(&&second[..]) => (format!("tenbin-{second}"), rest),
                [first, rest @ ..] => (first.clone(), rest),
                [] => unreachable!("a program"),
            };
            let program = Path::new(env!("CARGO_BIN_EXE_tenbin")).with_file_name(&name);
            if !program.exists() {
                // `cargo test --workspace` builds it; a build of the root package alone does not.
                let why =
                    format!("{name} is not built (cargo build --workspace), its commands in the pages are unchecked");
                let _ = writeln!(std::io::stderr(), "skipped: {why}");
                return None;
            }
            let output = Command::new(&program).args(rest).arg("--help").output();
            let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        self.help.entry(path.to_vec()).or_insert_with(run).clone()
    }
}

/// Paths and texts of a file, or of all files below a directory.
fn content(path: &Path) -> String {
    let name = path.to_string_lossy().into_owned();
    match fs::read_dir(path) {
        Ok(entries) => entries.map(|entry| content(&entry.expect("an entry").path())).collect(),
        Err(_) => name + "\n" + &fs::read_to_string(path).unwrap_or_default(),
    }
}
