//! Admission of connections and CONNECTs, by network address.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use dashmap::DashMap;

use crate::values::{AdmissionLimits, Bound, TokenBucket, network};

/// Bounds of connections, CONNECTs and failed logins, by address. Stores nothing while no bound per address is in force.
#[derive(Debug)]
pub(crate) struct AddressBounds {
    limits: AdmissionLimits,
    addresses: DashMap<IpAddr, Address>,
    /// Rate of CONNECTs from all addresses.
    all: Mutex<TokenBucket>,
    /// Connections since the start; triggers sweeps. Relaxed: it guards nothing, and an extra sweep does no harm.
    seen: AtomicUsize,
}

impl AdmissionLimits {
    fn per_address(&self, address: IpAddr) -> u32 {
        if address.to_canonical().is_loopback() { self.per_loopback_address } else { self.per_address }
    }
}

#[derive(Debug)]
struct Address {
    open: u32,
    connects: TokenBucket,
    failures: TokenBucket,
}

impl AddressBounds {
    pub(crate) fn new(limits: AdmissionLimits, now: Instant) -> Self {
        Self { limits, addresses: DashMap::new(), all: Mutex::new(TokenBucket::full(now)), seen: AtomicUsize::new(0) }
    }

    /// Registers a new connection; `false` if its address may not have one more. Else [`AddressBounds::leave`] must follow.
    pub(crate) fn enter(&self, address: IpAddr, now: Instant) -> bool {
        self.enter_beyond(0, address, now)
    }

    /// As [`AddressBounds::enter`], with this number of connections above the bound, which are about to end.
    pub(crate) fn enter_beyond(&self, ending: u32, address: IpAddr, now: Instant) -> bool {
        if !self.counts() {
            return true;
        }
        self.sweep(now);
        let mut entry = self.entry(address, now);
        let maximum = self.limits.per_address(address);
        if maximum > 0 && entry.open >= maximum.saturating_add(ending) {
            return false;
        }
        entry.open += 1;
        true
    }

    /// Unregisters a connection that has ended.
    pub(crate) fn leave(&self, address: IpAddr, now: Instant) {
        let key = network(address);
        if let Some(mut entry) = self.addresses.get_mut(&key) {
            entry.open = entry.open.saturating_sub(1);
        }
        // The used rate must outlive the connections, else reconnecting would reset it.
        self.addresses.remove_if(&key, |_, entry| entry.is_idle(now));
    }

    /// Takes a CONNECT from `address` out of the rates.
    ///
    /// # Errors
    /// The rate that it exceeds.
    pub(crate) fn may_connect(&self, address: IpAddr, now: Instant) -> Result<(), Bound> {
        if let Some(rate) = self.limits.connects_per_address
            && !self.entry(address, now).connects.try_take(rate, now)
        {
            return Err(Bound::ConnectRateOfAddress);
        }
        let Some(rate) = self.limits.connects else { return Ok(()) };
        let may = self.all.lock().unwrap_or_else(PoisonError::into_inner).try_take(rate, now);
        if may { Ok(()) } else { Err(Bound::ConnectRate) }
    }

    /// Whether `address` has not exceeded its rate of failed logins.
    pub(crate) fn may_log_in(&self, address: IpAddr, now: Instant) -> bool {
        let Some(rate) = self.limits.failures_per_address else { return true };
        let failures = self.addresses.get(&network(address)).map(|entry| entry.failures);
        failures.is_none_or(|mut failures| failures.try_take_in_minute(rate, now))
    }

    /// Records a failed login of `address`.
    pub(crate) fn failed(&self, address: IpAddr, now: Instant) {
        if let Some(rate) = self.limits.failures_per_address {
            self.entry(address, now).failures.try_take_in_minute(rate, now);
        }
    }

    fn counts(&self) -> bool {
        self.limits.per_address > 0
            || self.limits.per_loopback_address > 0
            || self.limits.connects_per_address.is_some()
            || self.limits.failures_per_address.is_some()
    }

    fn entry(&self, address: IpAddr, now: Instant) -> dashmap::mapref::one::RefMut<'_, IpAddr, Address> {
        let new = || Address { open: 0, connects: TokenBucket::full(now), failures: TokenBucket::full(now) };
        self.addresses.entry(network(address)).or_insert_with(new)
    }

    /// Drops addresses without connections whose rate is unused.
    ///
    /// At most the addresses of the last second remain, those with failed logins in the last minute, and those since the
    /// last sweep.
    fn sweep(&self, now: Instant) {
        if self.seen.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.addresses.retain(|_, entry| !entry.is_idle(now));
        }
    }
}

impl Address {
    fn is_idle(&self, now: Instant) -> bool {
        self.open == 0 && self.connects.is_full(now) && self.failures.is_full(now)
    }
}

/// Connections between two sweeps.
const SWEEP_EVERY: usize = 4096;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::values::Rate;

    fn admission(per_address: u32, connects: u64) -> (AddressBounds, Instant) {
        let connects_per_address = Rate::per_second(connects);
        let now = Instant::now();
        let limits = AdmissionLimits {
            per_address,
            per_loopback_address: 1,
            connects_per_address,
            connects: None,
            failures_per_address: Rate::per_minute(3),
        };
        (AddressBounds::new(limits, now), now)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn each_address_has_its_own_connection_limit() {
        let (admission, now) = admission(2, 0);
        let (a, b) = (address("10.0.0.1"), address("10.0.0.2"));
        assert!(admission.enter(a, now) && admission.enter(a, now) && !admission.enter(a, now));
        assert!(admission.enter(b, now));
        admission.leave(a, now);
        assert!(admission.enter(a, now) && !admission.enter(a, now));
        for address in [a, a, b] {
            admission.leave(address, now);
        }
        assert!(admission.addresses.is_empty());
    }

    #[test]
    fn loopback_addresses_have_their_own_limit() {
        let (admission, now) = admission(2, 0);
        for loopback in ["127.0.0.1", "127.0.0.2", "::1"] {
            assert!(admission.enter(address(loopback), now) && !admission.enter(address(loopback), now), "{loopback}");
        }
        assert!(!admission.enter(address("::ffff:127.0.0.1"), now));
    }

    #[test]
    fn ipv6_network_and_mapped_ipv4_count_as_one_address() {
        let (admission, now) = admission(1, 0);
        assert!(admission.enter(address("2001:db8::1"), now));
        assert!(!admission.enter(address("2001:db8::ffff"), now));
        assert!(admission.enter(address("2001:db8:0:1::1"), now));
        assert!(admission.enter(address("10.0.0.1"), now));
        assert!(!admission.enter(address("::ffff:10.0.0.1"), now));
    }

    #[test]
    fn address_with_many_failed_logins_has_to_wait() {
        let (admission, now) = admission(0, 0);
        let (a, b) = (address("10.0.0.1"), address("10.0.0.2"));
        for _ in 0..3 {
            assert!(admission.may_log_in(a, now));
            admission.failed(a, now);
        }
        assert!(!admission.may_log_in(a, now) && admission.may_log_in(b, now));
        let later = now + Duration::from_secs(20);
        assert!(!admission.may_log_in(a, later - Duration::from_millis(1)) && admission.may_log_in(a, later));
        admission.leave(a, now);
        assert!(!admission.may_log_in(a, now), "closing the connection does not reset the rate");
        admission.leave(a, now + Duration::from_secs(61));
        assert!(admission.addresses.is_empty());
    }

    #[test]
    fn reconnecting_does_not_reset_rate_and_idle_entries_go() {
        let (admission, now) = admission(0, 5);
        let a = address("10.0.0.1");
        let connects = (0..20).filter(|_| {
            assert!(admission.enter(a, now));
            let may = admission.may_connect(a, now).is_ok();
            admission.leave(a, now);
            may
        });
        assert_eq!(connects.count(), 5);
        let later = now + Duration::from_secs(2);
        for number in 0..SWEEP_EVERY as u32 {
            admission.enter(IpAddr::from(number.to_be_bytes()), later);
            admission.leave(IpAddr::from(number.to_be_bytes()), later);
        }
        assert!(admission.addresses.is_empty());
    }
}
