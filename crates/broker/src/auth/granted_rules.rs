//! Rules for topics that come with credentials, in the two forms of EMQX.
//!
//! ```text
//!   {"pub": ["a/#"], "sub": ["b/+"], "all": ["c"]}       all else is denied
//!   [{"permission": "allow", "action": "publish", "topic": "a/${clientid}/#"}]       the ACL decides on all else
//! ```

use serde_json::{Map, Value};

use super::{AclAction, AclRule, Effect, Terms, TopicPattern};

/// Reads the rules.
///
/// # Errors
/// One of them is illegal or has a condition that is not known, or they are too many or too long.
pub(super) fn read(value: &Value) -> Result<Terms, &'static str> {
    let terms = parse(value).ok_or("acl has a rule that is not known")?;
    let texts = terms.rules.iter().map(|rule| rule.topic.as_str().len()).sum::<usize>();
    match terms.rules.len() <= RULES_MAX && texts <= TOPICS_BYTES_MAX {
        true => Ok(terms),
        false => Err("acl has too many or too long rules"),
    }
}

fn parse(value: &Value) -> Option<Terms> {
    let mut terms = Terms::default();
    match value {
        Value::Object(lists) => {
            terms.default = Some(Effect::Deny);
            for (name, topics) in lists {
                let action = action(name)?;
                for topic in topics.as_array()? {
                    terms.rules.push(rule(Effect::Allow, action, topic)?);
                }
            }
        }
        Value::Array(rules) => {
            for given in rules {
                add(&mut terms.rules, given.as_object()?)?;
            }
        }
        _ => return None,
    }
    Some(terms)
}

fn add(rules: &mut Vec<AclRule>, given: &Map<String, Value>) -> Option<()> {
    if given.keys().any(|key| !["permission", "action", "topic", "topics"].contains(&key.as_str())) {
        return None;
    }
    let effect = match given.get("permission")?.as_str()? {
        "allow" => Effect::Allow,
        "deny" => Effect::Deny,
        _ => return None,
    };
    let action = given.get("action").map_or(Some(AclAction::All), |name| action(name.as_str()?))?;
    match (given.get("topic"), given.get("topics")) {
        (Some(topic), None) => rules.push(rule(effect, action, topic)?),
        (None, Some(Value::Array(topics))) => {
            for topic in topics {
                rules.push(rule(effect, action, topic)?);
            }
        }
        _ => return None,
    }
    Some(())
}

fn action(name: &str) -> Option<AclAction> {
    match name {
        "pub" | "publish" => Some(AclAction::Publish),
        "sub" | "subscribe" => Some(AclAction::Subscribe),
        "all" => Some(AclAction::All),
        _ => None,
    }
}

fn rule(effect: Effect, action: AclAction, topic: &Value) -> Option<AclRule> {
    let topic = topic.as_str()?.replace("${clientid}", "%c").replace("${username}", "%u");
    // "eq a/+" stands for the filter alone, and not for its topics; other placeholders are not known.
    if topic.starts_with("eq ") || topic.contains("${") {
        return None;
    }
    let topic = TopicPattern::new(&topic).ok()?;
    Some(AclRule { user: None, client_id: None, listener: None, effect, action, topic })
}

const RULES_MAX: usize = 64;
/// Length of the filters of all rules.
const TOPICS_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_forms_are_read() {
        let lists = read(&json!({"pub": ["a/#", "b/%c"], "sub": ["c"], "all": []})).unwrap();
        assert_eq!((lists.rules.len(), lists.default), (3, Some(Effect::Deny)));
        let rules = read(&json!([
            {"permission": "deny", "action": "publish", "topic": "a/${clientid}/${username}"},
            {"permission": "allow", "topics": ["b", "c"]},
        ]));
        let rules = rules.unwrap();
        assert_eq!((rules.rules.len(), rules.default), (3, None));
        assert_eq!(rules.rules[0].topic, TopicPattern::new("a/%c/%u").unwrap());
        assert_eq!((rules.rules[0].effect, rules.rules[1].action), (Effect::Deny, AclAction::All));
    }

    #[test]
    fn unknown_rules_and_conditions_are_rejected() {
        let unknown = "acl has a rule that is not known";
        for wrong in [
            json!("a"),
            json!({"publisher": ["a"]}),
            json!({"pub": "a"}),
            json!({"pub": ["a#"]}),
            json!({"pub": ["$share/g/a"]}),
            json!({"pub": ["eq a/+"]}),
            json!({"pub": ["${peerhost}/a"]}),
            json!([{"permission": "maybe", "topic": "a"}]),
            json!([{"permission": "allow", "action": "publish", "topic": "a", "qos": 0}]),
            json!([{"permission": "allow", "action": "publish"}]),
        ] {
            assert_eq!(read(&wrong), Err(unknown), "{wrong}");
        }
    }

    #[test]
    fn number_and_length_of_rules_are_bounded() {
        for (count, length) in [(64, 1), (1, 16 << 10), (8, 2 << 10)] {
            let rules = |count, length| read(&json!({"pub": vec!["a".repeat(length); count]}));
            assert!(rules(count, length).is_ok(), "{count} {length}");
            let (more, longer) = (rules(64 + count, length), rules(count, (16 << 10) + length));
            assert_eq!(
                (more, longer),
                (Err("acl has too many or too long rules"), Err("acl has too many or too long rules"))
            );
        }
    }
}
