use std::net::IpAddr;
use std::sync::Arc;

use dashmap::DashMap;

use crate::values::{SessionLimits, network};

/// Counts sessions by the network address that began them, and bounds the sessions of one address.
#[derive(Debug, Default)]
pub(crate) struct AddressQuota {
    limits: SessionLimits,
    /// Addresses with a bound only.
    sessions: DashMap<IpAddr, u32>,
}

/// A session that counts for an address, until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedSession {
    quota: Arc<AddressQuota>,
    address: IpAddr,
}

/// The address has as many sessions as it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverQuota {
    /// Key of the bound in `[sessions]`.
    pub(crate) key: &'static str,
}

impl AddressQuota {
    pub(crate) fn new(limits: SessionLimits) -> Arc<Self> {
        Arc::new(Self { limits, sessions: DashMap::new() })
    }

    /// Counts a session that begins at `address`; `None`: the address has no bound. `before`: the session that it
    /// replaces.
    pub(crate) fn count(
        self: &Arc<Self>,
        address: IpAddr,
        before: Option<&CountedSession>,
    ) -> Result<Option<Box<CountedSession>>, OverQuota> {
        let (maximum, key) = self.maximum(address);
        if maximum == 0 {
            return Ok(None);
        }
        let address = network(address);
        let freed = u32::from(before.is_some_and(|before| before.address == address));
        let mut sessions = self.sessions.entry(address).or_insert(0);
        if *sessions >= maximum.saturating_add(freed) {
            return Err(OverQuota { key });
        }
        *sessions += 1;
        Ok(Some(Box::new(CountedSession { quota: Arc::clone(self), address })))
    }

    /// Counts a session of the last run, even above the bound.
    pub(crate) fn restore(self: &Arc<Self>, address: IpAddr) -> Option<Box<CountedSession>> {
        if self.maximum(address).0 == 0 {
            return None;
        }
        let address = network(address);
        *self.sessions.entry(address).or_insert(0) += 1;
        Some(Box::new(CountedSession { quota: Arc::clone(self), address }))
    }

    /// The bound, and its key.
    fn maximum(&self, address: IpAddr) -> (u32, &'static str) {
        match address.to_canonical().is_loopback() {
            true => (self.limits.per_loopback_address, "loopback_per_address_maximum"),
            false => (self.limits.per_address, "per_address_maximum"),
        }
    }
}

impl CountedSession {
    /// The network address; of IPv6, the first 64 bits.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }
}

impl Drop for CountedSession {
    fn drop(&mut self) {
        if let Some(mut sessions) = self.quota.sessions.get_mut(&self.address) {
            *sessions = sessions.saturating_sub(1);
        }
        self.quota.sessions.remove_if(&self.address, |_, sessions| *sessions == 0);
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
        assert_eq!(quota.count(one, None).unwrap_err().key, "per_address_maximum");
        let replaced = quota.count(one, Some(&second)).unwrap().unwrap();
        drop(second);
        assert!(quota.count(other, Some(&replaced)).unwrap().is_some(), "addresses have quotas of their own");
        assert_eq!(quota.count(one, None).unwrap_err().key, "per_address_maximum");
        let restored = quota.restore(one);
        drop((first, replaced));
        assert_eq!(quota.sessions.get(&address("2001:db8::")).map(|sessions| *sessions), Some(1));
        drop(restored);
        assert!(quota.sessions.is_empty(), "nothing is kept of addresses without sessions");
    }

    #[test]
    fn loopback_has_a_bound_of_its_own() {
        let quota = AddressQuota::new(SessionLimits { per_address: 1, per_loopback_address: 0 });
        assert!((0..10).all(|_| quota.count(address("127.0.0.1"), None).unwrap().is_none()));
        let quota = AddressQuota::new(SessionLimits { per_address: 0, per_loopback_address: 1 });
        let _first = quota.count(address("::1"), None).unwrap().unwrap();
        assert_eq!(quota.count(address("::1"), None).unwrap_err().key, "loopback_per_address_maximum");
        assert!(quota.count(address("10.0.0.1"), None).unwrap().is_none());
    }
}
