use std::fmt;

use serde::de::{Deserialize, Deserializer};

/// An integer from `MIN` to `MAX`. Deserialization rejects others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ranged<const MIN: u64, const MAX: u64>(pub(super) u64);

impl<const MIN: u64, const MAX: u64> Ranged<MIN, MAX> {
    pub(super) fn get(self) -> u64 {
        self.0
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Debug for Ranged<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<const MIN: u64, const MAX: u64> serde::Serialize for Ranged<MIN, MAX> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Ranged<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        tenbin_kit::within::<MIN, MAX, _, _>(deserializer).map(Self)
    }
}
