//! `expected.toml`: outcomes that were observed, so that a change shows.
//!
//! A table for each verification, with the failing assertions of each variant. None fails: `[]`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml_edit::{DocumentMut, Item, TomlError, Value};

use crate::error::Error;
use crate::judge::assertion::Assertion;
use crate::library;
use crate::results::{VariantVerdict, Verdict};

/// Name of the file, beside the templates.
pub(crate) const NAME: &str = "expected.toml";

/// Outcomes by verification and variant.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Recorded(BTreeMap<String, BTreeMap<String, Vec<Assertion>>>);

impl Recorded {
    /// Outcomes beside `template`: a file, or a ready verification by its name. None without `expected.toml`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn beside(template: &Path) -> Result<Self, Error> {
        let path = path(template);
        match (library::at(template).is_some(), path.exists()) {
            (true, _) => Self::parse(library::EXPECTED, Path::new(NAME)),
            (false, true) => Self::parse(&read(&path)?, &path),
            (false, false) => Ok(Self::default()),
        }
    }

    fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        toml::from_str(text).map_err(|error| Error::Recorded { path: path.to_owned(), reason: error.to_string() })
    }

    /// Failing assertions of a variant, if it has a record.
    pub(crate) fn of(&self, verification: &str, variant: &str) -> Option<&[Assertion]> {
        self.0.get(verification)?.get(variant).map(Vec::as_slice)
    }
}

/// Writes the outcomes of `verdict` into the file beside `template`; returns its path. Variants that did not run, or have
/// no assertions, keep their record.
///
/// # Errors
/// The file cannot be read or written, or is no file of outcomes.
pub(crate) fn record(template: &Path, verdict: &Verdict) -> Result<PathBuf, Error> {
    let path = path(template);
    let mut text = if path.exists() { read(&path)? } else { String::new() };
    Recorded::parse(&text, &path)?;
    for variant in verdict.variants.iter().filter(|variant| has_outcome(variant)) {
        text = with(&text, &verdict.name, &variant.name, &variant.failing())
            .map_err(|error| Error::Recorded { path: path.clone(), reason: error.to_string() })?;
    }
    fs::write(&path, text).map_err(|error| Error::Results { path: path.clone(), error })?;
    Ok(path)
}

fn has_outcome(variant: &VariantVerdict) -> bool {
    variant.took_place() && variant.runs.iter().any(|run| !run.checks.is_empty())
}

fn path(template: &Path) -> PathBuf {
    template.with_file_name(NAME)
}

fn read(path: &Path) -> Result<String, Error> {
    tenbin_kit::files::read_text(path).map_err(|error| Error::Unreadable {
        path: path.to_owned(),
        error,
        suggestion: None,
    })
}

/// `text` with one outcome; all else stays, with its comments.
fn with(text: &str, verification: &str, variant: &str, failing: &[Assertion]) -> Result<String, TomlError> {
    let mut document = text.parse::<DocumentMut>()?;
    if !document.contains_key(verification) {
        // Comments at the end of the file stay before the new table.
        let end = document.trailing().as_str().unwrap_or_default().to_owned();
        let mut table = toml_edit::Table::new();
        if !end.is_empty() {
            table.decor_mut().set_prefix(format!("{end}\n"));
            document.set_trailing("");
        }
        document.insert(verification, Item::Table(table));
    }
    let outcomes = &mut document[verification];
    let mut outcome = Value::from_iter(failing.iter().map(ToString::to_string));
    match outcomes.get_mut(variant).and_then(Item::as_value_mut) {
        Some(known) => {
            *outcome.decor_mut() = known.decor().clone();
            *known = outcome;
        }
        None => outcomes[variant] = outcome.into(),
    }
    Ok(document.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{Expect, Template};

    fn with(text: &str, verification: &str, variant: &str, failing: &[Assertion]) -> String {
        super::with(text, verification, variant, failing).unwrap()
    }

    fn assertions(texts: &[&str]) -> Vec<Assertion> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn an_outcome_replaces_its_own_line_alone() {
        let lost = assertions(&["lost = 0"]);
        let one = with("", "kill", "tenbin", &[]);
        assert_eq!(one, "[kill]\ntenbin = []\n");
        let two = with("# Top.\n\n[kill]\ntenbin = []  # seen\n\n[other]\na = []\n", "kill", "mosquitto", &lost);
        assert_eq!(two, "# Top.\n\n[kill]\ntenbin = []  # seen\nmosquitto = [\"lost = 0\"]\n\n[other]\na = []\n");
        let three = with(&two, "kill", "mosquitto", &assertions(&["lost = 0", "p99 during a <= 1.1 x before"]));
        assert!(three.contains("mosquitto = [\"lost = 0\", \"p99 during a <= 1.1 x before\"]\n\n[other]"), "{three}");
        let four = with(&three, "sweep", "size-1.5", &lost);
        assert!(four.ends_with("a = []\n\n[sweep]\n\"size-1.5\" = [\"lost = 0\"]\n"), "{four}");
        let recorded = Recorded::parse(&four, Path::new(NAME)).unwrap();
        assert_eq!(recorded.of("sweep", "size-1.5"), Some(&lost[..]));
        assert_eq!(recorded.of("kill", "tenbin"), Some(&[][..]));
        assert_eq!(recorded.of("kill", "rabbitmq"), None);
    }

    #[test]
    fn comments_at_the_end_stay_before_a_new_table() {
        assert_eq!(with("# Top.\n", "kill", "a", &[]), "# Top.\n\n[kill]\na = []\n");
        let text = "[kill]\na = []\n# Of kill.\n";
        assert_eq!(with(text, "other", "b", &[]), format!("{text}\n[other]\nb = []\n"));
    }

    #[test]
    fn comments_stay_with_their_lines_and_tables() {
        let text = "[kill] # 0\n\"a.b\" = [\"lost = 0\"] # 1 # 2\n# Of kill.\n\n# Of other.\n[other]\nx = []  # y\n";
        let one = with(text, "kill", "new", &[]);
        let new =
            "[kill] # 0\n\"a.b\" = [\"lost = 0\"] # 1 # 2\nnew = []\n# Of kill.\n\n# Of other.\n[other]\nx = []  # y\n";
        assert_eq!(one, new);
        assert_eq!(with(&one, "kill", "a.b", &[]), new.replace("[\"lost = 0\"] # 1", "[] # 1"));
        let last = with(&one, "other", "x", &assertions(&["lost = 0"]));
        assert!(last.ends_with("[other]\nx = [\"lost = 0\"]  # y\n"), "{last}");
    }

    #[test]
    fn wrong_files_are_refused_with_their_name() {
        for text in ["[a]\nb = \"holds\"", "[a]\nb = [\"lots = 0\"]", "[a"] {
            let error = Recorded::parse(text, Path::new("x/expected.toml")).unwrap_err();
            assert!(error.to_string().starts_with("x/expected.toml: ") && error.exit_code() == 2, "{error}");
        }
    }

    #[test]
    fn records_of_ready_verifications_name_their_assertions() {
        let recorded = Recorded::beside(Path::new("kill-qos1")).unwrap();
        assert!(recorded.of("kill-qos1", "tenbin").is_some());
        for (name, variants) in &recorded.0 {
            let ready = library::find(name).unwrap_or_else(|| panic!("{name} is no ready verification"));
            let templates = Template::read(name, ready.text).unwrap();
            for (variant, failing) in variants {
                let template = templates.iter().find(|template| template.variant == *variant);
                let template = template.unwrap_or_else(|| panic!("{name} has no variant {variant}"));
                for assertion in failing {
                    assert!(template.assertions.contains(assertion), "{name}, {variant}: no assertion {assertion}");
                }
                let is_failure = template.expect == Expect::Fail;
                assert!(!is_failure || !failing.is_empty(), "{name}, {variant}: expect is fail, and nothing fails");
            }
        }
    }
}
