use tenbin_codec::{ReasonCode, Text};

/// Reason String of a refused message or subscription.
///
/// `None` if the code's name says it all, or for no refusal. The texts are constant: they reveal nothing of rules,
/// limits or other clients.
pub(super) fn reason_string(reason: ReasonCode) -> Option<Text> {
    let words = match reason {
        ReasonCode::NotAuthorized => "not authorized by the broker's rules",
        ReasonCode::QuotaExceeded => "a limit of the broker is reached",
        ReasonCode::TopicNameInvalid => "topic exceeds the broker's limit of bytes or levels",
        ReasonCode::TopicFilterInvalid => "filter exceeds the broker's limit of bytes or levels",
        ReasonCode::PayloadFormatInvalid => "payload is declared as UTF-8 and is not valid UTF-8",
        _ => return None,
    };
    Some(Text::from_static(words))
}
