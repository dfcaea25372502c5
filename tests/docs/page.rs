//! A page of Markdown: its headings, links and commands.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::root;

/// A page in the repository.
pub(crate) struct Page {
    /// Path from the repository's directory.
    pub(crate) path: PathBuf,
    /// Lines of text, without blocks of code.
    pub(crate) text: Vec<String>,
    /// Lines of each block of code, with its language.
    pub(crate) blocks: Vec<(String, Vec<String>)>,
}

impl Page {
    pub(crate) fn read(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        let content = fs::read_to_string(root().join(&path)).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        Self::parse(path, &content)
    }

    /// The page, or a part of it, from its text.
    pub(crate) fn parse(path: PathBuf, content: &str) -> Self {
        let mut page = Self { path, text: Vec::new(), blocks: Vec::new() };
        let mut is_code = false;
        for line in content.lines() {
            match line.trim_start().strip_prefix("```") {
                Some(language) => {
                    is_code = !is_code;
                    if is_code {
                        page.blocks.push((language.to_owned(), Vec::new()));
                    }
                }
                None if is_code => page.blocks.last_mut().expect("a block").1.push(line.to_owned()),
                None => page.text.push(line.to_owned()),
            }
        }
        page
    }

    /// README, the other pages of the repository's directory, and all of `docs/`.
    pub(crate) fn all() -> Vec<Self> {
        let mut paths: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "fuzz/README.md"]
            .map(PathBuf::from)
            .to_vec();
        for directory in ["docs", "docs/decisions"] {
            let entries = fs::read_dir(root().join(directory)).expect("a directory");
            let names = entries.map(|entry| Path::new(directory).join(entry.expect("an entry").file_name()));
            paths.extend(names.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
        }
        paths.sort();
        paths.into_iter().map(Self::read).collect()
    }

    /// Targets of links and pictures.
    pub(crate) fn links(&self) -> Vec<String> {
        let text = without_code(&self.text.join("\n"));
        let links = text.match_indices("](").filter_map(|(at, _)| text[at + 2..].split(')').next());
        links.map(str::to_owned).collect()
    }

    /// Anchors of headings, as GitHub and mdBook make them, and those that the page sets itself.
    pub(crate) fn anchors(&self) -> BTreeSet<String> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let mut anchors = BTreeSet::new();
        for line in &self.text {
            if let Some((hashes, heading)) = line.split_once(' ')
                && (1..=6).contains(&hashes.len())
                && hashes.chars().all(|c| c == '#')
            {
                let anchor = slug(heading);
                let count = seen.entry(anchor.clone()).or_default();
                anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
                *count += 1;
            }
            for (at, _) in line.match_indices("<a id=\"") {
                anchors.extend(line[at + 7..].split('"').next().map(str::to_owned));
            }
        }
        anchors
    }

    /// Spans of code in the text.
    pub(crate) fn spans(&self) -> Vec<String> {
        let text = self.text.join("\n");
        text.split("\n\n").flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2)).map(joined).collect()
    }

    /// Lines of shells in the blocks of code, in one piece each, without comments and here-documents.
    pub(crate) fn shell_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (_, block) in self.blocks.iter().filter(|(language, _)| ["", "sh"].contains(&&language[..])) {
            let (mut rest, mut until) = (block.iter(), None);
            while let Some(line) = rest.next() {
                if let Some(end) = until {
                    until = Some(end).filter(|end| line != end);
                    continue;
                }
                let mut whole = line.clone();
                while let Some(begin) = whole.strip_suffix('\\') {
                    whole = format!("{begin}{}", rest.next().expect("a line after \\").trim_start());
                }
                until = whole.split_once("<<'").and_then(|(_, end)| end.split('\'').next()).map(str::to_owned);
                lines.push(whole.split(" # ").next().unwrap_or_default().trim().to_owned());
            }
        }
        lines
    }
}

/// A heading's anchor.
fn slug(heading: &str) -> String {
    let is_kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    let heading = heading.trim().to_lowercase();
    heading.chars().filter(is_kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The text with nothing in place of spans of code, but for those that are the text of a link.
fn without_code(text: &str) -> String {
    let mut parts = text.split('`');
    let mut kept = parts.next().unwrap_or_default().to_owned();
    while let (Some(_), after) = (parts.next(), parts.next()) {
        kept.push_str(after.unwrap_or_default());
    }
    kept
}

/// The words of a span of code that a line break may part.
fn joined(span: &str) -> String {
    span.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn pages_are_read_as_github_reads_them() {
    assert_eq!(slug("One PUBLISH from socket to socket"), "one-publish-from-socket-to-socket");
    assert_eq!(slug("`tenbin explain`: why?"), "tenbin-explain-why");
    let page = Page {
        path: PathBuf::new(),
        text: ["# A", "# A", "see [`x](y)`](a.md#b), `[no](link)`", "and `a", "b`"].map(str::to_owned).to_vec(),
        blocks: vec![(
            String::new(),
            ["a \\", "  b   # c", "cat <<'END'", "x", "END", "d"].map(str::to_owned).to_vec(),
        )],
    };
    assert_eq!(page.anchors(), ["a", "a-1"].map(str::to_owned).into());
    assert_eq!(page.links(), ["a.md#b"]);
    assert_eq!(page.spans(), ["x](y)", "[no](link)", "a b"]);
    assert_eq!(page.shell_lines(), ["a b", "cat <<'END'", "d"]);
}
