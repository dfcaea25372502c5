//! The pages of the project are true: links and anchors resolve, commands exist, and cheap commands run as README has
//! them. `docs/keys.md` and the decisions of `docs/SUMMARY.md` are generated:
//! `UPDATE=1 cargo test --workspace --test docs` writes them.

mod commands;
mod keys;
mod links;
mod page;
mod run;

#[path = "../support/mod.rs"]
mod support;

use std::path::Path;

/// Directory of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compares a generated text with its file, or writes the file if `UPDATE` is set.
fn compare(path: &str, text: &str) {
    let file = root().join(path);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, text).expect("the file can be written");
    }
    let present = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(present == text, "{path} is out of date: `UPDATE=1 cargo test --workspace --test docs` writes it");
}
