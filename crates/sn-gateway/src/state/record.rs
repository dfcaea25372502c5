//! Bytes of one client's state.
//!
//! ```text
//!   0 (2) | next id (2) | topics (2) | per topic: id (2), flags (1), length (2), name | Will: present (1)
//!   Will: QoS (1) | retain (1) | length (2), topic | length (4), payload
//! ```
//!
//! Earlier versions begin with the first id, which is not 0, and have a topic for each id from there on: known (1), length
//! (2), name.

use bytes::{Buf as _, BufMut as _, Bytes};
use tenbin_codec::{QoS, TopicName, Will};
use tenbin_sn::{ClientState, Gateway, TopicId, TopicOwner};

/// Flag of a topic whose id the client knows. The owner follows in the next two bits.
const KNOWN: u8 = 1;
/// Owners by their bits.
const OWNERS: [TopicOwner; 3] = [TopicOwner::Client, TopicOwner::Gateway, TopicOwner::Subscription];

pub(super) fn encode<'a>(next_id: u16, topics: impl Iterator<Item = TopicId<'a>>, will: Option<&Will>) -> Vec<u8> {
    let mut out = vec![0; 6];
    out[2..4].copy_from_slice(&next_id.to_be_bytes());
    let mut count = 0_u16;
    for TopicId { id, name, is_known, owner } in topics {
        count += 1;
        let owner = OWNERS.iter().position(|other| *other == owner).unwrap_or_default() as u8;
        out.put_u16(id);
        out.put_u8((u8::from(is_known) * KNOWN) | (owner << 1));
        put_name(name, &mut out);
    }
    out[4..6].copy_from_slice(&count.to_be_bytes());
    out.put_u8(will.is_some().into());
    if let Some(will) = will {
        out.put_u8(will.qos as u8);
        out.put_u8(will.retain.into());
        put_name(&will.topic, &mut out);
        out.put_u32(will.payload.len() as u32);
        out.put_slice(&will.payload);
    }
    out
}

/// Reads a state; `None` if the bytes are none.
pub(super) fn decode(body: &Bytes, gateway: &Gateway) -> Option<ClientState> {
    let mut body = body.clone();
    let first_id = body.try_get_u16().ok()?;
    let next_id = if first_id == 0 { Some(body.try_get_u16().ok()?) } else { None };
    let count = body.try_get_u16().ok()?;
    let mut topics = Vec::with_capacity(count.min(256).into());
    for position in 0..count {
        let id = match next_id {
            Some(_) => body.try_get_u16().ok()?,
            None => ClientState::topic_id_at(first_id, position),
        };
        let flags = body.try_get_u8().ok()?;
        let owner = *OWNERS.get(usize::from(flags >> 1))?;
        topics.push((id, get_name(&mut body)?, flags & KNOWN != 0, owner));
    }
    let next_id = next_id.unwrap_or_else(|| ClientState::topic_id_at(first_id, count));
    let will = if body.try_get_u8().ok()? == 0 { None } else { Some(get_will(&mut body)?) };
    let topics = topics.iter().map(|(id, name, is_known, owner)| {
        let (id, is_known, owner) = (*id, *is_known, *owner);
        TopicId { id, name, is_known, owner }
    });
    body.is_empty().then(|| ClientState::restore(next_id, topics, will, gateway))
}

fn get_will(body: &mut Bytes) -> Option<Will> {
    let qos = match body.try_get_u8().ok()? {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        2 => QoS::ExactlyOnce,
        _ => return None,
    };
    let retain = body.try_get_u8().ok()? != 0;
    let topic = get_name(body)?;
    let length = body.try_get_u32().ok()? as usize;
    let payload = (body.len() >= length).then(|| body.split_to(length))?;
    Some(Will { qos, retain, topic, payload, delay_interval: None, properties: None })
}

fn put_name(name: &TopicName, out: &mut Vec<u8>) {
    out.put_u16(name.as_bytes().len() as u16);
    out.put_slice(name.as_bytes());
}

fn get_name(body: &mut Bytes) -> Option<TopicName> {
    let length = body.try_get_u16().ok()?.into();
    let name = (body.len() >= length).then(|| body.split_to(length))?;
    TopicName::try_from(std::str::from_utf8(&name).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use tenbin_sn::{PredefinedTopics, Settings};

    use super::*;

    #[test]
    fn states_are_read_as_written_and_damaged_ones_refused() {
        let gateway = Gateway::new(Settings::default(), PredefinedTopics::default());
        let (one, two, three) = (name("plant/1"), name("plant/2"), name("plant/3"));
        let topic = |id, name, is_known, owner| TopicId { id, name, is_known, owner };
        let topics = [
            topic(7, &one, true, TopicOwner::Client),
            topic(900, &two, false, TopicOwner::Gateway),
            topic(65_534, &three, true, TopicOwner::Subscription),
        ];
        let will = Will {
            qos: QoS::AtLeastOnce,
            retain: true,
            topic: name("gone"),
            payload: Bytes::from_static(b"bye"),
            delay_interval: None,
            properties: None,
        };
        for will in [None, Some(will)] {
            let bytes = Bytes::from(encode(65_000, topics.into_iter(), will.as_ref()));
            let state = decode(&bytes, &gateway).expect("whole");
            assert_eq!(sorted(&state), topics);
            assert!(state.next_topic_id() > 65_000 || state.next_topic_id() < 1000, "ids of a crash are left out");
            assert_eq!(state.will(), will.as_ref());
            for end in 0..bytes.len() {
                assert!(decode(&bytes.slice(..end), &gateway).is_none(), "{end} bytes");
            }
        }
    }

    fn name(text: &str) -> TopicName {
        TopicName::try_from(text).expect("a name")
    }

    fn sorted(state: &ClientState) -> Vec<TopicId<'_>> {
        let mut topics: Vec<_> = state.topics().collect();
        topics.sort_by_key(|topic| topic.id);
        topics
    }

    /// As version 0.1 wrote it: 300 topics from 65,400 up, the first of which the client does not know, and no Will.
    #[test]
    fn over_full_state_of_an_earlier_version_is_read() {
        let gateway = Gateway::new(Settings::default(), PredefinedTopics::default());
        let mut bytes = [65_400_u16.to_be_bytes(), 300_u16.to_be_bytes()].concat();
        for number in 0..300 {
            bytes.put_u8(u8::from(number > 0));
            put_name(&name(&format!("plant/{number}")), &mut bytes);
        }
        bytes.put_u8(0);
        let state = decode(&bytes.into(), &gateway).expect("whole");
        let topics = sorted(&state);
        let ids: Vec<u16> = topics.iter().map(|topic| topic.id).collect();
        assert!(ids.iter().copied().eq((1..=121).chain(65_400..=65_534)), "{ids:?}");
        assert_eq!((topics[0].name.text().as_str(), topics[0].is_known), ("plant/135", true));
        assert_eq!((topics[121].name.text().as_str(), topics[121].is_known), ("plant/0", false));
        assert!((166..60_000).contains(&state.next_topic_id()), "no id of the 300 is given again");
    }
}
