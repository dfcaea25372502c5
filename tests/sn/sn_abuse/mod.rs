#![cfg(target_os = "linux")]
//! Hostile datagrams against both gateways: the one of the broker, and `tenbin gateway` before it.
//!
//! Each class must leave the processes alive and let them grow by at most 64 MiB. A well-behaved canary must get its
//! messages during each attack. Sources are addresses of 127.0.0.0/8. No clock decides a result.

use crate::mqtt_sn::sensor;

mod canary;
mod connects;
mod datagrams;
mod forged;
mod message_ids;
mod qos_minus_one;
mod reflection;
mod registers;
mod sleepers;
mod source;
mod target;

use target::Target;

/// Runs an attack on each gateway in turn, with further keys of its listener.
fn attack(what: &str, keys: &str, run: impl Fn(&mut Target)) {
    for mut target in [Target::built_in, Target::separate].into_iter().map(|start| start(keys)) {
        run(&mut target);
        target.assert_unharmed(what);
    }
}
