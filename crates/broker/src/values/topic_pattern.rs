use std::borrow::Cow;
use std::fmt;

use tenbin_codec::{TopicError, TopicFilter};

use super::Effect;

/// Topic Filter of an ACL rule; `%c` stands for the Client Identifier and `%u` for the user name.
///
/// Names that could widen the pattern are not inserted: names with `+`, `#` or `/`, empty names, and names with a
/// leading `$` at the start of the filter. For such a name, an allowing rule does not match at all, and a denying rule
/// covers everything from that level on.
#[derive(Clone, PartialEq, Eq)]
pub struct TopicPattern {
    text: String,
    levels: Box<[Level]>,
}

/// Values of the placeholders.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) client_id: &'a [u8],
    /// Anonymous clients have none: a pattern with `%u` never applies to them.
    pub(crate) user: Option<&'a [u8]>,
}

/// Relation between the topics of a pattern and the topics of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    /// No topic belongs to both.
    Disjoint,
    /// Some of the filter's topics may belong to the pattern.
    Overlaps,
    /// All of the filter's topics belong to the pattern.
    Contains,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Level {
    Plus,
    Hash,
    Name(Box<[Part]>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(Box<[u8]>),
    ClientId,
    User,
}

impl TopicPattern {
    /// Parses a pattern by the rules of a Topic Filter.
    ///
    /// # Errors
    /// The text is not a legal filter, or is a shared subscription. Its rights are the rights of the filter behind
    /// `$share/name/`.
    pub fn new(text: &str) -> Result<Self, TopicError> {
        let filter = TopicFilter::try_from(text)?;
        if text == "$share" || text.starts_with("$share/") {
            return Err(TopicError::Share);
        }
        let levels = filter.levels().map(Level::parse).collect();
        Ok(Self { text: text.to_owned(), levels })
    }

    /// The pattern as it is written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Memory in addition to the size of the value, as an estimate: each level is allocated by itself.
    #[cfg(feature = "web")]
    pub(crate) fn heap_bytes(&self) -> usize {
        let part = |part: &Part| match part {
            Part::Literal(text) => size_of::<Part>() + text.len() + ALLOCATION_BYTES,
            Part::ClientId | Part::User => size_of::<Part>(),
        };
        let level = |level: &Level| match level {
            Level::Name(parts) => size_of::<Level>() + ALLOCATION_BYTES + parts.iter().map(part).sum::<usize>(),
            Level::Plus | Level::Hash => size_of::<Level>(),
        };
        self.text.len() + self.levels.iter().map(level).sum::<usize>()
    }

    /// Returns how the topics of `filter` relate to those of this pattern, for a rule with `effect`.
    ///
    /// A topic counts as a filter without wildcards.
    pub(crate) fn relation(&self, filter: &[u8], names: Names<'_>, effect: Effect) -> Relation {
        let mut wanted = filter.split(|&byte| byte == b'/');
        let mut found = Relation::Contains;
        for (index, level) in self.levels.iter().enumerate() {
            let name = match level {
                // [MQTT-4.7.2-1]: a leading wildcard does not match the server's own topics.
                Level::Plus | Level::Hash if index == 0 && filter.first() == Some(&b'$') => return Relation::Disjoint,
                Level::Hash => return found, // includes the parent level: "a/#" matches "a"
                Level::Plus => None,
                Level::Name(parts) => match fill(parts, names, index == 0) {
                    Filled::Name(parts) => Some(parts),
                    Filled::Nobody => return Relation::Disjoint,
                    Filled::Widening if effect == Effect::Deny => return found,
                    Filled::Widening => return Relation::Disjoint,
                },
            };
            let name = name.as_deref();
            let is_dollar = index == 0 && name.is_some_and(|name| name.starts_with(b"$"));
            match wanted.next() {
                None => return Relation::Disjoint,
                Some(b"#" | b"+") if is_dollar => return Relation::Disjoint,
                Some(b"#") => return Relation::Overlaps,
                Some(b"+") if name.is_some() => found = Relation::Overlaps,
                Some(b"+") => {}
                Some(level) if name.is_some_and(|name| name != level) => return Relation::Disjoint,
                Some(_) => {}
            }
        }
        match wanted.next() {
            None => found,
            Some(b"#") => Relation::Overlaps, // "#" also matches its parent level
            Some(_) => Relation::Disjoint,
        }
    }
}

/// Estimate of the allocator's own memory for an allocation.
#[cfg(feature = "web")]
const ALLOCATION_BYTES: usize = 16;

enum Filled<'a> {
    Name(Cow<'a, [u8]>),
    /// The pattern has `%u` and the client has no user name.
    Nobody,
    /// The name would widen the pattern.
    Widening,
}

/// Inserts the names. Copies only levels that combine literals and placeholders.
fn fill<'a>(parts: &'a [Part], names: Names<'a>, is_first_level: bool) -> Filled<'a> {
    let mut filled = Cow::Borrowed(&b""[..]);
    for part in parts {
        let text = match part {
            Part::Literal(text) => text,
            Part::ClientId => names.client_id,
            Part::User => match names.user {
                Some(user) => user,
                None => return Filled::Nobody,
            },
        };
        if !matches!(part, Part::Literal(_)) {
            let at_start = is_first_level && filled.is_empty();
            let widens = text.is_empty() || text.iter().any(|byte| matches!(byte, b'+' | b'#' | b'/'));
            if widens || at_start && text[0] == b'$' {
                return Filled::Widening;
            }
        }
        if filled.is_empty() {
            filled = text.into();
        } else {
            filled.to_mut().extend_from_slice(text);
        }
    }
    Filled::Name(filled)
}

impl Level {
    fn parse(level: &[u8]) -> Self {
        match level {
            b"+" => Self::Plus,
            b"#" => Self::Hash,
            name => Self::Name(Part::parse(name)),
        }
    }
}

impl Part {
    fn parse(mut name: &[u8]) -> Box<[Self]> {
        let mut parts = Vec::new();
        while let Some(at) = name.windows(2).position(|pair| pair == b"%c" || pair == b"%u") {
            if at > 0 {
                parts.push(Self::Literal(name[..at].into()));
            }
            parts.push(if name[at + 1] == b'c' { Self::ClientId } else { Self::User });
            name = &name[at + 2..];
        }
        if !name.is_empty() || parts.is_empty() {
            parts.push(Self::Literal(name.into()));
        }
        parts.into()
    }
}

impl<'de> serde::Deserialize<'de> for TopicPattern {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).map_err(|error| serde::de::Error::custom(format!("{text:?}: {error}")))
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenbin_codec::TopicName;

    use super::*;

    fn relation(pattern: &str, filter: &str, client_id: &str, effect: Effect) -> Relation {
        let names = Names { client_id: client_id.as_bytes(), user: None };
        TopicPattern::new(pattern).unwrap().relation(filter.as_bytes(), names, effect)
    }

    #[test]
    fn filter_is_contained_overlapping_or_disjoint() {
        use Relation::{Contains, Disjoint, Overlaps};
        for (pattern, filter, expected) in [
            ("a/b", "a/b", Contains),
            ("a/b", "a/c", Disjoint),
            ("a/b", "a", Disjoint),
            ("a", "a/b", Disjoint),
            ("a/#", "a", Contains),
            ("a/#", "a/#", Contains),
            ("a/#", "a/+/c/#", Contains),
            ("a/#", "#", Overlaps),
            ("a/+", "a/#", Overlaps),
            ("a/+", "a/+", Contains),
            ("a/+", "+/b", Overlaps),
            ("a/b", "a/+", Overlaps),
            ("a", "a/#", Overlaps),
            ("a/b/#", "a/+", Overlaps),
            ("a/b/c", "a/+", Disjoint),
            ("#", "#", Contains),
            ("#", "$SYS/#", Disjoint),
            ("+/x", "$SYS/x", Disjoint),
            ("$SYS/#", "#", Disjoint),
            ("$SYS/x", "+/x", Disjoint),
            ("$SYS/#", "$SYS/broker/+", Contains),
            ("a//b", "a/+/b", Overlaps),
        ] {
            assert_eq!(relation(pattern, filter, "c", Effect::Allow), expected, "{pattern} {filter}");
        }
    }

    #[test]
    fn placeholders_are_replaced_anywhere_in_a_level() {
        for (pattern, topic, matches) in [
            ("dev/%c", "dev/c1", true),
            ("dev/%c", "dev/c2", false),
            ("dev/x-%c-y/z", "dev/x-c1-y/z", true),
            ("dev/%c%c", "dev/c1c1", true),
            ("dev/%u", "dev/", false),
            ("dev/%d", "dev/%d", true),
        ] {
            let found = relation(pattern, topic, "c1", Effect::Allow);
            assert_eq!(found == Relation::Contains, matches, "{pattern} {topic}");
            assert_ne!(found, Relation::Overlaps);
        }
    }

    #[test]
    fn names_with_wildcards_never_widen_a_pattern() {
        for id in ["#", "+", "a/+", "a/b", "a#", ""] {
            for topic in ["dev/x", "dev/x/y", "dev/#", &format!("dev/{id}")] {
                assert_eq!(relation("dev/%c", topic, id, Effect::Allow), Relation::Disjoint, "{id} {topic}");
                assert_eq!(relation("dev/%c", topic, id, Effect::Deny), Relation::Contains, "{id} {topic}");
            }
            assert_eq!(relation("dev/%c", "other", id, Effect::Deny), Relation::Disjoint);
        }
        assert_eq!(relation("%c/#", "$SYS/uptime", "$SYS", Effect::Allow), Relation::Disjoint);
        assert_eq!(relation("%c/#", "$SYS/uptime", "$SYS", Effect::Deny), Relation::Contains);
        assert_eq!(relation("x/%c", "x/$a", "$a", Effect::Allow), Relation::Contains);
    }

    #[test]
    fn invalid_and_shared_filters_are_rejected() {
        for text in ["", "a#", "#/a", "$share/g/a", "$share"] {
            assert!(TopicPattern::new(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        /// Compares with all topics over a small alphabet.
        #[test]
        fn relation_agrees_with_sets_of_topics(
            pattern in "([ab]|\\+)(/([ab]|\\+)){0,2}(/#)?",
            filter in "([ab]|\\+)(/([ab]|\\+)){0,2}(/#)?",
        ) {
            let relation = relation(&pattern, &filter, "c", Effect::Allow);
            let (pattern, filter) = (TopicFilter::try_from(&pattern[..]).unwrap(), TopicFilter::try_from(&filter[..]).unwrap());
            let mut topics = vec![String::new()];
            let mut shares = Vec::new();
            for _ in 0..4 {
                topics = topics.iter().flat_map(|t| ["a", "b", "c"].map(|l| if t.is_empty() { l.into() } else { format!("{t}/{l}") })).collect();
                let names = topics.iter().map(|topic| TopicName::try_from(&topic[..]).unwrap());
                shares.extend(names.filter(|name| filter.matches(name)).map(|name| pattern.matches(&name)));
            }
            let expected = if shares.iter().all(|&both| both) { Relation::Contains }
                else if shares.iter().any(|&both| both) { Relation::Overlaps } else { Relation::Disjoint };
            prop_assert_eq!(relation, expected);
        }
    }
}
