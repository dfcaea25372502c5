//! Floods of CONNECT.

use crate::attack;
use crate::sensor::{CLEAN, WILL};
use crate::source::{Source, connect};

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
