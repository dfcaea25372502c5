//! Datagrams that are no messages, and messages that clients must not send.

use crate::sn_abuse::attack;
use crate::sn_abuse::sensor::{CLEAN, QOS_1, QOS_2, WILL};
use crate::sn_abuse::source::{Source, connect, publish, register, sn, subscribe};
use crate::sn_abuse::target::Target;
use crate::support::{Dice, seed};

/// A message of each type, those of gateways included.
fn messages() -> Vec<Vec<u8>> {
    let mut messages = vec![
        connect("victim", CLEAN, 60),
        connect("victim", CLEAN | WILL, 60),
        register(7, "plant/1"),
        publish(QOS_1, [0, 1], 7, b"payload"),
        publish(QOS_2 | 0x02, *b"xy", 8, b"payload"),
        publish(0, [0, 1], 0, &[b'x'; 300]),
        subscribe(QOS_1, 9, "plant/+"),
        sn(0x18, b"\x02\x58"),
        sn(0x16, b"victim"),
    ];
    let bodies: [(u8, &[u8]); 19] = [
        (0x00, b"\x01\x00\x3C"),
        (0x01, b"\x00"),
        (0x02, b"\x01"),
        (0x05, b"\x00"),
        (0x06, b""),
        (0x07, b"\x00gone"),
        (0x08, b""),
        (0x09, b"bye"),
        (0x0B, b"\x00\x01\x00\x07\x00"),
        (0x0D, b"\x00\x01\x00\x07\x00"),
        (0x0E, b"\x00\x07"),
        (0x0F, b"\x00\x07"),
        (0x10, b"\x00\x07"),
        (0x13, b"\x20\x00\x01\x00\x07\x00"),
        (0x14, b"\x00\x00\x07plant/+"),
        (0x17, b""),
        (0x1A, b"\x00gone"),
        (0x1C, b"bye"),
        (0xFE, b"\x00node"),
    ];
    messages.extend(bodies.iter().map(|(kind, body)| sn(*kind, body)));
    messages
}

/// Each message cut at each byte, padded, with each false length, and with every byte changed.
fn damaged() -> impl Iterator<Item = Vec<u8>> {
    messages().into_iter().flat_map(|message| {
        let mut all: Vec<Vec<u8>> = (0..message.len()).map(|end| message[..end].to_vec()).collect();
        all.extend([1, 2, 100, 1000].map(|extra| [&message[..], &vec![0; extra]].concat()));
        for length in 0..=u8::MAX {
            all.push([&[length], &message[1..]].concat());
            all.push([&[1, length, length], &message[1..]].concat());
        }
        for at in 1..message.len().min(40) {
            for byte in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut changed = message.clone();
                changed[at] = byte;
                all.push(changed);
            }
        }
        all
    })
}

/// Each message in one to four envelopes of a forwarder.
fn nested() -> impl Iterator<Item = Vec<u8>> {
    messages().into_iter().flat_map(|message| {
        (1..5).scan(message, |inner, depth| {
            *inner = [&sn(0xFE, &[&[0], &vec![b'n'; 20 * depth][..]].concat()), &inner[..]].concat();
            Some(inner.clone())
        })
    })
}

/// Random bytes. Half of them have the right length, so that more than the length is looked at.
fn random(mut dice: Dice, count: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(move |_| {
        let size = dice.within(0..200) as usize;
        let mut datagram: Vec<u8> = (0..size).map(|_| dice.within(0..256) as u8).collect();
        if size >= 2 && dice.percent(50) {
            datagram[0] = size as u8;
            datagram[1] %= 0x20;
        }
        datagram
    })
}

fn flood_with_all(target: &mut Target, source: &mut Source, seed: u64) {
    target.flood(source, damaged());
    target.flood(source, nested());
    target.flood(source, random(Dice::new(seed, 0), 50_000));
    let largest = [&[1, 0xFF, 0xE3, 0x0C][..], &vec![b'x'; 65_503]].concat();
    target.flood(source, (0..100).flat_map(|_| [largest.clone(), vec![0; 65_507], Vec::new()]));
}

/// Damaged, nested, random, empty and huge datagrams of an unknown sender, and of a connected one.
#[test]
fn damaged_datagrams() {
    let seed = seed("TENBIN_TEST_SEED");
    for keys in ["", "forwarders = [\"127.0.0.1\"]\n"] {
        attack(&format!("damaged datagrams (seed {seed}) {keys}"), keys, |target| {
            let mut stranger = Source::new(target.address);
            flood_with_all(target, &mut stranger, seed);
            let mut client = Source::new(target.address);
            client.connect("hostile");
            flood_with_all(target, &mut client, seed + 1);
        });
    }
}
