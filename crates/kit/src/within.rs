use serde::de::{Deserialize, Deserializer, Error, Unexpected};

/// Reads an integer from `MIN` to `MAX`, and rejects others.
///
/// # Errors
/// The value is no integer, or outside of the range.
pub fn within<'de, const MIN: u64, const MAX: u64, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TryFrom<u64>,
    D: Deserializer<'de>,
{
    let value = i64::deserialize(deserializer)?;
    let in_range = u64::try_from(value).ok().filter(|value| (MIN..=MAX).contains(value));
    in_range.and_then(|value| T::try_from(value).ok()).ok_or_else(|| {
        let expected = format!("a number from {MIN} to {MAX}");
        D::Error::invalid_value(Unexpected::Signed(value), &expected.as_str())
    })
}
