//! Keeps the project's prose plain: comments, documentation, log lines, messages, `--help` and names of tests.
//!
//! A *free relative* is a clause that stands where a noun should: "what waits for it", "who has left". A *stray pronoun* makes
//! the reader look for its noun: "those of the other", "a thread of its own", "nobody". Well-kept projects have fewer than one
//! free relative and hardly any stray pronoun in 1,000 words of comment. The counts are smoke alarms: rewrite the sentence and
//! name the thing again, do not dodge the pattern.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Free relatives in 1,000 words of one group.
const RELATIVES: f64 = 1.0;
/// Stray pronouns in 1,000 words of one group.
const STRAYS: f64 = 0.5;
/// So few in a group are no style, however few words it has.
const TOLERATED: usize = 2;
/// Characters of a test's name.
const NAME_LENGTH: usize = 60;

const BEGINNINGS: [&str; 6] = ["what", "whatever", "who", "whoever", "whom", "whomever"];
const ENDINGS: &str = "is are was were has have had can cannot could may might must will would does do did come comes came goes wait waits \
    take takes took get gets got give gives gave keep keeps kept read reads write writes publishes subscribes become becomes became \
    belong belongs hold holds remain remains stay stays follow follows stands lies need needs want wants ask asks it they he we a an \
    the this that its their one other others nobody somebody everybody";

/// Stray pronouns, word by word; `/` separates the choices for a word. Longer phrases precede their beginnings.
const PRONOUNS: [&str; 16] = [
    "that/those of a/an/the/this/its/their/his/her/all/each/every/other/others/another",
    "that one",
    "of its/their/his/her own",
    "of whom",
    "as/so much/many as",
    "so much/many",
    "nobody",
    "somebody",
    "everybody",
    "anybody",
    "newcomer/newcomers",
    "besides",
    "meanwhile",
    "has/have come",
    "by chance",
    "for each other",
];

/// Words of a phrase, each with its choices.
type Phrase = Vec<Vec<&'static str>>;

/// [`PRONOUNS`] as choices for each word.
static PHRASES: LazyLock<Vec<Phrase>> = LazyLock::new(|| {
    let choices = |word: &'static str| word.split('/').collect();
    PRONOUNS.iter().map(|phrase| phrase.split(' ').map(choices).collect()).collect()
});
/// The tree's prose by group.
static GROUPS: LazyLock<BTreeMap<String, Group>> = LazyLock::new(groups);

/// Prose of one group of files.
#[derive(Default)]
struct Group {
    words: usize,
    /// Where each free relative is.
    relatives: Vec<String>,
    /// Where each stray pronoun is.
    strays: Vec<String>,
}

#[test]
fn prose_names_things_instead_of_free_relatives() {
    assert_few("free relatives", |group| &group.relatives, RELATIVES);
}

#[test]
fn prose_names_things_instead_of_stray_pronouns() {
    assert_few("stray pronouns", |group| &group.strays, STRAYS);
}

#[test]
fn test_names_are_short() {
    let rust = files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let names = rust.flat_map(|path| test_names(&fs::read_to_string(root().join(path)).expect("text in UTF-8")));
    let names: Vec<_> = names.collect();
    assert!(names.len() > 1000, "the tests are found: {}", names.len());
    let long: Vec<_> = names.into_iter().filter(|name| name.len() > NAME_LENGTH).collect();
    assert!(long.is_empty(), "{} names are longer than {NAME_LENGTH} characters: {long:#?}", long.len());
}

#[test]
fn counter_finds_free_relatives_and_no_questions() {
    assert_eq!(free_relatives("What waits on disk goes to whoever has room."), 2);
    assert_eq!(free_relatives("The broker knows what Becomes of it, and who, it seems, left."), 1);
    assert_eq!(free_relatives("What is the bound?"), 0);
    assert_eq!(free_relatives("Messages that wait on disk go to members with room."), 0);
}

#[test]
fn counter_finds_stray_pronouns() {
    for line in [
        "The messages and those of the other group",
        "The bound is that of each address.",
        "Those of its parent stay",
        "Clients of whom nothing is known",
        "Each thread has a socket of its own.",
        "Threads of their own; all wait",
        "It moves (as many as the queue takes).",
        "Waits for so many messages",
        "Nobody waits",
        "in Meanwhile-free prose, meanwhile it runs",
        "A newcomer joins",
        "one more, besides",
        "All acknowledgements have come.",
        "they wait for each other",
        "the oldest if there is one, else that one",
    ] {
        assert_eq!(stray_pronouns(line), 1, "{line}");
    }
    assert_eq!(stray_pronouns("Nobody knows that of the others, so many have come by chance."), 5);
    assert_eq!(stray_pronouns("as much as so much"), 2);
}

#[test]
fn counter_leaves_plain_sentences_alone() {
    for line in [
        "The state of the group, and the states of its members",
        "so that a message of 64 is measured, if those are of the same kind",
        "Is that, of the two, the newer?",
        "its own queue; besides-the-point",
        "as many messages as fit, and many as well",
        "The time has now come",
        "each other member",
        "",
    ] {
        assert_eq!(stray_pronouns(line), 0, "{line}");
    }
}

#[test]
fn prose_is_found_in_each_kind_of_file() {
    let rust = "//! One.\nlet a = 1; // two\nwarn!(%peer, \"three\");\n#[error(\"four: {0}\")]\nlet b = \"five\";\n";
    assert_eq!(prose(Path::new("a.rs"), rust), [" One.", " two", "three", "four: {0}"]);
    assert_eq!(prose(Path::new("a.md"), "one\n```\ntwo\n```\nthree"), ["one", "three"]);
    assert_eq!(prose(Path::new("a.toml"), "# one\ntwo = 2\n  # three"), [" one", " three"]);
    let help = "/// no\nstruct A {\n    /// no\n    a: u8,\n}\n\n/// no\n#[derive(Debug, Args)]\nstruct B {\n    /// yes\n    #[arg(long)]\n    \
                b: u8,\n}\n/// no\nfn c() {}\n";
    assert_eq!(help_texts(help), [" yes"]);
    assert_eq!(
        test_names("#[test]\n#[ignore]\nfn one() {}\nfn two() {}\n#[tokio::test]\nasync fn three() {}"),
        ["one", "three"]
    );
}

/// Asserts that each group has at most `limit` of the places that `of` selects, in 1,000 words.
fn assert_few(kind: &str, of: impl Fn(&Group) -> &Vec<String>, limit: f64) {
    assert!(GROUPS.len() > 10, "the tree is read");
    let mut complaints = String::new();
    for (name, group) in &*GROUPS {
        let places = of(group);
        let rate = 1000.0 * places.len() as f64 / group.words.max(1) as f64;
        if rate > limit && places.len() > TOLERATED {
            let _ = writeln!(complaints, "{name}: {rate:.2} in 1,000 words:\n  {}", places.join("\n  "));
        }
    }
    assert!(complaints.is_empty(), "{kind}, {limit:.1} in 1,000 words allowed:\n{complaints}");
}

/// Reads the tree. Texts of `--help` count for their crate and for the group `--help`.
fn groups() -> BTreeMap<String, Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    let mut add = |name: String, path: &Path, lines: Vec<&str>| {
        let group = groups.entry(name).or_default();
        for line in lines {
            group.words += words(line).count();
            let place = || format!("{}: {}", path.display(), line.trim());
            group.relatives.extend((0..free_relatives(line)).map(|_| place()));
            group.strays.extend((0..stray_pronouns(line)).map(|_| place()));
        }
    };
    for path in files() {
        let text = fs::read_to_string(root().join(&path)).expect("text in UTF-8");
        add(group_of(&path), &path, prose(&path, &text));
        if path.extension().is_some_and(|extension| extension == "rs") {
            add("--help".to_owned(), &path, help_texts(&text));
        }
    }
    groups
}

/// Punctuation before a word, the word, and punctuation after it.
type Part<'l> = (&'l str, &'l str, &'l str);

/// Stray pronouns of a line.
fn stray_pronouns(line: &str) -> usize {
    // Words with nothing but white space between them are neighbours: "that, of the two," is none.
    let parts: Vec<_> = line.split_whitespace().map(bare).collect();
    let fits = |phrase: &Phrase, at: &[Part<'_>]| {
        let last = phrase.len() - 1;
        let is_next = |(index, (choices, (before, word, after))): (usize, (&Vec<&str>, &Part<'_>))| {
            let is_joined = (index == 0 || before.is_empty()) && (index == last || after.is_empty());
            is_joined && choices.iter().any(|choice| word.eq_ignore_ascii_case(choice))
        };
        at.len() > last && phrase.iter().zip(at).enumerate().all(is_next)
    };
    let (mut count, mut at) = (0, 0);
    while at < parts.len() {
        let found = PHRASES.iter().find(|phrase| fits(phrase, &parts[at..]));
        count += usize::from(found.is_some());
        at += found.map_or(1, Vec::len);
    }
    count
}

/// A part of a line as its word, with the punctuation before and after it.
fn bare(part: &str) -> Part<'_> {
    let is_letter = |character: char| character.is_alphanumeric() || matches!(character, '-' | '\'' | '’' | '_');
    let begin = part.find(is_letter).unwrap_or(part.len());
    let end = begin + part[begin..].find(|character| !is_letter(character)).unwrap_or(part.len() - begin);
    (&part[..begin], &part[begin..end], &part[end..])
}

/// Free relatives of a line, unless that is a question.
fn free_relatives(line: &str) -> usize {
    let is_beginning = |word: &str| BEGINNINGS.iter().any(|beginning| word.eq_ignore_ascii_case(beginning));
    let is_ending = |word: &str| ENDINGS.split_whitespace().any(|ending| word.eq_ignore_ascii_case(ending));
    let is_question =
        words(line).next().is_some_and(is_beginning) && line.find('?').is_some_and(|mark| !line[..mark].contains('.'));
    if is_question {
        return 0;
    }
    // Between the two words nothing but white space: "who, it seems, left" is none.
    let parts: Vec<_> = line.split_whitespace().collect();
    let bare = |part: &str| part.trim_start_matches(|first: char| !first.is_alphanumeric()).to_owned();
    let is_pair = |pair: &&[&str]| {
        is_beginning(&bare(pair[0]))
            && words(pair[1]).next().is_some_and(|next| pair[1].starts_with(next) && is_ending(next))
    };
    parts.windows(2).filter(is_pair).count()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |character: char| character.is_ascii_alphabetic() || matches!(character, '\'' | '’' | '-');
    line.split(move |character| !is_part(character))
        .filter(|word| word.starts_with(|first: char| first.is_ascii_alphabetic()))
}

/// Lines of prose in a file.
fn prose<'t>(path: &Path, text: &'t str) -> Vec<&'t str> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => {
            let comments =
                text.lines().filter_map(|line| Some(line.split_once("//")?.1.trim_start_matches(['/', '!'])));
            comments.chain(messages(text)).collect()
        }
        Some("md") => {
            let mut is_code = false;
            let is_prose = |line: &&str| {
                let is_fence = line.trim_start().starts_with("```");
                is_code ^= is_fence;
                !is_code && !is_fence
            };
            text.lines().filter(is_prose).collect()
        }
        _ => text.lines().filter_map(|line| line.trim_start().strip_prefix('#')).collect(),
    }
}

/// First string of each log line and of each error's `#[error]`.
fn messages(text: &str) -> impl Iterator<Item = &str> {
    let beginnings = ["error!(", "warn!(", "info!(", "debug!(", "trace!(", "#[error("];
    beginnings.into_iter().flat_map(move |level| text.split(level).skip(1)).filter_map(|call| call.split('"').nth(1))
}

/// Doc comments in types that are arguments or commands: texts of `--help`.
fn help_texts(text: &str) -> Vec<&str> {
    let is_cli = |line: &str| {
        let derived = line.trim_start().strip_prefix("#[derive(");
        derived
            .is_some_and(|list| words(list).any(|word| ["Args", "Parser", "Subcommand", "ValueEnum"].contains(&word)))
    };
    let mut texts = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if is_cli(line) {
            let item = lines.by_ref().take_while(|line| !line.starts_with('}'));
            texts.extend(item.filter_map(|line| line.trim_start().strip_prefix("///")));
        }
    }
    texts
}

/// Names of the functions behind `#[test]`, `#[tokio::test]` and their like.
fn test_names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, function)) = line.split_once("fn ").filter(|_| is_test && !line.starts_with("//")) {
            let is_end = |character: char| !character.is_ascii_alphanumeric() && character != '_';
            names.extend(function.split(is_end).next().map(str::to_owned));
            is_test = false;
        }
    }
    names
}

fn group_of(path: &Path) -> String {
    let mut parts = path.iter().map(|part| part.to_string_lossy());
    let (first, second) = (parts.next().unwrap_or_default(), parts.next());
    match (path.extension().and_then(|extension| extension.to_str()), second) {
        (Some("rs"), Some(second)) if first == "crates" => format!("{first}/{second}"),
        (Some("rs"), _) => first.into_owned(),
        (Some("md"), None) => first.into_owned(),
        (Some("md"), Some(_)) => "docs".to_owned(),
        _ if path.ends_with("default.toml") => "default.toml".to_owned(),
        _ => "configuration and scripts".to_owned(),
    }
}

/// All files with prose, from the root on.
fn files() -> Vec<PathBuf> {
    let (mut files, mut directories) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).expect("a directory") {
            let entry = entry.expect("an entry");
            let (path, name) = (directory.join(entry.file_name()), entry.file_name());
            if entry.file_type().expect("its type").is_dir() {
                let is_ours = !name.to_string_lossy().starts_with('.')
                    && !matches!(name.to_str(), Some("target" | "node_modules"));
                directories.extend(is_ours.then_some(path));
            } else if path.extension().is_some_and(|extension| {
                ["rs", "md", "toml", "py", "yaml", "yml"].iter().any(|known| extension == *known)
            }) {
                files.push(path);
            }
        }
    }
    files
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
