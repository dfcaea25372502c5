use super::Action;
use crate::values::{AclAction, AclRule, Effect, Names, Principal, Relation, TopicPattern};

/// The rules in order; the first matching one decides.
#[derive(Debug, Clone)]
pub(super) struct Acl {
    pub(super) rules: Vec<AclRule>,
    /// Effect if no rule matches.
    pub(super) default: Effect,
}

/// How much of a Topic Filter is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every topic that it matches.
    All,
    /// Possibly a part of its topics.
    Some,
    /// None of its topics.
    Nothing,
}

impl Acl {
    /// Whether no action is denied to any client.
    pub(super) fn is_open(&self) -> bool {
        self.default == Effect::Allow && self.rules.iter().all(|rule| rule.effect == Effect::Allow)
    }

    /// Rules for a client, without the clients that they apply to.
    pub(super) fn rules_for<'a>(
        &'a self,
        who: &'a Principal,
    ) -> impl Iterator<Item = (Effect, AclAction, &'a TopicPattern)> {
        self.rules.iter().filter(move |rule| rule.names(who)).map(AclRule::says)
    }

    /// Whether the rules allow an action.
    pub(super) fn allows(&self, who: &Principal, action: Action<'_>) -> bool {
        match action {
            Action::Publish(topic) | Action::Will(topic) => {
                self.verdict(who, AclAction::Publish, topic.as_bytes()) == Verdict::All
            }
            Action::Receive(topic) => self.verdict(who, AclAction::Subscribe, topic.as_bytes()) == Verdict::All,
            // Forbidden topics that the filter matches are filtered message by message.
            Action::Subscribe(filter) => self.verdict(who, AclAction::Subscribe, filter.as_bytes()) != Verdict::Nothing,
            Action::SubscribeShared(filter) => {
                self.verdict(who, AclAction::Subscribe, filter.as_bytes()) == Verdict::All
            }
        }
    }

    /// Returns how much of `filter` the client may publish or subscribe to. Rules of its identity come first.
    ///
    /// A topic counts as a filter without wildcards, of which all or nothing is allowed.
    pub(super) fn verdict(&self, who: &Principal, action: AclAction, filter: &[u8]) -> Verdict {
        let user = who.identity.user.as_ref().map(|user| user.as_bytes());
        let names = Names { client_id: who.client_id.as_bytes(), user };
        // Effects of rules that cover a part of the filter, before a rule covers all of it.
        let (mut some_allowed, mut some_denied) = (false, false);
        let terms = who.identity.terms.as_deref();
        let own = terms.and_then(|terms| terms.default);
        let mut last = own.unwrap_or(self.default);
        let first = terms.map_or(&[][..], |terms| &terms.rules);
        let rest = if own.is_some() { &[][..] } else { &self.rules };
        for rule in first.iter().chain(rest).filter(|rule| rule.is_about(who, action)) {
            match rule.topic.relation(filter, names, rule.effect) {
                Relation::Disjoint => {}
                Relation::Overlaps if rule.effect == Effect::Allow => some_allowed = true,
                Relation::Overlaps => some_denied = true,
                Relation::Contains => {
                    last = rule.effect;
                    break;
                }
            }
        }
        match last {
            Effect::Allow if !some_denied => Verdict::All,
            Effect::Deny if !some_allowed => Verdict::Nothing,
            _ => Verdict::Some,
        }
    }
}

impl AclRule {
    fn is_about(&self, who: &Principal, action: AclAction) -> bool {
        (self.action == action || self.action == AclAction::All) && self.names(who)
    }

    /// The rule without the clients that it applies to.
    fn says(&self) -> (Effect, AclAction, &TopicPattern) {
        (self.effect, self.action, &self.topic)
    }

    fn names(&self, who: &Principal) -> bool {
        let user = who.identity.user.as_ref().map_or(&b""[..], |user| user.as_bytes());
        self.user.as_ref().is_none_or(|rule| rule.as_bytes() == user)
            && self.client_id.as_ref().is_none_or(|rule| rule.as_bytes() == who.client_id.as_bytes())
            && self.listener.as_ref().is_none_or(|rule| **rule == *who.listener)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use tenbin_codec::Text;

    use super::super::Identity;
    use super::*;

    fn acl(rules: &str, default: Effect) -> Acl {
        Acl { rules: parse(rules).unwrap(), default }
    }

    fn parse(text: &str) -> Result<Vec<AclRule>, toml::de::Error> {
        #[derive(Deserialize)]
        struct Rules {
            #[serde(deserialize_with = "crate::values::acl_rules")]
            acl: Vec<AclRule>,
        }
        toml::from_str::<Rules>(text).map(|rules| rules.acl)
    }

    fn principal(user: &str, client_id: &str) -> Principal {
        let user = Text::try_from(user).unwrap();
        let identity = if user.is_empty() { Identity::anonymous() } else { Identity::user(user) };
        Principal { client_id: Text::try_from(client_id).unwrap(), identity, listener: "l".into() }
    }

    const RULES: &str = r##"
        [[acl]]
        deny = "all"
        topic = "secret/#"
        [[acl]]
        user = "alice"
        allow = "all"
        topic = "#"
        [[acl]]
        user = ""
        allow = "subscribe"
        topic = "public/#"
        [[acl]]
        allow = "publish"
        topic = "users/%u/devices/%c"
        [[acl]]
        listener = "other"
        allow = "all"
        topic = "#"
    "##;

    #[test]
    fn first_matching_rule_decides() {
        use AclAction::{Publish, Subscribe};
        use Verdict::{All, Nothing, Some};
        let acl = acl(RULES, Effect::Deny);
        for (user, action, filter, expected) in [
            ("alice", Publish, "a/b", All),
            ("alice", Publish, "secret/a", Nothing),
            ("alice", Subscribe, "secret/+", Nothing),
            ("alice", Subscribe, "#", Some),
            ("alice", Subscribe, "+/x", Some),
            ("alice", Subscribe, "a/#", All),
            ("alice", Subscribe, "$SYS/#", Nothing),
            ("", Subscribe, "public/x", All),
            ("", Publish, "public/x", Nothing),
            ("bob", Subscribe, "public/x", Nothing),
            ("bob", Publish, "users/bob/devices/c", All),
            ("bob", Publish, "users/alice/devices/c", Nothing),
            ("", Publish, "users//devices/c", Nothing),
        ] {
            assert_eq!(acl.verdict(&principal(user, "c"), action, filter.as_bytes()), expected, "{user} {filter}");
        }
    }

    #[test]
    fn default_decides_without_rules() {
        for (default, expected) in [(Effect::Allow, Verdict::All), (Effect::Deny, Verdict::Nothing)] {
            let acl = Acl { rules: Vec::new(), default };
            assert_eq!(acl.verdict(&principal("", "c"), AclAction::Subscribe, b"#"), expected);
            assert_eq!(acl.is_open(), default == Effect::Allow);
        }
    }

    #[test]
    fn errors_in_rules_are_reported() {
        for (rule, word) in [
            ("topic = \"a\"", "rule 1"),
            ("allow = \"all\"\ndeny = \"all\"\ntopic = \"a\"", "rule 1"),
            ("allow = \"everything\"\ntopic = \"a\"", "publish"),
            ("allow = \"all\"", "topic"),
            ("allow = \"all\"\ntopic = \"a#\"", "a#"),
            ("allow = \"all\"\ntopic = \"$share/g/a\"", "$share"),
            ("allow = \"all\"\ntopic = \"a\"\nusr = \"b\"", "usr"),
        ] {
            let error = parse(&format!("[[acl]]\n{rule}")).unwrap_err().to_string();
            assert!(error.contains(word), "{rule}: {error}");
        }
    }
}
