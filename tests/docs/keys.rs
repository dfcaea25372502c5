//! `docs/keys.md`: the configuration files with all keys, as a page.

use std::fmt::Write as _;

use tenbin_broker::Config;

use crate::compare;

/// The gateway's file.
const GATEWAY: &str = include_str!("../../crates/sn-gateway/src/config/default.toml");

const HEAD: &str = "\
# All keys

`tenbin broker --print-config` and `tenbin gateway --print-config` print these files; a configuration file needs only the keys
that differ. Tables that are examples in comments there stand here without the comment sign: their keys have no default.
[Configuration](configuration.md) describes how the broker finds and reloads its file.
";

#[test]
fn page_of_all_keys_is_the_shipped_files() {
    compare("docs/keys.md", &page());
}

fn page() -> String {
    let broker = literate(Config::DEFAULT_TOML, "");
    let gateway = literate(GATEWAY, "gateway.");
    let mut page = HEAD.to_owned();
    for (title, parts) in [("`tenbin broker`", &broker), ("`tenbin gateway`", &gateway)] {
        let _ = writeln!(page, "\n## {title}\n\n| table | keys |\n|---|---|");
        for part in merged(parts) {
            let links = part.keys.iter().map(|key| format!("[`{}`](#{})", key.name, key.anchor));
            let name = if part.table.is_empty() { "–".to_owned() } else { format!("`{}`", part.table) };
            let _ = writeln!(page, "| {name} | {} |", links.collect::<Vec<_>>().join(", "));
        }
        for part in parts.iter() {
            if !part.table.is_empty() {
                let _ = writeln!(page, "\n### `{}`", part.table);
            }
            page.push_str(&part.text);
        }
    }
    page
}

/// A table of the file: its keys, and its text.
#[derive(Default)]
struct Part {
    table: String,
    /// Whether the file has the table as a comment.
    is_example: bool,
    keys: Vec<Key>,
    text: String,
}

struct Key {
    name: String,
    anchor: String,
}

/// The tables with their keys, each table once.
fn merged(parts: &[Part]) -> Vec<Part> {
    let mut tables: Vec<Part> = Vec::new();
    for part in parts.iter().filter(|part| !part.keys.is_empty()) {
        let keys = part.keys.iter().map(|key| Key { name: key.name.clone(), anchor: key.anchor.clone() });
        match tables.iter_mut().find(|table| table.table == part.table) {
            Some(table) => table.keys.extend(keys),
            None => tables.push(Part { table: part.table.clone(), keys: keys.collect(), ..Part::default() }),
        }
    }
    tables
}

/// Kind of a line.
enum Line<'a> {
    Table(&'a str),
    Key(&'a str, &'a str),
    Text(&'a str),
    /// An empty comment: a new paragraph about the same.
    Pause,
    Empty,
}

fn line(line: &str) -> Line<'_> {
    let content = line.strip_prefix("# ").or(line.strip_prefix('#')).unwrap_or(line);
    let head = content.split("  #").next().unwrap_or_default().trim_end();
    if head.starts_with('[') && head.ends_with(']') && !head.contains(' ') {
        return Line::Table(head);
    }
    match content.split_once(" = ") {
        _ if line.is_empty() => Line::Empty,
        _ if content.is_empty() => Line::Pause,
        Some((key, _)) if !key.contains(' ') => Line::Key(key, content),
        _ => Line::Text(content),
    }
}

/// The file's tables in its order: comments as text, keys as blocks of TOML.
fn literate(file: &str, prefix: &str) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    let mut known: Vec<String> = Vec::new();
    // Text that belongs to the next table, if one comes.
    let mut waiting: Vec<&str> = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    for content in file.lines().skip(usize::from(prefix.is_empty()) * 2) {
        let part = parts.last_mut().expect("a part");
        match line(content) {
            Line::Key(key, whole) => {
                write_text(&mut part.text, &mut waiting);
                let table = part.table.trim_matches(['[', ']']);
                let path = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
                if !known.contains(&path) {
                    let anchor = format!("{prefix}{path}");
                    let is_first = block.is_empty();
                    let _ = write!(part.text, "{}<a id=\"{anchor}\"></a>", if is_first { "\n" } else { "" });
                    part.keys.push(Key { name: key.to_owned(), anchor });
                    known.push(path);
                }
                block.push(if part.is_example { whole } else { content });
            }
            Line::Table(table) => {
                write_block(&mut part.text, &mut block);
                let mut next =
                    Part { table: table.to_owned(), is_example: content.starts_with('#'), ..Part::default() };
                write_text(&mut next.text, &mut waiting);
                if let Some((_, comment)) = content.split_once("  #") {
                    let _ = writeln!(next.text, "\n{}", escaped(comment.trim()));
                }
                parts.push(next);
            }
            Line::Text(text) => {
                write_block(&mut part.text, &mut block);
                waiting.push(text);
            }
            Line::Pause => {
                write_block(&mut part.text, &mut block);
                waiting.push("");
            }
            Line::Empty => {
                write_block(&mut part.text, &mut block);
                write_text(&mut part.text, &mut waiting);
            }
        }
    }
    let last = parts.last_mut().expect("a part");
    write_block(&mut last.text, &mut block);
    write_text(&mut last.text, &mut waiting);
    parts
}

fn write_block(page: &mut String, block: &mut Vec<&str>) {
    if !block.is_empty() {
        let _ = writeln!(page, "\n\n```toml\n{}\n```", block.join("\n"));
        block.clear();
    }
}

/// Writes lines of comments: indented ones as a block, others as paragraphs.
fn write_text(page: &mut String, lines: &mut Vec<&str>) {
    let mut is_block = false;
    let mut is_empty = true;
    for line in lines.drain(..) {
        let is_indented = line.starts_with("  ");
        if is_block != is_indented && !(is_block && line.is_empty()) || is_empty && !line.is_empty() {
            page.push_str(if is_block && !is_indented { "```\n\n" } else { "\n" });
            page.push_str(if is_indented { "```text\n" } else { "" });
            is_block = is_indented;
        }
        match (is_block, line.is_empty()) {
            (true, _) => drop(writeln!(page, "{}", &line[2.min(line.len())..])),
            (false, false) => drop(writeln!(page, "{}", escaped(line))),
            (false, true) => {}
        }
        is_empty = line.is_empty();
    }
    if is_block {
        page.push_str("```\n");
    }
}

/// Text in which signs of Markdown stand for themselves.
fn escaped(text: &str) -> String {
    let mut parts = text.split('`').map(str::to_owned).collect::<Vec<_>>();
    for part in parts.iter_mut().step_by(2) {
        *part = part.replace('*', "\\*").replace('<', "\\<").replace('[', "\\[").replace(']', "\\]");
    }
    let text = parts.join("`");
    if text.starts_with(['#', '-', '+']) { format!("\\{text}") } else { text }
}

#[test]
fn page_has_each_key_of_the_broker_once_in_its_table() {
    let shipped: toml::Table = toml::from_str(Config::DEFAULT_TOML).expect("a table");
    let page = page();
    let mut count = 0;
    for (name, value) in &shipped {
        let keys = value.as_table().map(|table| table.keys().map(|key| format!("{name}.{key}")).collect());
        for key in keys.unwrap_or_else(|| vec![name.clone()]) {
            count += 1;
            assert_eq!(page.matches(&format!("<a id=\"{key}\"></a>")).count(), 1, "{key}");
        }
    }
    assert!(count > 60, "{count}");
    for key in ["share.keep_seconds", "listeners.tls.names.key", "acl.deny", "webhook.url", "gateway.listener.retries"]
    {
        assert!(page.contains(&format!("<a id=\"{key}\"></a>")), "{key}");
    }
}
