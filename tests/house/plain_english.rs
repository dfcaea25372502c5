//! Keeps the project's prose plain: comments, documentation, log lines and names of tests.
//!
//! A *free relative* is a clause that stands where a noun should: "what waits for it", "who has left". Well-kept projects have
//! fewer than one of them in 1,000 words of comment. The count is a smoke alarm: rewrite the sentence, do not dodge the pattern.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Free relatives in 1,000 words of one group.
const LIMIT: f64 = 1.0;
/// So few in a group are no style, however few words it has.
const TOLERATED: usize = 2;
/// Characters of a test's name, and tests that may have more.
const NAME_LENGTH: usize = 60;
const LONG_NAMES: usize = 20;

const BEGINNINGS: [&str; 6] = ["what", "whatever", "who", "whoever", "whom", "whomever"];
const ENDINGS: &str = "is are was were has have had can cannot could may might must will would does do did come comes came goes wait waits \
    take takes took get gets got give gives gave keep keeps kept read reads write writes publishes subscribes become becomes became \
    belong belongs hold holds remain remains stay stays follow follows stands lies need needs want wants ask asks it they he we a an \
    the this that its their one other others nobody somebody everybody";

/// Prose of one group of files.
#[derive(Default)]
struct Group {
    words: usize,
    /// Where each free relative is.
    found: Vec<String>,
}

#[test]
fn prose_names_things_instead_of_free_relatives() {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for path in files() {
        let text = fs::read_to_string(root().join(&path)).expect("text in UTF-8");
        let lines = prose(&path, &text);
        let group = groups.entry(group_of(&path)).or_default();
        for line in lines {
            group.words += words(line).count();
            let count = free_relatives(line);
            group.found.extend((0..count).map(|_| format!("{}: {}", path.display(), line.trim())));
        }
    }
    let mut complaints = String::new();
    for (name, Group { words, found }) in &groups {
        let rate = 1000.0 * found.len() as f64 / (*words).max(1) as f64;
        if rate > LIMIT && found.len() > TOLERATED {
            let _ = writeln!(complaints, "{name}: {rate:.1} in 1,000 words:\n  {}", found.join("\n  "));
        }
    }
    assert!(groups.len() > 10, "the tree is read");
    assert!(complaints.is_empty(), "free relatives:\n{complaints}");
}

#[test]
fn test_names_are_short() {
    let rust = files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let names = rust.flat_map(|path| test_names(&fs::read_to_string(root().join(path)).expect("text in UTF-8")));
    let names: Vec<_> = names.collect();
    assert!(names.len() > 1000, "the tests are found: {}", names.len());
    let long: Vec<_> = names.into_iter().filter(|name| name.len() > NAME_LENGTH).collect();
    assert!(long.len() <= LONG_NAMES, "{} names are longer than {NAME_LENGTH} characters: {long:#?}", long.len());
}

#[test]
fn counter_finds_free_relatives_and_no_questions() {
    assert_eq!(free_relatives("What waits on disk goes to whoever has room."), 2);
    assert_eq!(free_relatives("The broker knows what Becomes of it, and who, it seems, left."), 1);
    assert_eq!(free_relatives("What is the bound?"), 0);
    assert_eq!(free_relatives("Messages that wait on disk go to members with room."), 0);
    assert_eq!(
        test_names("#[test]\n#[ignore]\nfn one() {}\nfn two() {}\n#[tokio::test]\nasync fn three() {}"),
        ["one", "three"]
    );
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
            comments.chain(log_texts(text)).collect()
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

/// First string of each log line.
fn log_texts(text: &str) -> impl Iterator<Item = &str> {
    let levels = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];
    levels.into_iter().flat_map(move |level| text.split(level).skip(1)).filter_map(|call| call.split('"').nth(1))
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
