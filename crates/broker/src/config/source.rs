//! Origin of a configuration: the text of its file, and the tables that are given.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ConfigError;

/// Origin of a configuration; empty for a configuration made in code.
///
/// It is no setting: two configurations with the same settings are equal.
#[derive(Clone, Default)]
pub struct Source {
    /// Path and text of the file.
    file: Option<Arc<(PathBuf, String)>>,
    /// Environment variables stand for some keys.
    is_overridden: bool,
    has_store: bool,
    has_store_directory: bool,
    has_admin: bool,
}

impl Source {
    /// Origin by the tables that are given, in a text or by environment variables.
    pub(super) fn of_tables(given: &toml::Table) -> Self {
        let has = |table: &str| given.contains_key(table);
        let has_store_directory = given.get("store").is_some_and(|store| store.get("directory").is_some());
        let (has_store, has_admin) = (has("store"), has("admin"));
        Self { file: None, is_overridden: false, has_store, has_store_directory, has_admin }
    }

    pub(super) fn with_overrides(self, is_overridden: bool) -> Self {
        Self { is_overridden, ..self }
    }

    pub(super) fn with_file(self, path: &Path, text: String) -> Self {
        Self { file: Some(Arc::new((path.to_owned(), text))), ..self }
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| &*file.0)
    }

    /// The error with file and line.
    pub(super) fn placed(&self, error: ConfigError) -> ConfigError {
        match &self.file {
            Some(file) if self.is_overridden => error.in_file(&file.0),
            Some(file) => error.with_line(&file.1).in_file(&file.0),
            None => error,
        }
    }

    /// Whether the table `[store]` is given.
    pub(crate) fn has_store(&self) -> bool {
        self.has_store
    }

    /// Whether `directory` of `[store]` is given.
    pub(crate) fn has_store_directory(&self) -> bool {
        self.has_store_directory
    }

    /// Whether the table `[admin]` is given.
    pub(crate) fn has_admin(&self) -> bool {
        self.has_admin
    }

    /// Whether the file is the beginning of the other one.
    pub(super) fn is_cut_from(&self, other: &Self) -> bool {
        let both = self.file.as_ref().zip(other.file.as_ref());
        both.is_some_and(|(cut, whole)| cut.1.len() < whole.1.len() && whole.1.starts_with(&cut.1))
    }
}

impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}
