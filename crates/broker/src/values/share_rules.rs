//! Dispatch rules of share groups: a default policy, and rules for groups by name and filter.

mod raw;

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tenbin_balancer::{LateBinding, Policy, Rules};
use tenbin_codec::{SharedFilter, TopicFilter};

use super::{NamePattern, OrderingKey, WorkQueue};

/// A dispatch rule for some share groups, which replaces the default policy. The first matching rule applies, as a
/// whole.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "raw::RawRule")]
pub struct ShareRule {
    /// Share names that the rule covers.
    pub group: NamePattern,
    /// The rule covers groups whose topics all match this filter ([`TopicFilter::contains`]); `None` = all groups.
    pub filter: Option<TopicFilter>,
    /// `None` = the default policy.
    pub policy: Option<Policy>,
    /// Ordering key, for policies that have [no affinity](Policy::has_affinity); `policy` then defaults to
    /// [`Policy::Adaptive`]. `None` = messages are not ordered.
    pub key: Option<OrderingKey>,
    /// Whether a key stays with a member that is full or slow. If not, it moves to another member, which breaks its
    /// order.
    pub strict: bool,
    /// A policy to evaluate beside the active one, without effect on dispatch; `None` = none.
    pub shadow: Option<Policy>,
    /// When messages wait with the group until a member can begin with them; only with [`Policy::Adaptive`].
    pub late_binding: LateBinding,
    /// Messages that a member works on at a time, if it tells no concurrency itself; `None` = unknown.
    pub concurrency: Option<NonZeroU16>,
    /// Owners of turns while messages wait with the group; `None` = publishers, unless there is a key, or the policy has
    /// an [affinity](Policy::has_affinity).
    pub fair_by: Option<FairBy>,
    /// Length of the group backlog, in milliseconds of the group's speed, beyond which acknowledgements of its publishers
    /// are held; `None` = never.
    pub hold_beyond_ms: Option<NonZeroU32>,
    /// Seconds for which messages wait with a standing group, which exists without members; [`u32::MAX`] = for ever.
    ///
    /// Only the group with the share name `group` and this very `filter` stands. `None` = no group does.
    pub keep_seconds: Option<NonZeroU32>,
    /// Rules about messages that members do not process; `None` = they end, as the standard says.
    pub work: Option<Arc<WorkQueue>>,
}

/// Owners of turns while messages wait with a share group.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FairBy {
    /// Publishers, one message each.
    Publisher,
    /// No turns: the oldest message is next.
    #[default]
    Off,
}

/// How rules name a group. Clients may choose all other names.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Naming {
    /// By no rule.
    #[default]
    None,
    /// By a pattern of share names, or by a filter.
    Pattern,
    /// By its share name.
    ShareName,
    /// By its share name and filter.
    Whole,
}

/// Dispatch rules of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupRules {
    pub(crate) rules: Rules,
    pub(crate) key: Option<OrderingKey>,
    pub(crate) fair_by: FairBy,
    /// See [`ShareRule::hold_beyond_ms`].
    pub(crate) hold_beyond: Option<Duration>,
    /// See [`ShareRule::keep_seconds`].
    pub(crate) keep_seconds: Option<NonZeroU32>,
    /// See [`ShareRule::work`].
    pub(crate) work: Option<Arc<WorkQueue>>,
}

/// Dispatch rules of all groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ShareRules {
    policy: Policy,
    rules: Vec<ShareRule>,
}

impl ShareRules {
    /// Creates the rules. `policy` is for groups without a matching rule.
    pub(crate) fn new(policy: Policy, rules: Vec<ShareRule>) -> Self {
        Self { policy, rules }
    }

    /// Returns the rules of `group`.
    pub(crate) fn of(&self, group: &SharedFilter) -> GroupRules {
        let Some(rule) = self.rules.iter().find(|rule| rule.is_about(group)) else {
            return self.policy.into();
        };
        let rules = Rules {
            policy: rule.policy.unwrap_or(self.policy),
            is_ordered: rule.key.is_some(),
            may_break_order: !rule.strict,
            shadow: rule.shadow,
            late_binding: rule.late_binding,
            concurrency: rule.concurrency.map_or(0, NonZeroU16::get),
        };
        let key = rule.key.clone();
        let fair_by = rule.fair_by.unwrap_or_else(|| FairBy::default_of(rules.policy, key.as_ref()));
        let hold_beyond = rule.hold_beyond_ms.map(|ms| Duration::from_millis(ms.get().into()));
        let keep_seconds = rule.keep_seconds.filter(|_| rule.standing_group().is_some_and(|name| name == *group));
        GroupRules { rules, key, fair_by, hold_beyond, keep_seconds, work: rule.work.clone() }
    }

    /// Whether a rule has an ordering key.
    pub(crate) fn has_order(&self) -> bool {
        self.rules.iter().any(|rule| rule.key.is_some())
    }

    /// Returns the names of all groups that rules name as a whole, at most one for each rule.
    pub(crate) fn named_groups(&self) -> impl Iterator<Item = SharedFilter> {
        self.rules.iter().filter_map(ShareRule::named_group)
    }

    /// Returns how the rules name a group.
    pub(crate) fn naming(&self, group: &SharedFilter) -> Naming {
        let naming = |rule: &ShareRule| match (rule.group.has_star(), &rule.filter) {
            (true, None) if rule.group.is_any() => Naming::None,
            (true, _) => Naming::Pattern,
            (false, Some(filter)) if *filter == group.filter => Naming::Whole,
            (false, _) => Naming::ShareName,
        };
        self.rules.iter().filter(|rule| rule.is_about(group)).map(naming).max().unwrap_or_default()
    }

    /// Returns the names of the standing groups that may get the dead letters of a group. `None`: no rule about groups of
    /// this share name has a topic of dead letters.
    pub(crate) fn groups_of_letters(&self, share_name: &str) -> Option<Vec<SharedFilter>> {
        let rules = self.rules.iter().filter(|rule| rule.group.matches(share_name.as_bytes()));
        let topics: Vec<_> = rules.filter_map(|rule| rule.work.as_ref()?.dead_letter.as_ref()).collect();
        let group = NamePattern::new(share_name);
        let may_get = |name: &SharedFilter| topics.iter().any(|topic| topic.may_match(&group, &name.filter));
        (!topics.is_empty()).then(|| self.standing_groups().filter(may_get).collect())
    }

    /// Returns the share names, or patterns of them, of groups whose dead letters a group may get. One of all topics is none
    /// for dead letters.
    pub(crate) fn senders_of_letters(&self, to: &SharedFilter) -> Vec<&NamePattern> {
        if to.filter.text().as_str().split('/').all(|level| matches!(level, "+" | "#")) {
            return Vec::new();
        }
        let senders = self.rules.iter().filter(|rule| rule.may_send_letters(&to.filter));
        senders.map(|rule| &rule.group).collect()
    }

    /// Returns the names of all standing groups.
    pub(crate) fn standing_groups(&self) -> impl Iterator<Item = SharedFilter> {
        let named = self.rules.iter().filter_map(ShareRule::standing_group);
        named.filter(|name| self.of(name).keep_seconds.is_some())
    }
}

impl From<Policy> for GroupRules {
    /// The policy with the defaults of everything else.
    fn from(policy: Policy) -> Self {
        Self {
            rules: policy.into(),
            key: None,
            fair_by: FairBy::default_of(policy, None),
            hold_beyond: None,
            keep_seconds: None,
            work: None,
        }
    }
}

impl FairBy {
    /// Order may span publishers with a key, or if messages that belong together go to one member.
    fn default_of(policy: Policy, key: Option<&OrderingKey>) -> Self {
        if key.is_some() || policy.has_affinity() { Self::Off } else { Self::Publisher }
    }
}

impl ShareRule {
    /// Returns the name of the group that stands by this rule.
    pub(crate) fn standing_group(&self) -> Option<SharedFilter> {
        self.keep_seconds?;
        self.named_group()
    }

    /// Returns the name of the group, if the rule names one as a whole.
    fn named_group(&self) -> Option<SharedFilter> {
        if self.group.has_star() {
            return None;
        }
        let filter = self.filter.as_ref()?;
        TopicFilter::try_from(&format!("$share/{}/{}", self.group, filter.text())[..]).ok()?.shared()
    }

    /// Whether groups of the other rule may get the dead letters of this rule's groups, as far as its filter tells.
    pub(crate) fn may_send_letters_to(&self, other: &Self) -> bool {
        other.filter.as_ref().is_some_and(|filter| self.may_send_letters(filter))
    }

    fn may_send_letters(&self, filter: &TopicFilter) -> bool {
        let topic = self.work.as_ref().and_then(|work| work.dead_letter.as_ref());
        topic.is_some_and(|topic| topic.may_match(&self.group, filter))
    }

    /// Returns whether the rule applies to `group`.
    pub(crate) fn is_about(&self, group: &SharedFilter) -> bool {
        self.group.matches(group.share_name.text().as_bytes())
            && self.filter.as_ref().is_none_or(|filter| filter.contains(&group.filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Result<Vec<ShareRule>, toml::de::Error> {
        #[derive(Deserialize)]
        struct File {
            share: Vec<ShareRule>,
        }
        toml::from_str::<File>(text).map(|file| file.share)
    }

    #[test]
    fn first_matching_share_rule_applies_as_a_whole() {
        let text = r#"
            [[share]]
            group = "orders-*"
            filter = "shop/+/orders/#"
            key = "topic_level:2"
            hold_beyond_ms = 2500
            [[share]]
            group = "orders-*"
            policy = "random"
            [[share]]
            filter = "bulk/#"
            shadow = "adaptive"
        "#;
        let all = ShareRules::new(Policy::RoundRobin, rules(text).unwrap());
        let of = |filter: &str| all.of(&TopicFilter::try_from(filter).unwrap().shared().unwrap());
        let plain = GroupRules::from;
        let (fair_by, hold_beyond) = (FairBy::Off, Some(Duration::from_millis(2500)));
        let keep_seconds = None;
        let ordered = Rules {
            policy: Policy::Adaptive,
            is_ordered: true,
            may_break_order: false,
            shadow: None,
            ..Rules::default()
        };
        let key = "topic_level:2".parse().ok();
        let shadowed = Rules { shadow: Some(Policy::Adaptive), ..Policy::RoundRobin.into() };
        for (filter, expected) in [
            (
                "$share/orders-1/shop/berlin/orders/#",
                GroupRules { rules: ordered, key: key.clone(), fair_by, hold_beyond, keep_seconds, work: None },
            ),
            (
                "$share/orders-1/shop/+/orders/new",
                GroupRules { rules: ordered, key, fair_by, hold_beyond, keep_seconds, work: None },
            ),
            ("$share/orders-1/shop/#", plain(Policy::Random)),
            ("$share/orders-1/bulk/x", plain(Policy::Random)),
            ("$share/other/bulk/x", GroupRules { rules: shadowed, ..plain(Policy::RoundRobin) }),
            ("$share/other/shop/berlin/orders/#", plain(Policy::RoundRobin)),
        ] {
            assert_eq!(of(filter), expected, "{filter}");
        }
    }

    #[test]
    fn senders_of_letters_are_known_by_their_topics() {
        let letters = "deliveries_maximum = 3\ndead_letter = \"dead/%g/%t\"";
        let rule = |group: &str| format!("[[share]]\ngroup = \"{group}\"\nfilter = \"jobs/#\"\n{letters}\n");
        let all = ShareRules::new(Policy::RoundRobin, rules(&(rule("a") + &rule("b-*"))).unwrap());
        for (filter, expected) in
            [("dead/#", &["a", "b-*"][..]), ("dead/a/#", &["a", "b-*"]), ("dead/c/#", &["b-*"]), ("#", &[])]
        {
            let group = TopicFilter::try_from(&format!("$share/x/{filter}")[..]).unwrap().shared().unwrap();
            let senders: Vec<_> = all.senders_of_letters(&group).into_iter().map(NamePattern::text).collect();
            assert_eq!(senders, expected, "{filter}");
        }
    }

    #[test]
    fn only_the_named_group_stands() {
        let text = r#"
            [[share]]
            group = "other"
            [[share]]
            group = "orders"
            filter = "shop/#"
            keep_seconds = 60
            [[share]]
            group = "other"
            filter = "shop/#"
            keep_seconds = 60
        "#;
        let all = ShareRules::new(Policy::RoundRobin, rules(text).unwrap());
        let named = |filter: &str| TopicFilter::try_from(filter).unwrap().shared().unwrap();
        assert_eq!(all.standing_groups().collect::<Vec<_>>(), [named("$share/orders/shop/#")]);
        for (filter, expected) in
            [("$share/orders/shop/#", Some(60)), ("$share/orders/shop/a", None), ("$share/other/shop/#", None)]
        {
            assert_eq!(all.of(&named(filter)).keep_seconds.map(NonZeroU32::get), expected, "{filter}");
        }
    }

    #[test]
    fn ordering_key_is_refused_for_policies_with_affinity() {
        for policy in Policy::ALL {
            let parsed = rules(&format!("[[share]]\nkey = \"topic\"\npolicy = \"{policy}\""));
            match policy {
                Policy::Sticky | Policy::HashClientId | Policy::HashTopic => {
                    let error = parsed.unwrap_err().to_string();
                    assert!(error.contains(&format!("key: the policy {policy} has")), "{error}");
                }
                _ => assert!(parsed.is_ok(), "{policy}"),
            }
        }
    }

    #[test]
    fn publishers_take_turns_unless_order_spans_them() {
        let name = TopicFilter::try_from("$share/g/t").unwrap().shared().unwrap();
        for (text, fair_by) in [
            ("group = \"g\"", FairBy::Publisher),
            ("group = \"other\"", FairBy::Publisher),
            ("fair_by = \"off\"", FairBy::Off),
            ("key = \"topic\"", FairBy::Off),
            ("policy = \"hash_topic\"", FairBy::Off),
            ("policy = \"hash_topic\"\nfair_by = \"publisher\"", FairBy::Publisher),
        ] {
            let rules = ShareRules::new(Policy::Adaptive, rules(&format!("[[share]]\n{text}")).unwrap());
            assert_eq!(rules.of(&name).fair_by, fair_by, "{text}");
        }
    }
}
