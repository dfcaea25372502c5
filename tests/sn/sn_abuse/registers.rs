//! REGISTER and SUBSCRIBE until no topic is left.

use crate::sn_abuse::attack;
use crate::sn_abuse::source::{Source, register, subscribe};

const CLIENTS: usize = 400;

/// Each of 400 clients registers 300 different names, more than its limit of 256 topics or 16 KiB. The first then registers
/// 65,536 more.
#[test]
fn registers_without_end() {
    attack("REGISTER", "connects_per_second_per_address = 0\n", |target| {
        for client in 0..CLIENTS {
            let mut source = Source::new(target.address);
            source.connect(&format!("greedy-{client}"));
            let name = |number: u16| register(number, &format!("{client:04}/{number:05}/{}", "x".repeat(60)));
            target.flood(&mut source, (1..=300).map(name));
            if client == 0 {
                let long = |number: u16| register(number, &format!("{number:05}/{}", "y".repeat(220)));
                target.flood(&mut source, (1..=u16::MAX).map(long));
                source.send(&register(1, &"z".repeat(220)));
                assert_eq!(source.wait()[6], 1, "congestion");
            }
            target.look_after(client, 50);
        }
    });
}

/// A client subscribes to names without end. SUBACK carries their ids.
#[test]
fn subscribes_without_end() {
    attack("SUBSCRIBE", "", |target| {
        let mut source = Source::new(target.address);
        source.connect("greedy");
        target.flood(&mut source, (1..=20_000).map(|number| subscribe(0, number, &format!("greedy/{number}"))));
    });
}
