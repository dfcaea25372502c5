//! Checks of `[[share]]` rules together: standing groups, and circles of dead letters.

use super::{Config, ConfigError};

impl Config {
    /// Checks that each standing group follows its own rule, and that clients may join it.
    pub(super) fn check_standing_groups(&self) -> Result<(), ConfigError> {
        for (index, rule) in self.share.iter().enumerate() {
            let Some(group) = rule.standing_group() else { continue };
            let refused = |reason: &str| Err(ConfigError::cannot_stand(index + 1, reason));
            if let Some(first) = self.share[..index].iter().position(|earlier| earlier.is_about(&group)) {
                return refused(&format!("rule {} matches the group first, and applies as a whole", first + 1));
            }
            if !self.capabilities.shared_subscriptions {
                return refused("no client may join: capabilities.shared_subscriptions is off");
            }
            if group.filter.has_wildcard() && !self.capabilities.wildcard_subscriptions {
                return refused("no client may join: capabilities.wildcard_subscriptions is off");
            }
        }
        Ok(())
    }

    /// Checks that no dead letter comes back to the group of its message by way of other groups.
    pub(super) fn check_dead_letters(&self) -> Result<(), ConfigError> {
        let gets = |from: usize, to: usize| self.share[from].may_send_letters_to(&self.share[to]);
        for begin in 0..self.share.len() {
            let mut reached = vec![begin];
            let mut next = 0;
            while let Some(&from) = reached.get(next) {
                next += 1;
                if from != begin && gets(from, begin) {
                    let reason =
                        format!("dead_letter: the letters may go in a circle, which comes back from rule {}", from + 1);
                    return Err(ConfigError::of_rule(begin + 1, &reason));
                }
                let new = (0..self.share.len()).filter(|&to| !reached.contains(&to) && gets(from, to));
                let mut new = new.collect();
                reached.append(&mut new);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_of_dead_letters_are_refused() {
        let rule = |group: &str, filter: &str, letter: &str| {
            let keys = "deliveries_maximum = 3\non_reject = \"retry\"";
            format!("[[share]]\ngroup = \"{group}\"\nfilter = \"{filter}\"\n{keys}\ndead_letter = \"{letter}\"\n")
        };
        let [first, second] = [rule("one", "jobs/#", "dead/%t"), rule("two", "dead/#", "again/%t")];
        assert!(Config::parse(&format!("{first}{second}")).is_ok(), "a chain");
        for (text, words) in [
            (format!("{first}{}", rule("two", "dead/#", "jobs/%g")), "comes back from rule 2"),
            (format!("{first}{second}{}", rule("three", "again/+/x", "jobs/1")), "comes back from rule 3"),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(error.contains("share: rule 1: dead_letter") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn errors_of_standing_groups_name_key_and_line_or_rule() {
        let rule = "[[share]]\ngroup = \"g\"\nfilter = \"a/#\"\nkeep_seconds = 60\n";
        for (text, place, words) in [
            ("\n[[share]]\nfilter = \"a\"\nkeep_seconds = 60".to_owned(), "line 2", "keep_seconds: needs `group`"),
            ("[[share]]\ngroup = \"g*\"\nfilter = \"a\"\nkeep_seconds = 60".to_owned(), "line 1", "without *"),
            ("[[share]]\ngroup = \"g\"\nkeep_seconds = 60".to_owned(), "line 1", "keep_seconds: needs `filter`"),
            (rule.replace("60", "0"), "line 4", "keep_seconds: 0 is no number of seconds from 1 to 4294967295"),
            (rule.replace("60", "\"7d\""), "line 4", "keep_seconds"),
            (rule.replace("a/#", &"a".repeat(65_000)), "line 1", "longer than 65000 bytes"),
            (format!("[[share]]\ngroup = \"*\"\n{rule}"), "rule 2", "rule 1 matches the group first"),
            (format!("{rule}{rule}"), "rule 2", "rule 1 matches the group first"),
            (format!("{rule}[capabilities]\nshared_subscriptions = false"), "rule 1", "shared_subscriptions"),
            (format!("{rule}[capabilities]\nwildcard_subscriptions = false"), "rule 1", "wildcard_subscriptions"),
        ] {
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(error.contains(place) && error.contains(words), "{text:.100}: {error:.300}");
        }
        let others = "[[share]]\ngroup = \"h*\"\n[[share]]\ngroup = \"g\"\nfilter = \"a/b\"\n";
        assert_eq!(Config::parse(&format!("{others}{rule}")).unwrap().share.len(), 3);
    }
}
