use tenbin_codec::{ReasonCode, Text};

/// What is said, to people, of a message or a subscription that is refused; `None` where the name of the code says it
/// all, and for what is not refused. The texts are constant: they tell nothing of rules, limits or other clients.
pub(super) fn words(reason: ReasonCode) -> Option<Text> {
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
