//! Floods of CONNECT.

use std::time::{Duration, Instant};

use tenbin_codec::QoS;

use crate::sn_abuse::attack;
use crate::sn_abuse::sensor::{CLEAN, QOS_1, Sensor, WILL};
use crate::sn_abuse::source::{Source, connect, sn};
use crate::sn_abuse::target::Target;
use crate::support::PATIENCE;

/// 65,536 addresses send a CONNECT each, and nothing further.
#[test]
fn connects_from_many_addresses() {
    attack("CONNECT from 65,536 addresses", "connects_per_second = 0\n", |target| {
        for number in 0..=u16::MAX {
            let [high, low] = number.to_be_bytes();
            let source = Source::at([127, 1, high, low], target.address);
            source.send(&connect(&format!("fresh-{number}"), CLEAN, 60));
            target.pace(usize::from(number) + 1);
        }
    });
}

/// One address sends CONNECTs with fresh client ids, from one socket and from many.
#[test]
fn connects_with_fresh_ids() {
    attack("CONNECT with fresh ids", "", |target| {
        for flags in [CLEAN, 0, CLEAN | WILL] {
            let fresh = |number| connect(&format!("fresh-{flags}-{number}"), flags, 60);
            let mut source = Source::at([127, 0, 0, 9], target.address);
            target.flood(&mut source, (0..20_000).map(fresh));
            for number in 0..5000 {
                Source::at([127, 0, 0, 9], target.address).send(&fresh(100_000 + number));
                target.pace(number + 1);
            }
        }
    });
}

/// One client connects again and again without the bound on CONNECTs, with and without a session.
#[test]
fn connects_of_one_client() {
    attack("CONNECT of one client", "connects_per_second_per_address = 0\n", |target| {
        let mut source = Source::new(target.address);
        let connects = (0..10_000).map(|number| connect("restless", if number % 2 == 0 { CLEAN } else { 0 }, 60));
        target.flood(&mut source, connects);
    });
}

/// 400 forged clients that stay for ever, by two datagrams each: CONNECT with Duration 0, and PINGREQ. Others find room,
/// over TCP and over MQTT-SN, and those that are there stay.
#[test]
fn forged_clients_take_no_place_of_others() {
    let keys = "connects_per_second_per_address = 0\nclients_maximum = 100\nper_address_maximum = 60\n\
                [connections]\nmaximum = 20\n";
    let mut target = Target::built_in(keys);
    for number in 0..400_u16 {
        let [high, low] = number.to_be_bytes();
        // Half of them from the address of all others.
        let address = if number % 2 == 0 { [127, 0, 0, 1] } else { [127, 2, high, low] };
        let source = Source::at(address, target.address);
        source.send(&connect(&format!("forged-{number}"), CLEAN, 0));
        source.send(&sn(0x16, b""));
        target.pace(usize::from(number) + 1);
    }
    target.look();
    // The forged ones keep their places until the time for their answers is over.
    let (mut late, until) = (Sensor::open(target.address), Instant::now() + PATIENCE);
    while late.try_connect("late", CLEAN, 60) != 0 {
        assert!(Instant::now() < until, "a place for another client");
        std::thread::sleep(Duration::from_millis(200));
    }
    late.subscribe("to/late", QOS_1);
    let mut publisher = target.broker.v5("publisher");
    publisher.publish("to/late", "hello", QoS::AtLeastOnce);
    assert_eq!(late.next_message().as_deref(), Some("hello"));
    target.assert_unharmed("forged clients");
}
