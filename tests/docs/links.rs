//! Links, anchors, paths, and the list of pages.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::page::Page;
use crate::{compare, root};

#[test]
fn links_and_anchors_of_all_pages_resolve() {
    let pages = Page::all();
    let anchors: BTreeMap<_, _> = pages.iter().map(|page| (page.path.clone(), page.anchors())).collect();
    let mut broken = Vec::new();
    let mut count = 0;
    for page in &pages {
        for link in page.links().into_iter().filter(|link| !is_foreign(link)) {
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.path.clone() } else { resolved(&page.path, path) };
            let is_there = root().join(&target).exists();
            let has_anchor = anchor.is_empty() || anchors.get(&target).is_some_and(|known| known.contains(anchor));
            if !is_there || !has_anchor {
                broken.push(format!("{}: {link}", page.path.display()));
            }
        }
    }
    assert!(count > 200, "the links are found: {count}");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn paths_that_contributors_read_exist() {
    let mut missing = Vec::new();
    let mut count = 0;
    for page in ["README.md", "CONTRIBUTING.md", "docs/TESTING.md"].map(Page::read) {
        let words = page.spans().into_iter().flat_map(|span| span.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for word in words.filter(|word| is_path(word)) {
            count += 1;
            let path = root().join(word.trim_end_matches('/'));
            if !path.exists() && !path.with_extension("rs").exists() {
                missing.push(format!("{}: {word}", page.path.display()));
            }
        }
    }
    assert!(count > 60, "the paths are found: {count}");
    assert!(missing.is_empty(), "missing files:\n{}", missing.join("\n"));
}

#[test]
fn summary_lists_every_page() {
    let summary = Page::read("docs/SUMMARY.md");
    let listed = summary.links();
    let mut pages =
        fs::read_dir(root().join("docs")).expect("a directory").map(|entry| entry.expect("one").file_name());
    let is_missing = |name: &String| name.ends_with(".md") && name != "SUMMARY.md" && !listed.contains(name);
    let missing = pages.find_map(|name| name.into_string().ok().filter(is_missing));
    assert_eq!(missing, None, "docs/SUMMARY.md lacks a page");
    let text = fs::read_to_string(root().join("docs/SUMMARY.md")).expect("the page");
    let (before, _) = text.split_once("# Decisions\n").expect("a part");
    compare("docs/SUMMARY.md", &format!("{before}# Decisions\n\n{}", decisions()));
}

/// A line for each decision, by number.
fn decisions() -> String {
    let entries = fs::read_dir(root().join("docs/decisions")).expect("a directory");
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.expect("an entry").file_name().into_string().ok()).collect();
    names.sort();
    let mut lines = String::new();
    for name in names {
        let page = Page::read(Path::new("docs/decisions").join(&name));
        let title = page.text.iter().find_map(|line| line.strip_prefix("# ")).expect("a title");
        let number = name.split('-').next().unwrap_or_default().trim_start_matches('0');
        let title = title.trim_start_matches(&format!("{number}. "));
        let _ = writeln!(lines, "- [{number}. {title}](decisions/{name})");
    }
    lines
}

/// Whether a link leads to another host, or is no link at all.
fn is_foreign(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:") || link.contains(char::is_whitespace)
}

/// The path of a link on a page.
fn resolved(page: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in page.parent().unwrap_or(Path::new("")).join(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            other => path.push(other),
        }
    }
    path
}

/// Whether a word of code is a path of the repository, without placeholders.
fn is_path(word: &str) -> bool {
    const TOPS: [&str; 9] =
        ["crates/", "tests/", "docs/", "deploy/", "fuzz/", "benches/", ".ci/", "examples/", "scenarios/"];
    TOPS.iter().any(|top| word.starts_with(top))
        && !word.contains(['*', ':', '…', '$'])
        && !word.chars().any(char::is_uppercase)
}
