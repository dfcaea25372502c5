use std::fmt;

use super::{ShareName, SharedFilter, TopicError, TopicName};
use crate::Text;

/// Topic Filter of a subscription. `+` stands for one level, a last `#` for all following levels.
///
/// A shared subscription is a filter too: `$share/{ShareName}/{filter}`, see [`TopicFilter::shared`].
///
/// ```
/// use tenbin_codec::{TopicFilter, TopicName};
///
/// let filter = TopicFilter::try_from("$share/workers/jobs/+")?;
/// let shared = filter.shared().expect("it is a shared subscription");
/// assert_eq!(shared.share_name.to_string(), "workers");
/// assert!(shared.filter.matches(&TopicName::try_from("jobs/7")?));
/// assert!(!shared.filter.matches(&TopicName::try_from("jobs/7/done")?));
/// assert!(TopicFilter::try_from("jobs#").is_err());
/// # Ok::<(), tenbin_codec::TopicError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicFilter(Text);

impl TopicFilter {
    /// Checks the rules of a Topic Filter, including those of shared subscriptions.
    ///
    /// # Errors
    /// An empty text, a misplaced wildcard, or an incomplete `$share/` filter.
    pub fn new(text: Text) -> Result<Self, TopicError> {
        check_wildcards(text.as_bytes())?;
        let filter = Self(text);
        if filter.is_shared() {
            let (name, rest) = filter.share_parts().ok_or(TopicError::Share)?;
            if name.is_empty() || name.iter().any(|byte| matches!(byte, b'+' | b'#')) {
                return Err(TopicError::Share); // [MQTT-4.8.2-1], [MQTT-4.8.2-2]
            }
            check_wildcards(rest).map_err(|_| TopicError::Share)?;
        }
        Ok(filter)
    }

    /// The filter's text.
    pub fn text(&self) -> &Text {
        &self.0
    }

    /// The filter's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The levels between the slashes; an empty level counts.
    pub fn levels(&self) -> impl Iterator<Item = &[u8]> {
        self.as_bytes().split(|&byte| byte == b'/')
    }

    /// Whether it contains `+` or `#`, so that it can match more than one topic.
    pub fn has_wildcard(&self) -> bool {
        self.as_bytes().iter().any(|byte| matches!(byte, b'+' | b'#'))
    }

    /// Whether it is a shared subscription.
    pub fn is_shared(&self) -> bool {
        self.as_bytes().starts_with(SHARE_PREFIX)
    }

    /// The parts of a shared subscription; `None` for an ordinary one.
    pub fn shared(&self) -> Option<SharedFilter> {
        if !self.is_shared() {
            return None;
        }
        let (name, _) = self.share_parts()?;
        let name_end = SHARE_PREFIX.len() + name.len();
        Some(SharedFilter {
            share_name: ShareName(self.0.slice(SHARE_PREFIX.len(), name_end)),
            filter: Self(self.0.slice(name_end + 1, self.0.len())),
        })
    }

    /// Whether this (ordinary) filter matches `topic` (MQTT 5.0 §4.7).
    pub fn matches(&self, topic: &TopicName) -> bool {
        let leading_wildcard = matches!(self.as_bytes().first(), Some(b'+' | b'#'));
        if leading_wildcard && topic.starts_with_dollar() {
            return false; // [MQTT-4.7.2-1]
        }
        let mut topic_levels = topic.as_bytes().split(|&byte| byte == b'/');
        for level in self.levels() {
            if level == b"#" {
                return true; // also the parent level: "a/#" matches "a"
            }
            match topic_levels.next() {
                Some(name) if level == b"+" || level == name => {}
                _ => return false,
            }
        }
        topic_levels.next().is_none()
    }

    /// Whether this (ordinary) filter matches every topic that `other` matches, level by level: `+` stands for a level
    /// of `other` that is one name or `+`, a last `#` for all that follow. A filter contains itself.
    ///
    /// `+/#` and `#` match the same topics; of these two, only `#` contains the other.
    pub fn contains(&self, other: &Self) -> bool {
        let leading_wildcard = matches!(self.as_bytes().first(), Some(b'+' | b'#'));
        if leading_wildcard && other.as_bytes().first() == Some(&b'$') {
            return false; // [MQTT-4.7.2-1]
        }
        let mut other_levels = other.levels();
        for level in self.levels() {
            if level == b"#" {
                return true;
            }
            match other_levels.next() {
                Some(b"#") | None => return false,
                Some(name) if level == b"+" || level == name => {}
                Some(_) => return false,
            }
        }
        other_levels.next().is_none()
    }

    /// The filter as one topic level: percent-encoded (RFC 3986 §2.1), except for ASCII letters, digits and `-._~`.
    pub fn to_level(&self) -> String {
        let mut level = String::with_capacity(self.as_bytes().len());
        for &byte in self.as_bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => level.push(char::from(byte)),
                _ => {
                    level.push('%');
                    level.extend([byte >> 4, byte & 15].map(|digit| char::from(HEX[usize::from(digit)])));
                }
            }
        }
        level
    }

    /// A copy that does not keep the buffer it was read from alive.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self(self.0.detach())
    }

    /// Share name and filter of `$share/name/filter`, unchecked.
    fn share_parts(&self) -> Option<(&[u8], &[u8])> {
        let rest = self.as_bytes().strip_prefix(SHARE_PREFIX)?;
        let slash = rest.iter().position(|&byte| byte == b'/')?;
        Some((&rest[..slash], &rest[slash + 1..]))
    }
}

impl TryFrom<&str> for TopicFilter {
    type Error = TopicError;

    fn try_from(text: &str) -> Result<Self, TopicError> {
        Self::new(Text::try_from(text)?)
    }
}

impl fmt::Display for TopicFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TopicFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

const SHARE_PREFIX: &[u8] = b"$share/";

fn check_wildcards(filter: &[u8]) -> Result<(), TopicError> {
    if filter.is_empty() {
        return Err(TopicError::Empty); // [MQTT-4.7.3-1]
    }
    let mut levels = filter.split(|&byte| byte == b'/').peekable();
    while let Some(level) = levels.next() {
        let legal = match level {
            b"#" => levels.peek().is_none(), // [MQTT-4.7.1-1]
            b"+" => true,
            _ => !level.iter().any(|byte| matches!(byte, b'+' | b'#')), // [MQTT-4.7.1-2]
        };
        if !legal {
            return Err(TopicError::MisplacedWildcard);
        }
    }
    Ok(())
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> Result<TopicFilter, TopicError> {
        TopicFilter::try_from(text)
    }

    #[test]
    fn mqtt_4_7_1_wildcards_fill_a_level_and_hash_is_last() {
        for text in ["#", "+", "a/#", "+/a", "+/+/#", "/", "/+", "a//b", "$SYS/#", "$share", "$shared/a"] {
            assert!(filter(text).is_ok(), "{text}");
        }
        for text in ["a#", "#/a", "a/#/b", "+b", "a/b+", "++", "##"] {
            assert_eq!(filter(text), Err(TopicError::MisplacedWildcard), "{text}");
        }
        assert_eq!(filter(""), Err(TopicError::Empty));
    }

    #[test]
    fn mqtt_4_8_2_shared_filters_have_a_name_and_a_filter() {
        for text in ["$share/", "$share/x", "$share//t", "$share/+/t", "$share/x#y/t", "$share/x/"] {
            assert!(filter(text).is_err(), "{text}");
        }
        let shared = filter("$share/group/a/+/#").unwrap().shared().unwrap();
        assert_eq!(shared.share_name.text(), &"group");
        assert_eq!(shared.filter.text(), &"a/+/#");
        assert_eq!(filter("a/b").unwrap().shared(), None);
    }

    #[test]
    fn encoded_filter_is_one_topic_level() {
        for (text, level) in [
            ("a", "a"),
            ("a/+/b_c-d.e~f/#", "a%2F%2B%2Fb_c-d.e~f%2F%23"),
            ("100 %/\u{e9}/$x", "100%20%25%2F%C3%A9%2F%24x"),
        ] {
            assert_eq!(filter(text).unwrap().to_level(), level);
        }
    }

    #[test]
    fn filter_contains_another_iff_it_matches_all_its_topics() {
        let paths = |levels: &[&str], longest: usize| {
            let mut paths: Vec<String> = Vec::new();
            let mut last = vec![String::new()];
            for length in 0..longest {
                let longer = |path: &String| {
                    levels
                        .iter()
                        .map(|level| if length == 0 { (*level).into() } else { format!("{path}/{level}") })
                        .collect::<Vec<String>>()
                };
                last = last.iter().flat_map(longer).collect();
                paths.extend_from_slice(&last);
            }
            paths
        };
        let filters: Vec<_> = paths(&["a", "$b", "+", "#"], 3).iter().filter_map(|text| filter(text).ok()).collect();
        let topics: Vec<_> =
            paths(&["a", "$b", "c"], 4).iter().map(|text| TopicName::try_from(&text[..]).unwrap()).collect();
        for (one, other) in filters.iter().flat_map(|one| filters.iter().map(move |other| (one, other))) {
            let is_matched = topics.iter().all(|topic| one.matches(topic) || !other.matches(topic));
            let is_exception = one.text() == "+/#" && other.text() == "#";
            assert_eq!(one.contains(other), is_matched && !is_exception, "{one} {other}");
        }
    }

    #[test]
    fn mqtt_4_7_matching_follows_the_examples_of_the_standard() {
        for (text, topic, expected) in [
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true),
            ("sport/#", "sport", true),
            ("sport/tennis/+", "sport/tennis/player1/ranking", false),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("#", "$SYS/uptime", false),
            ("+/uptime", "$SYS/uptime", false),
            ("$SYS/#", "$SYS/uptime", true),
            ("a/b", "a/B", false),
        ] {
            let topic = TopicName::try_from(topic).unwrap();
            assert_eq!(filter(text).unwrap().matches(&topic), expected, "{text} {topic}");
        }
    }
}
