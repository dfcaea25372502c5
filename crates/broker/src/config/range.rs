use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected};

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
        let value = i64::deserialize(deserializer)?;
        match u64::try_from(value) {
            Ok(value) if (MIN..=MAX).contains(&value) => Ok(Self(value)),
            _ => {
                let expected = format!("a number from {MIN} to {MAX}");
                Err(D::Error::invalid_value(Unexpected::Signed(value), &expected.as_str()))
            }
        }
    }
}
