//! Rules that came with a login, in the records of its session and its Will.
//!
//! ```text
//!   rules   effect of all else 1 (0 = the ACL decides, 1 = allow, 2 = deny) | number 2 | each: flags 1 | filter |
//!           user, Client Identifier and listener, as far as the flags say that it has them
//! ```

use std::sync::Arc;

use super::bytes::{Fields, RecordError, put_bytes};
use crate::auth::{AclAction, AclRule, Effect, Principal, Terms, TopicPattern};

/// Rules to store for a principal; `None` = it has none.
///
/// Rules that are too large for a record deny everything after a restart, until the client authenticates again.
pub(super) fn to_store(principal: &Principal) -> Option<Arc<Terms>> {
    let terms = principal.identity.terms.as_ref().filter(|terms| terms.has_rules())?;
    if size(terms) > BYTES_MAX || terms.rules.len() > usize::from(u16::MAX) {
        tracing::warn!(
            client = ?principal.client_id, rules = terms.rules.len(), bytes_maximum = BYTES_MAX,
            "rules of a login are too large to be stored: after a restart they deny everything until the next CONNECT"
        );
        return Some(Arc::new(Terms { default: Some(Effect::Deny), ..Terms::default() }));
    }
    Some(Arc::clone(terms))
}

pub(super) fn put(terms: &Terms, record: &mut Vec<u8>) {
    record.push(match terms.default {
        None => 0,
        Some(Effect::Allow) => 1,
        Some(Effect::Deny) => 2,
    });
    let count = u16::try_from(terms.rules.len()).expect("`to_store` has checked it");
    record.extend_from_slice(&count.to_le_bytes());
    for rule in &terms.rules {
        let action = match rule.action {
            AclAction::Publish => 0,
            AclAction::Subscribe => 1,
            AclAction::All => 2,
        };
        let names = names(rule);
        let given = names.iter().zip([USER, CLIENT_ID, LISTENER]).filter(|(name, _)| name.is_some());
        let flags = given.fold(action, |flags, (_, flag)| flags | flag);
        record.push(if rule.effect == Effect::Deny { flags | DENY } else { flags });
        put_bytes(record, rule.topic.as_str().as_bytes());
        names.iter().flatten().for_each(|name| put_bytes(record, name.as_bytes()));
    }
}

pub(super) fn take(fields: &mut Fields<'_>) -> Result<Arc<Terms>, RecordError> {
    let illegal = RecordError::Illegal("rules");
    let default = match fields.u8()? {
        0 => None,
        1 => Some(Effect::Allow),
        2 => Some(Effect::Deny),
        _ => return Err(illegal),
    };
    let count = fields.u16()?;
    let mut rules = Vec::new();
    for _ in 0..count {
        rules.push(take_rule(fields)?);
    }
    let terms = Terms { rules, default, expires_at: None };
    // A record without rules has another version.
    if terms.has_rules() { Ok(Arc::new(terms)) } else { Err(illegal) }
}

fn take_rule(fields: &mut Fields<'_>) -> Result<AclRule, RecordError> {
    let illegal = RecordError::Illegal("rule");
    let flags = fields.u8()?;
    let action = match flags & ACTION {
        0 => AclAction::Publish,
        1 => AclAction::Subscribe,
        2 => AclAction::All,
        _ => return Err(illegal),
    };
    if flags > ALL_FLAGS {
        return Err(illegal);
    }
    let effect = if flags & DENY == 0 { Effect::Allow } else { Effect::Deny };
    let topic = TopicPattern::new(fields.str("filter of a rule")?).map_err(|_| illegal)?;
    let mut name = |flag: u8| {
        let is_there = flags & flag != 0;
        is_there.then(|| fields.str("name in a rule").map(ToOwned::to_owned)).transpose()
    };
    let (user, client_id, listener) = (name(USER)?, name(CLIENT_ID)?, name(LISTENER)?);
    Ok(AclRule { user, client_id, listener, effect, action, topic })
}

fn names(rule: &AclRule) -> [Option<&str>; 3] {
    [rule.user.as_deref(), rule.client_id.as_deref(), rule.listener.as_deref()]
}

/// Size in a record.
fn size(terms: &Terms) -> usize {
    let text = |text: &str| size_of::<u32>() + text.len();
    let rule =
        |rule: &AclRule| 1 + text(rule.topic.as_str()) + names(rule).into_iter().flatten().map(text).sum::<usize>();
    3 + terms.rules.iter().map(rule).sum::<usize>()
}

/// Flags of a rule; its action is in the lowest bits.
const ACTION: u8 = 3;
const DENY: u8 = 4;
const USER: u8 = 8;
const CLIENT_ID: u8 = 16;
const LISTENER: u8 = 32;
const ALL_FLAGS: u8 = 63;

/// Largest rules that are stored. Rules of a token or of a login service are smaller.
const BYTES_MAX: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use tenbin_codec::Text;

    use super::*;
    use crate::auth::Identity;

    #[test]
    fn too_large_rules_are_stored_as_a_denial() {
        let rule = |length: usize| AclRule {
            user: None,
            client_id: None,
            listener: None,
            effect: Effect::Allow,
            action: AclAction::All,
            topic: TopicPattern::new(&"a".repeat(length)).unwrap(),
        };
        let stored = |length, count| {
            let terms = Terms { rules: vec![rule(length); count], ..Terms::default() };
            let identity = Identity { terms: Some(Arc::new(terms)), ..Identity::anonymous() };
            to_store(&Principal { client_id: Text::EMPTY, identity, listener: "l".into() }).unwrap()
        };
        assert_eq!(stored(251, 127).rules.len(), 127);
        let denial = Terms { default: Some(Effect::Deny), ..Terms::default() };
        assert_eq!(*stored(251, 128), denial);
        assert_eq!(*stored(1, 70_000), denial);
    }
}
