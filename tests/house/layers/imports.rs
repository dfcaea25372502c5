//! Imports among the modules of a crate, read from its sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// An import of one module by another.
pub(crate) struct Import {
    /// The importing file, below the sources.
    pub(crate) file: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) is_test: bool,
}

/// Names that the root of a crate re-exports, with their modules.
struct Root {
    modules: BTreeSet<String>,
    names: BTreeMap<String, String>,
    /// The module whose names are all re-exported.
    glob: Option<String>,
}

/// Modules of a crate: the first parts of its paths.
pub(crate) fn modules(source: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(source).expect("a directory").map(|entry| entry.expect("an entry").path());
    let is_module = |path: &PathBuf| path.is_dir() || path.extension().is_some_and(|extension| extension == "rs");
    let names = entries.filter(is_module).map(|path| stem(&path));
    names.filter(|name| !["lib", "main"].contains(&&name[..])).collect()
}

/// All imports of a crate.
pub(crate) fn imports(source: &Path) -> Vec<Import> {
    let root = Root::read(source);
    let mut found = Vec::new();
    for path in rust_files(source) {
        let file = path.strip_prefix(source).expect("a file of the crate");
        let parts: Vec<_> = file.iter().map(|part| part.to_str().expect("UTF-8")).collect();
        let from = parts[0].trim_end_matches(".rs");
        if ["lib", "main"].contains(&from) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text in UTF-8");
        let tests_at = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
        let is_test_file = parts.iter().any(|part| ["tests", "tests.rs", "for_tests.rs"].contains(part));
        let depth = parts.len() - usize::from(parts.last() == Some(&"mod.rs"));
        for (at, supers, name) in paths(&text) {
            // `super` in the tests of a file is the file itself.
            if supers > 0 && supers != depth + usize::from(at > tests_at) {
                continue;
            }
            let to = match root.module_of(&name) {
                Some(to) => to,
                None if supers > 0 || root.names.contains_key(&name) => continue,
                None => panic!("{}: `crate::{name}` is in no module", path.display()),
            };
            if to != from {
                let is_test = is_test_file || at > tests_at;
                found.push(Import { file: file.display().to_string(), from: from.to_owned(), to, is_test });
            }
        }
    }
    found
}

impl Root {
    fn read(source: &Path) -> Self {
        let mut root = Self { modules: modules(source), names: BTreeMap::new(), glob: None };
        for text in ["lib.rs", "main.rs"].into_iter().filter_map(|file| fs::read_to_string(source.join(file)).ok()) {
            let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            for statement in code.join("\n").split(';') {
                let Some((_, path)) = statement.split_once("use ") else { continue };
                let Some((head, names)) = path.split_once("::") else { continue };
                for name in names.split(['{', '}', ',']) {
                    let last = name.trim().rsplit("::").next().unwrap_or_default();
                    match last.rsplit(" as ").next().unwrap_or_default() {
                        "*" if root.modules.contains(head) => root.glob = Some(head.to_owned()),
                        "" | "*" | "self" => {}
                        name => _ = root.names.insert(name.to_owned(), head.to_owned()),
                    }
                }
            }
        }
        root
    }

    /// The module of a name below `crate`. `None`: it is another crate's, or unknown.
    fn module_of(&self, name: &str) -> Option<String> {
        if self.modules.contains(name) {
            return Some(name.to_owned());
        }
        match self.names.get(name) {
            Some(head) => self.modules.contains(head).then(|| head.clone()),
            None => self.glob.clone(),
        }
    }
}

/// Paths from `crate` or `super` outside of comments: position, number of `super`, and the first name.
fn paths(text: &str) -> Vec<(usize, usize, String)> {
    let mut found = Vec::new();
    let is_code = |at: usize| {
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let is_begin = !text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':');
        is_begin && !text[line..at].contains("//")
    };
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start).filter(|&(at, _)| is_code(at)) {
            let (mut supers, mut rest) = (0, &text[at..]);
            while let Some(after) = rest.strip_prefix("super::") {
                (supers, rest) = (supers + 1, after);
            }
            let rest = rest.trim_start_matches("crate::");
            found.extend(first_names(rest).into_iter().map(|name| (at, supers, name)));
        }
    }
    found
}

/// The first name of a path, or the first names in its list.
fn first_names(path: &str) -> Vec<String> {
    let name = |path: &str| {
        let end = |other: char| !other.is_alphanumeric() && other != '_';
        path.trim_start().split(end).next().unwrap_or_default().to_owned()
    };
    let Some(list) = path.strip_prefix('{') else {
        return vec![name(path)].into_iter().filter(|name| !name.is_empty()).collect();
    };
    let (mut depth, mut names, mut start) = (0, Vec::new(), 0);
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => {
                names.push(name(&list[start..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names.push(name(&list[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// All files of Rust below a directory.
pub(crate) fn rust_files(directory: &Path) -> Vec<PathBuf> {
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

fn stem(path: &Path) -> String {
    path.file_stem().and_then(|stem| stem.to_str()).expect("UTF-8").to_owned()
}

#[test]
fn first_names_of_nested_lists_are_found() {
    let text = "use crate::{a::{b, c}, D};\n// crate::e\nuse super::super::f::g;\nlet x = tenbin_crate::h();\nuse super::{self, *};";
    let found: Vec<_> = paths(text).into_iter().map(|(_, supers, name)| (supers, name)).collect();
    let names = [(0, "a"), (0, "D"), (2, "f"), (1, "self")].map(|(supers, name)| (supers, name.to_owned()));
    assert_eq!(found, names);
}
