use std::net::IpAddr;
use std::sync::Arc;

use dashmap::DashMap;

use crate::values::{Bound, SessionLimits, network};

/// Counts sessions, or clients, by network address, and bounds those of one address.
#[derive(Debug, Default)]
pub(crate) struct AddressQuota {
    limits: SessionLimits,
    /// Addresses with a bound only.
    counts: DashMap<IpAddr, u32>,
}

/// A session or client that counts for an address, until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    quota: Arc<AddressQuota>,
    address: IpAddr,
}

/// The address has its maximum number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverQuota {
    pub(crate) bound: Bound,
}

impl AddressQuota {
    pub(crate) fn new(limits: SessionLimits) -> Arc<Self> {
        Arc::new(Self { limits, counts: DashMap::new() })
    }

    /// Counts a session or client of `address`; `None`: the address has no bound. `before`: the one that it replaces.
    pub(crate) fn count(
        self: &Arc<Self>,
        address: IpAddr,
        before: Option<&Counted>,
    ) -> Result<Option<Box<Counted>>, OverQuota> {
        let (maximum, bound) = self.maximum(address);
        if maximum == 0 {
            return Ok(None);
        }
        let address = network(address);
        let freed = u32::from(before.is_some_and(|before| before.address == address));
        let mut count = self.counts.entry(address).or_insert(0);
        if *count >= maximum.saturating_add(freed) {
            return Err(OverQuota { bound });
        }
        *count += 1;
        Ok(Some(Box::new(Counted { quota: Arc::clone(self), address })))
    }

    /// Counts a session of the last run, even above the bound.
    pub(crate) fn restore(self: &Arc<Self>, address: IpAddr) -> Option<Box<Counted>> {
        if self.maximum(address).0 == 0 {
            return None;
        }
        let address = network(address);
        *self.counts.entry(address).or_insert(0) += 1;
        Some(Box::new(Counted { quota: Arc::clone(self), address }))
    }

    /// The maximum, and the bound in `[sessions]` that it is.
    fn maximum(&self, address: IpAddr) -> (u32, Bound) {
        if address.to_canonical().is_loopback() {
            (self.limits.per_loopback_address, Bound::SessionsOfLoopback)
        } else {
            (self.limits.per_address, Bound::SessionsOfAddress)
        }
    }
}

impl Counted {
    /// The network address; of IPv6, the first 64 bits.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(mut count) = self.quota.counts.get_mut(&self.address) {
            *count = count.saturating_sub(1);
        }
        self.quota.counts.remove_if(&self.address, |_, count| *count == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn address_has_no_more_sessions_than_its_quota() {
        let quota = AddressQuota::new(SessionLimits { per_address: 2, per_loopback_address: 0 });
        let [one, same, other] = ["2001:db8::1", "2001:db8::2", "10.0.0.1"].map(address);
        let first = quota.count(one, None).unwrap().unwrap();
        let second = quota.count(same, None).unwrap().unwrap();
        assert_eq!(quota.count(one, None).unwrap_err().bound, Bound::SessionsOfAddress);
        let replaced = quota.count(one, Some(&second)).unwrap().unwrap();
        drop(second);
        assert!(quota.count(other, Some(&replaced)).unwrap().is_some(), "addresses have quotas of their own");
        assert_eq!(quota.count(one, None).unwrap_err().bound, Bound::SessionsOfAddress);
        let restored = quota.restore(one);
        drop((first, replaced));
        assert_eq!(quota.counts.get(&address("2001:db8::")).map(|count| *count), Some(1));
        drop(restored);
        assert!(quota.counts.is_empty(), "nothing is kept of addresses without sessions");
    }

    #[test]
    fn loopback_has_a_bound_of_its_own() {
        let quota = AddressQuota::new(SessionLimits { per_address: 1, per_loopback_address: 0 });
        assert!((0..10).all(|_| quota.count(address("127.0.0.1"), None).unwrap().is_none()));
        let quota = AddressQuota::new(SessionLimits { per_address: 0, per_loopback_address: 1 });
        let _first = quota.count(address("::1"), None).unwrap().unwrap();
        assert_eq!(quota.count(address("::1"), None).unwrap_err().bound, Bound::SessionsOfLoopback);
        assert!(quota.count(address("10.0.0.1"), None).unwrap().is_none());
    }
}
