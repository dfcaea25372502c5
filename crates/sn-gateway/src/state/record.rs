//! Bytes of one client's state.
//!
//! ```text
//!   first id (2) | topics (2) | per topic: known (1), length (2), name | Will: present (1)
//!   Will: QoS (1) | retain (1) | length (2), topic | length (4), payload
//! ```

use bytes::{Buf as _, BufMut as _, Bytes};
use tenbin_codec::{QoS, TopicName, Will};
use tenbin_sn::{ClientState, Gateway};

pub(super) fn encode<'a>(
    first_id: u16,
    topics: impl Iterator<Item = (&'a TopicName, bool)>,
    will: Option<&Will>,
) -> Vec<u8> {
    let mut out = vec![0; 4];
    out[..2].copy_from_slice(&first_id.to_be_bytes());
    let mut count = 0_u16;
    for (name, is_known) in topics {
        count += 1;
        out.put_u8(is_known.into());
        put_name(name, &mut out);
    }
    out[2..4].copy_from_slice(&count.to_be_bytes());
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
    let (first_id, count) = (body.try_get_u16().ok()?, body.try_get_u16().ok()?);
    let mut topics = Vec::with_capacity(count.min(256).into());
    for _ in 0..count {
        let is_known = body.try_get_u8().ok()? != 0;
        topics.push((get_name(&mut body)?, is_known));
    }
    let will = if body.try_get_u8().ok()? == 0 { None } else { Some(get_will(&mut body)?) };
    let topics = topics.iter().map(|(name, known)| (name, *known));
    body.is_empty().then(|| ClientState::restore(first_id, topics, will, gateway))
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
        let name = |text: &str| TopicName::try_from(text).expect("a name");
        let names = [(name("plant/1"), true), (name("plant/2"), false)];
        let will = Will {
            qos: QoS::AtLeastOnce,
            retain: true,
            topic: name("gone"),
            payload: Bytes::from_static(b"bye"),
            delay_interval: None,
            properties: None,
        };
        for will in [None, Some(will)] {
            let bytes = Bytes::from(encode(7000, names.iter().map(|(name, known)| (name, *known)), will.as_ref()));
            let state = decode(&bytes, &gateway).expect("whole");
            assert_eq!(state.topics().map(|(name, known)| (name.clone(), known)).collect::<Vec<_>>(), names);
            assert_eq!((state.first_topic_id(), state.will()), (7000, will.as_ref()));
            for end in 0..bytes.len() {
                assert!(decode(&bytes.slice(..end), &gateway).is_none(), "{end} bytes");
            }
        }
    }
}
