//! Bounds on events a second, by IP address and in all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxBuildHasher;

use crate::config::Listener;

/// Bounded rates of one gateway.
pub(crate) struct Limits {
    connects: Rate,
    #[cfg(feature = "dtls")]
    cookies: Rate,
    #[cfg(feature = "dtls")]
    handshakes: Rate,
    unknown_answers: Rate,
    publishes: Rate,
    minus_one: Rate,
    clients: PerAddress,
    /// Addresses that many clients share, without this machine's.
    shared: Vec<IpAddr>,
}

/// Bounds for each address; 0 = no bound.
#[derive(Clone, Copy)]
struct PerAddress {
    ordinary: u32,
    /// For addresses that many clients share.
    shared: u32,
}

/// Bounds on the events of one second; 0 = no bound.
struct Rate {
    maximum: u32,
    per_address: PerAddress,
    second: Mutex<Second>,
}

struct Second {
    begun: Instant,
    by_address: HashMap<IpAddr, u32, FxBuildHasher>,
    /// Events of all addresses, in millionths. They run off evenly: the events of a whole second at its begin would hold
    /// up everything else.
    level: u64,
    /// Time of `level`.
    at: Instant,
}

/// An event in millionths.
const EVENT: u64 = 1_000_000;
/// Events that may come at once, if the bound allows this number in a second.
const BURST: u32 = 100;

/// Addresses counted in one second. Further ones share one count.
const ADDRESSES_MAXIMUM: usize = 65_536;

impl Limits {
    pub(crate) fn new(listener: &Listener, now: Instant) -> Self {
        let rate = |maximum, ordinary| {
            let shared = listener.events_per_second_per_shared_address;
            Rate::new(maximum, PerAddress::new(ordinary, shared), now)
        };
        Self {
            connects: rate(listener.connects_per_second, listener.connects_per_second_per_address),
            #[cfg(feature = "dtls")]
            cookies: rate(listener.connects_per_second, 0),
            #[cfg(feature = "dtls")]
            handshakes: rate(listener.connects_per_second, listener.connects_per_second_per_address),
            // An answer costs the same as a CONNECT that is accepted.
            unknown_answers: rate(listener.connects_per_second, listener.unknown_answers_per_second),
            publishes: rate(listener.publishes_per_second, 0),
            minus_one: rate(listener.qos_minus_one_per_second, listener.qos_minus_one_per_second_per_address),
            clients: PerAddress::new(listener.per_address_maximum, listener.per_shared_address_maximum),
            shared: [&listener.shared_addresses[..], &listener.forwarders].concat(),
        }
    }

    /// Clients that an address may have; 0 = no bound `[SN-BOUND-4]`.
    pub(crate) fn clients_of(&self, address: IpAddr) -> u32 {
        self.clients.of(self.is_shared(address))
    }

    /// Whether an address stands for many clients: a forwarder, a NAT, or this machine.
    fn is_shared(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.shared.contains(&address)
    }

    /// Whether a CONNECT is within its rates `[SN-BOUND-6]`.
    pub(crate) fn allows_connect(&self, address: IpAddr, now: Instant) -> bool {
        self.connects.allows(address, self.is_shared(address), now)
    }

    /// Whether a first ClientHello is within the rate, which is that of CONNECT. The address may be forged, and has none.
    #[cfg(feature = "dtls")]
    pub(crate) fn allows_cookie(&self, now: Instant) -> bool {
        self.cookies.allows(OTHERS, false, now)
    }

    /// Whether a DTLS handshake would be within its rates, which are those of CONNECT `[SN-BOUND-6]`.
    #[cfg(feature = "dtls")]
    pub(crate) fn has_room_for_handshake(&self, address: IpAddr, now: Instant) -> bool {
        self.handshakes.check(address, self.is_shared(address), now, false)
    }

    #[cfg(feature = "dtls")]
    pub(crate) fn count_handshake(&self, address: IpAddr, now: Instant) {
        let _was_asked_before = self.handshakes.check(address, self.is_shared(address), now, true);
    }

    /// Whether a sender without a connection gets an answer.
    pub(crate) fn allows_answer(&self, address: IpAddr, now: Instant) -> bool {
        self.unknown_answers.allows(address, self.is_shared(address), now)
    }

    /// Whether a QoS 0 message is within its rate `[SN-BOUND-6]`.
    #[inline]
    pub(crate) fn allows_publish(&self, address: IpAddr, now: Instant) -> bool {
        self.publishes.maximum == 0 || self.publishes.allows(address, false, now)
    }

    /// Whether a QoS −1 message is within its rates `[SN-BOUND-6]`.
    pub(crate) fn allows_minus_one(&self, address: IpAddr, now: Instant) -> bool {
        self.minus_one.allows(address, self.is_shared(address), now)
    }
}

impl PerAddress {
    fn new(ordinary: u32, shared: u32) -> Self {
        // The bound of an address that many share is not below that of others.
        let shared = if ordinary == 0 || shared == 0 { 0 } else { shared.max(ordinary) };
        Self { ordinary, shared }
    }

    fn of(self, is_shared: bool) -> u32 {
        if is_shared { self.shared } else { self.ordinary }
    }
}

impl Rate {
    fn new(maximum: u32, per_address: PerAddress, now: Instant) -> Self {
        let second = Mutex::new(Second { begun: now, by_address: HashMap::default(), level: 0, at: now });
        Self { maximum, per_address, second }
    }

    /// Counts an event, if it is within the bounds.
    fn allows(&self, address: IpAddr, is_shared: bool, now: Instant) -> bool {
        self.check(address, is_shared, now, true)
    }

    /// Whether an event is within the bounds. Then it is counted, if it `happens`.
    fn check(&self, address: IpAddr, is_shared: bool, now: Instant, happens: bool) -> bool {
        let per_address_maximum = self.per_address.of(is_shared);
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(second.begun) >= Duration::from_secs(1) {
            second.begun = now;
            second.by_address.clear();
        }
        if self.maximum > 0 {
            let passed = u64::try_from(now.saturating_duration_since(second.at).as_micros()).unwrap_or(u64::MAX);
            second.level = second.level.saturating_sub(passed.saturating_mul(self.maximum.into()));
            // Another thread may be a moment ahead.
            second.at = second.at.max(now);
            if second.level + EVENT > u64::from(self.burst()) * EVENT {
                return false;
            }
        }
        if per_address_maximum > 0 {
            let is_full = second.by_address.len() >= ADDRESSES_MAXIMUM;
            let address = if is_full && !second.by_address.contains_key(&address) { OTHERS } else { address };
            let count = second.by_address.entry(address).or_default();
            if *count >= per_address_maximum {
                return false;
            }
            *count += u32::from(happens);
        }
        second.level += if happens { EVENT } else { 0 };
        true
    }

    fn burst(&self) -> u32 {
        (self.maximum / 10).max(self.maximum.min(BURST))
    }
}

/// Stands for addresses beyond [`ADDRESSES_MAXIMUM`].
const OTHERS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_all_addresses_are_spread_over_the_second() {
        let start = Instant::now();
        let rate = Rate::new(5000, PerAddress::new(0, 0), start);
        let allowed = |after: u64| {
            let now = start + Duration::from_millis(after);
            (0..10_000).filter(|_| rate.allows(OTHERS, false, now)).count()
        };
        assert_eq!([0, 1, 11, 2011].map(allowed), [500, 5, 50, 500]);
    }

    #[test]
    fn each_second_has_its_events_by_address_and_in_all() {
        let start = Instant::now();
        let rate = Rate::new(3, PerAddress::new(2, 2), start);
        let (one, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let allowed = |address, now| rate.allows(address, false, now);
        assert_eq!([allowed(one, start), allowed(one, start), allowed(one, start)], [true, true, false]);
        assert_eq!([allowed(other, start), allowed(other, start)], [true, false]);
        assert!(allowed(one, start + Duration::from_secs(1)));
    }

    #[test]
    fn addresses_that_many_clients_share_have_bounds_of_their_own() {
        let start = Instant::now();
        let [forwarder, nat, other, local] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1"].map(|ip| ip.parse().unwrap());
        let (forwarders, shared_addresses) = (vec![forwarder], vec![nat]);
        let mut listener = Listener { forwarders, shared_addresses, connects_per_second: 0, ..Listener::default() };
        let connects = |listener: &Listener| {
            let limits = Limits::new(listener, start);
            let at = |number| start + Duration::from_millis(number);
            [forwarder, nat, other, local]
                .map(|ip| (0..900).filter(|&number| limits.allows_connect(ip, at(number))).count())
        };
        assert_eq!(connects(&listener), [500, 500, 10, 500]);
        let limits = Limits::new(&listener, start);
        assert_eq!([forwarder, nat, other, local].map(|ip| limits.clients_of(ip)), [0, 0, 1000, 0]);
        (listener.events_per_second_per_shared_address, listener.per_shared_address_maximum) = (3, 5000);
        assert_eq!(connects(&listener), [10; 4], "no less than others");
        assert_eq!(Limits::new(&listener, start).clients_of(local), 5000);
        listener.connects_per_second_per_address = 0;
        assert_eq!(connects(&listener), [900; 4], "no bound for others is none for them");
    }
}
