use tenbin_codec::{QoS, TopicFilter, TopicName};

use crate::status::Side;

/// Way of the messages of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the remote broker to the local one.
    In,
    /// From the local broker to the remote one.
    Out,
    /// Both ways.
    Both,
}

/// Messages that a bridge passes on, and their topics on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    direction: Direction,
    qos: QoS,
    /// Prefix and whole filter, local and remote.
    sides: [(String, TopicFilter); 2],
}

impl Rule {
    /// Passes messages on whose topic is a side's prefix and a text that matches `filter`. The other side's prefix takes
    /// the place of the first one. `qos` bounds the QoS.
    ///
    /// # Errors
    /// Prefix and filter make no Topic Filter, or a shared one.
    pub fn new(
        direction: Direction,
        filter: &str,
        local_prefix: &str,
        remote_prefix: &str,
        qos: QoS,
    ) -> Result<Self, String> {
        let side = |prefix: &str| {
            let whole = format!("{prefix}{filter}");
            match TopicFilter::try_from(whole.as_str()) {
                _ if prefix.contains(['+', '#']) => Err(format!("the prefix {prefix:?} has a wildcard")),
                Ok(legal) if legal.is_shared() => Err(format!("{whole:?} is a shared subscription")),
                Ok(legal) => Ok((prefix.to_owned(), legal)),
                Err(error) => Err(format!("{whole:?}: {error}")),
            }
        };
        Ok(Self { direction, qos, sides: [side(local_prefix)?, side(remote_prefix)?] })
    }

    /// The filter to subscribe to at `side`; `None` if no messages come from there.
    pub(crate) fn source(&self, side: Side) -> Option<&TopicFilter> {
        let comes = match self.direction {
            Direction::In => side == Side::Remote,
            Direction::Out => side == Side::Local,
            Direction::Both => true,
        };
        comes.then_some(&self.sides[side as usize].1)
    }

    pub(crate) fn qos(&self) -> QoS {
        self.qos
    }

    /// Topic at the other side of a message from `side`. `None` if the rule is not about it, an error if it is too long.
    pub(crate) fn translate(&self, side: Side, topic: &TopicName) -> Option<Result<TopicName, ()>> {
        let (prefix, _) = &self.sides[side as usize];
        let (new_prefix, _) = &self.sides[side.other() as usize];
        let rest = topic.text().as_str().strip_prefix(prefix.as_str())?;
        if !self.source(side)?.matches(topic) {
            return None;
        }
        if prefix == new_prefix {
            return Some(Ok(topic.clone()));
        }
        Some(TopicName::try_from(format!("{new_prefix}{rest}").as_str()).map_err(|_| ()))
    }
}

/// Topic at the other side by the first rule that is about the message.
pub(crate) fn translate(rules: &[Rule], side: Side, topic: &TopicName) -> Option<Result<TopicName, ()>> {
    rules.iter().find_map(|rule| rule.translate(side, topic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(direction: Direction, filter: &str, local: &str, remote: &str) -> Rule {
        Rule::new(direction, filter, local, remote, QoS::AtLeastOnce).unwrap()
    }

    fn translated(rules: &[Rule], side: Side, topic: &str) -> Option<String> {
        let found = translate(rules, side, &TopicName::try_from(topic).unwrap())?;
        Some(found.unwrap().text().as_str().to_owned())
    }

    #[test]
    fn prefixes_are_exchanged_in_the_direction_of_the_rule() {
        let rules = [rule(Direction::Out, "#", "plant/", "site1/plant/"), rule(Direction::Both, "set/+", "", "site1/")];
        let expected = [
            (Side::Local, "plant/a/b", Some("site1/plant/a/b")),
            (Side::Local, "set/a", Some("site1/set/a")),
            (Side::Local, "set/a/b", None),
            (Side::Local, "plant", None),
            (Side::Remote, "site1/plant/a", None),
            (Side::Remote, "site1/set/a", Some("set/a")),
            (Side::Remote, "set/a", None),
        ];
        for (side, topic, found) in expected {
            assert_eq!(translated(&rules, side, topic).as_deref(), found, "{side:?} {topic}");
        }
    }

    #[test]
    fn first_rule_decides() {
        let rules = [rule(Direction::Out, "a/#", "", "first/"), rule(Direction::Out, "#", "", "second/")];
        assert_eq!(translated(&rules, Side::Local, "a/b").as_deref(), Some("first/a/b"));
        assert_eq!(translated(&rules, Side::Local, "b").as_deref(), Some("second/b"));
    }

    #[test]
    fn illegal_filters_are_named() {
        let error =
            |filter: &str, prefix: &str| Rule::new(Direction::Out, filter, prefix, "", QoS::AtMostOnce).unwrap_err();
        for (filter, prefix, word) in [
            ("a#", "", "\"a#\""),
            ("#", "a", "\"a#\""),
            ("a", "+/", "\"+/\""),
            ("$share/g/a", "", "shared"),
            ("", "", "empty"),
        ] {
            let found = error(filter, prefix);
            assert!(found.contains(word), "{found}");
        }
    }

    #[test]
    fn topic_that_becomes_too_long_is_known() {
        let rules = [rule(Direction::Out, "#", "", "prefix/")];
        let topic = TopicName::try_from("a".repeat(65_530).as_str()).unwrap();
        assert_eq!(translate(&rules, Side::Local, &topic), Some(Err(())));
    }
}
