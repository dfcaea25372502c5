use tenbin_codec::{ReasonCode, Text};

/// Reason String of a refused message or subscription.
///
/// `None` if the code's name says it all, or for no refusal. The texts are constant: they reveal nothing of rules,
/// limits or other clients.
pub(super) fn reason_string(reason: ReasonCode) -> Option<Text> {
    let words = match reason {
        ReasonCode::NotAuthorized => "not allowed to this client by the broker's rules",
        ReasonCode::QuotaExceeded => "a limit of the broker is reached",
        ReasonCode::TopicNameInvalid => "topic with more bytes or levels than the broker takes",
        ReasonCode::TopicFilterInvalid => "filter with more bytes or levels than the broker takes",
        ReasonCode::PayloadFormatInvalid => "payload that is not the UTF-8 that it says it is",
        _ => return None,
    };
    Some(Text::from_static(words))
}
