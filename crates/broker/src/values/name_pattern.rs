//! Patterns of share names.

use std::fmt;

use serde::{Deserialize, Deserializer};

/// A name pattern, in which `*` stands for any text, including none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(Box<str>);

impl NamePattern {
    /// Creates a pattern from its written form.
    pub fn new(pattern: &str) -> Self {
        Self(pattern.into())
    }

    pub(super) fn is_any(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }

    /// Returns its written form.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn has_star(&self) -> bool {
        self.0.contains('*')
    }

    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let mut parts = self.0.split('*').map(str::as_bytes);
        let first = parts.next().unwrap_or_default();
        let Some(last) = parts.next_back() else { return name == first };
        let Some(rest) = name.strip_prefix(first) else { return false };
        let Some(mut rest) = rest.strip_suffix(last) else { return false };
        // Match the text between two stars as early as possible.
        for part in parts {
            let found = (0..=rest.len()).find(|&at| rest[at..].starts_with(part));
            let Some(at) = found else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads a pattern of share names.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NamePattern, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() || text.contains(['/', '+', '#']) {
        return Err(serde::de::Error::custom(format!("{text:?} is no share name; * stands for any text")));
    }
    Ok(NamePattern::new(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_in_share_name_matches_any_text() {
        for (pattern, fitting, others) in [
            ("workers", &["workers"][..], &["worker", "workers2", ""][..]),
            ("*", &["", "x", "workers"], &[]),
            ("w*", &["w", "workers"], &["x", "aw"]),
            ("*s", &["s", "workers"], &["sx"]),
            ("a*b*c", &["abc", "axbxc", "abbcc", "abcbc"], &["ac", "acb", "ab"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("*ab*ab*", &["abab", "xabyabz"], &["ab", "aba"]),
        ] {
            let pattern = NamePattern::new(pattern);
            for name in fitting {
                assert!(pattern.matches(name.as_bytes()), "{pattern} {name}");
            }
            for name in others {
                assert!(!pattern.matches(name.as_bytes()), "{pattern} {name}");
            }
        }
    }
}
