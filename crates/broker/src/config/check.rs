//! All errors of a configuration file, as far as they can be told apart.

use std::path::Path;

use toml::Table;

use super::{Config, ConfigError, NotTaken};

impl Config {
    /// Parses the text of a configuration file as [`Config::parse_with`] does, and looks for further errors.
    ///
    /// # Errors
    /// Everything that is wrong with it, the first one as of [`Config::parse_with`].
    pub(crate) fn parse_all(
        text: &str,
        environment: impl Iterator<Item = (String, String)> + Clone,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors = match Self::parse_with(text, environment) {
            Ok(config) => return Ok(config),
            Err(error) => vec![error],
        };
        // Without the lines that are wrong, the next error shows.
        let mut rest = text.to_owned();
        while errors.len() < ERRORS_MAX && toml::from_str::<Table>(&rest).is_ok() {
            let Err(error) = toml::from_str::<Self>(&rest) else { break };
            let Some(span) = error.span() else { break };
            let line = rest[..span.start].rfind('\n').map_or(0, |end| end + 1);
            if rest[line..].trim_start().starts_with('[') {
                break; // a table that lacks a key, and whose other keys would join the table before
            }
            let next = Self::parse(&rest).map_err(|_| ConfigError::illegal(&rest, &error));
            if let Err(error) = next
                && !errors.iter().any(|known| known.to_string() == error.to_string())
            {
                errors.push(error);
            }
            rest = without_lines(&rest, span.start, span.end);
        }
        Err(errors)
    }

    /// Parses `text`, which was read from `path`, as [`Config::read_with`] does, and looks for further errors.
    ///
    /// # Errors
    /// Everything that is wrong with it, with the file's name.
    pub(crate) fn parse_all_read(
        path: &Path,
        text: &str,
        environment: impl Iterator<Item = (String, String)> + Clone,
    ) -> Result<Self, Vec<ConfigError>> {
        Self::check_file(text).map_err(|error| vec![error.in_file(path)])?;
        let named = |errors: Vec<ConfigError>| errors.into_iter().map(|error| error.in_file(path)).collect::<Vec<_>>();
        let config = Self::parse_all(text, environment).map_err(named)?;
        Ok(Self { source: config.source.clone().with_file(path, text.to_owned()), ..config })
    }

    /// Keys of `self` that differ from their defaults.
    pub(crate) fn differences(&self) -> Vec<NotTaken> {
        let default = Self::default();
        let lists = [
            ("listen", listed(&default.listen), listed(&self.listen)),
            ("policy", default.policy.to_string(), self.policy.to_string()),
            ("acl_default", format!("{:?}", default.acl_default), format!("{:?}", self.acl_default)),
            ("listeners", default.listeners.len().to_string(), self.listeners.len().to_string()),
            ("auth", default.auth.len().to_string(), self.auth.len().to_string()),
            ("ban", default.ban.len().to_string(), self.ban.len().to_string()),
            ("acl", default.acl.len().to_string(), self.acl.len().to_string()),
            ("bridge", default.bridge.len().to_string(), self.bridge.len().to_string()),
            ("share", default.share.len().to_string(), self.share.len().to_string()),
        ];
        let differs =
            |(key, old, new): (&str, String, String)| (old != new).then(|| NotTaken { key: key.to_owned(), old, new });
        lists.into_iter().filter_map(differs).chain(default.not_taken(self)).collect()
    }
}

fn listed(addresses: &[impl ToString]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The text with empty lines in place of those that touch `start..end`.
fn without_lines(text: &str, start: usize, end: usize) -> String {
    let from = text[..start].rfind('\n').map_or(0, |end| end + 1);
    let to = text[end..].find('\n').map_or(text.len(), |at| end + at);
    let empty = "\n".repeat(text[from..to].matches('\n').count());
    [&text[..from], &empty, &text[to..]].concat()
}

/// Errors that are told at most.
const ERRORS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_errors_are_told_with_their_lines() {
        let text = "policy = \"fastest\"\n[queue]\nmessages_maximum = 0\nlength = 5\nbytes_maximum = 2000\n\
                    [sessions]\nmaximum = \"many\"\n";
        let errors = Config::parse_all(text, std::iter::empty()).unwrap_err();
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 4, "{errors:#?}");
        for (line, word) in [(1, "thesis_score"), (3, "1 to"), (4, "length"), (7, "maximum")] {
            let is_its = |error: &&String| error.contains(&format!("line {line}:")) && error.contains(word);
            assert!(errors.iter().any(|error| is_its(&error)), "line {line}: {errors:#?}");
        }
        assert_eq!(Config::parse_all("[queue\n", std::iter::empty()).unwrap_err().len(), 1);
        assert_eq!(Config::parse_all("[[listeners]]\nname = \"a\"\n", std::iter::empty()).unwrap_err().len(), 1);
    }

    #[test]
    fn differences_from_the_defaults_are_listed() {
        let text = "policy = \"random\"\n[queue]\nmessages_maximum = 5\n[store]\nsync = \"always\"\n";
        let found = Config::parse(text).unwrap().differences();
        let found: Vec<_> = found.iter().map(|found| [&found.key[..], &found.old, &found.new]).collect();
        assert_eq!(found, [["policy", "adaptive", "random"], ["queue.messages_maximum", "16384", "5"]]);
        assert_eq!(Config::default().differences(), []);
    }
}
