//! Every message survives the way to bytes and back; every other size of its datagram is refused; no bytes panic.

mod generators;

use std::collections::HashSet;

use generators::{Content, FORMS, content};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use tenbin_sn_codec::v1_2::{Message, MessageType, Publish};
use tenbin_sn_codec::{DecodeError, Forwarded};

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

proptest! {
    #[test]
    fn decoding_reverses_encoding(content in content()) {
        let message = content.message();
        let bytes = encoded(&message);
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
        prop_assert_eq!(bytes[0] == 1, bytes.len() > 255, "the long form is for long messages");
    }

    #[test]
    fn every_truncation_and_padding_is_refused(content in content(), padding in vec(any::<u8>(), 1..20)) {
        let mut bytes = encoded(&content.message());
        for end in 0..bytes.len() {
            prop_assert!(Message::decode(&bytes[..end]).is_err(), "cut at {}", end);
        }
        bytes.extend(padding);
        let is_mismatch = matches!(Message::decode(&bytes), Err(DecodeError::LengthMismatch { .. }));
        prop_assert!(is_mismatch);
    }

    #[test]
    fn long_form_of_a_short_message_reads_the_same(content in content()) {
        let message = content.message();
        let bytes = encoded(&message);
        if bytes[0] != 1 {
            let length = bytes.len() as u16 + 2;
            let long = [&[1][..], &length.to_be_bytes(), &bytes[1..]].concat();
            prop_assert_eq!(Message::decode(&long), Ok(message));
        }
    }

    #[test]
    fn marked_publish_differs_in_dup_alone(content in content()) {
        if let Message::Publish(publish) = content.message() {
            let mut bytes = encoded(&Message::Publish(publish));
            Publish::mark_dup(&mut bytes);
            prop_assert_eq!(Message::decode(&bytes), Ok(Message::Publish(Publish { dup: true, ..publish })));
        }
    }

    #[test]
    fn any_body_decodes_to_the_same_message_twice(kind in any::<u8>(), body in vec(any::<u8>(), 0..60)) {
        let datagram = [&[body.len() as u8 + 2, kind][..], &body].concat();
        if let Ok(message) = Message::decode(&datagram) {
            let again = encoded(&message);
            prop_assert_eq!(Message::decode(&again), Ok(message));
            prop_assert_eq!(again.len(), datagram.len());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Message::decode(&bytes);
        let _ = Forwarded::decode(&bytes);
    }

    #[test]
    fn envelope_survives_the_way_to_bytes_and_back(
        content in content(),
        radius in 0_u8..4,
        node_id in vec(any::<u8>(), 0..300),
    ) {
        let message = encoded(&content.message());
        let forwarded = Forwarded { radius, node_id: &node_id, message: &message };
        let mut bytes = Vec::new();
        forwarded.encode(&mut bytes);
        prop_assert!(Forwarded::is_envelope(&bytes));
        prop_assert_eq!(Forwarded::decode(&bytes), Ok(forwarded));
        let header = bytes.len() - message.len();
        for end in 0..=header {
            prop_assert!(Forwarded::decode(&bytes[..end]).is_err(), "cut at {}", end);
        }
        let mut nested = Vec::new();
        Forwarded { radius, node_id: b"n", message: &bytes }.encode(&mut nested);
        prop_assert_eq!(Forwarded::decode(&nested), Err(DecodeError::Nested));
    }
}

#[test]
fn generator_makes_every_message_type() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut content: Content = content().new_tree(&mut runner).expect("a strategy").current();
    let types: HashSet<MessageType> = (0..FORMS)
        .map(|kind| {
            content.kind = kind;
            content.message().message_type()
        })
        .collect();
    assert_eq!(types.len(), MessageType::ALL.len());
}
