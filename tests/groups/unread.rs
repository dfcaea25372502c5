//! A member of a share group that does not read its QoS 0 messages, which have no acknowledgement.
//!
//! The other members get them long before the socket buffers are full. No message is lost or doubled.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::{BrokerProcess, PATIENCE, RawClient, at_qos, encode, share};
use bytes::Bytes;
use tenbin_codec::{Packet, Publish, QoS};

#[test]
fn member_that_does_not_read_gets_little_until_it_reads() {
    let broker = BrokerProcess::start(&[]);
    let [mut stuck, mut other] = ["stuck", "other"].map(|id| {
        let mut member = broker.v5(id);
        member.subscribe(&share("workers", "work"), QoS::AtMostOnce);
        member
    });
    let mut publisher = broker.v5("publisher");
    let mut seen = BTreeSet::new();
    let mut published = 0;
    while published < MESSAGES {
        published = publish_some(&mut publisher, published);
        for publish in other.drain() {
            assert!(seen.insert(number_of(&publish)), "twice");
        }
    }
    // Round robin would send it half of them, which fit into the sockets. It gets only those sent before the broker
    // notices, some 500.
    let given = published as usize - seen.len();
    assert!(given < MESSAGES as usize / 8, "{given} of {MESSAGES} to who reads nothing");

    for publish in stuck.drain() {
        assert!(seen.insert(number_of(&publish)), "twice");
    }
    assert_eq!(seen.len(), published as usize, "all that the one has not got, the other has");
    let begun = Instant::now();
    let mut given_again = 0;
    while given_again < MESSAGES / 16 {
        assert!(begun.elapsed() < PATIENCE, "{given_again} to who reads again");
        published = publish_some(&mut publisher, published);
        given_again += stuck.drain().len() as u32;
        other.drain();
    }
}

/// Publishes the next few messages after `published`. Returns the new total.
fn publish_some(publisher: &mut RawClient, published: u32) -> u32 {
    let numbers = published..published + AT_ONCE;
    let packets = numbers.clone().map(|number| {
        let mut payload = vec![0; 100];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        Packet::Publish(Publish { payload: Bytes::from(payload), ..at_qos("work", "", QoS::AtMostOnce) })
    });
    let bytes: Vec<u8> = packets.flat_map(|packet| encode(&packet, publisher.version())).collect();
    publisher.send_bytes(&bytes);
    publisher.settle();
    // They are paced, not as fast as possible.
    std::thread::sleep(Duration::from_millis(5));
    numbers.end
}

fn number_of(publish: &Publish) -> u32 {
    u32::from_be_bytes(publish.payload[..4].try_into().expect("four bytes"))
}

const MESSAGES: u32 = 16_000;
const AT_ONCE: u32 = 50;
