//! Instants of the caller's clock.

use std::time::Duration;

/// An instant of the caller's monotonic clock, in nanoseconds since an origin of the caller's choice.
///
/// All instants given to one [`Group`](crate::Group) and to the loads of its members must come from one clock.
/// They need not arrive in order: several threads each read the clock once for a batch of messages, so an instant
/// may be a little older than one already seen. The origin does not matter; `u64` nanoseconds last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time from `earlier` to `self`; zero if `earlier` is in fact later.
    pub fn saturating_since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_difference_is_never_negative() {
        assert_eq!(Nanos(7).saturating_since(Nanos(5)), Duration::from_nanos(2));
        assert_eq!(Nanos(5).saturating_since(Nanos(7)), Duration::ZERO);
    }
}
