//! Sleepers with full buffers.

use tenbin_codec::QoS;

use crate::sn_abuse::attack;
use crate::sn_abuse::sensor::{CLEAN, QOS_1, Sensor};

const SLEEPERS: usize = 500;

/// 500 clients sleep while 200 messages of 1,000 bytes come for each, half of them at QoS 1. All wake at last.
#[test]
fn full_sleep_buffers() {
    attack("full sleep buffers", "connects_per_second_per_address = 0\n", |target| {
        let mut sleepers: Vec<Sensor> = (0..SLEEPERS)
            .map(|number| {
                let mut sleeper = Sensor::connect(target.address, &format!("sleeper-{number}"), CLEAN, 600);
                sleeper.subscribe("to/all", QOS_1);
                sleeper.sleep(6000);
                sleeper
            })
            .collect();
        let mut publisher = target.broker.v5("publisher");
        let payload = |number: usize| format!("{number:04}{}", "x".repeat(996));
        for number in 0..200 {
            let qos = if number % 2 == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
            publisher.publish("to/all", &payload(number), qos);
            target.look_after(number, 20);
        }
        target.look();
        for (number, sleeper) in sleepers.iter_mut().enumerate() {
            let received = sleeper.wake(&format!("sleeper-{number}"));
            let at_qos_1: Vec<&String> = received.iter().filter(|text| is_odd(text)).collect();
            let expected: Vec<String> = (0..200).filter(|number| number % 2 == 1).map(payload).collect();
            assert!(at_qos_1.into_iter().eq(&expected), "sleeper {number}: QoS 1 is complete and in order");
            // Beyond 16 KiB at a time, only messages at QoS 0 were dropped. The rest of them waited at the broker.
            assert!(received.len() >= 100);
            target.look_after(number, 50);
        }
    });
}

fn is_odd(text: &str) -> bool {
    text[..4].parse::<usize>().expect("a number") % 2 == 1
}
