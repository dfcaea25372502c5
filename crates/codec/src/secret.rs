use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use subtle::ConstantTimeEq as _;

/// A password, a key or a token. Its `Debug` prints `***`, and it has neither `Display` nor `Serialize`.
///
/// A comparison takes as long for any content of the same length.
///
/// ```
/// use tenbin_codec::Secret;
///
/// let password = Secret::from("pencil");
/// assert_eq!(format!("{password:?}"), "***");
/// assert_eq!(&password.expose()[..], b"pencil");
/// ```
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(transparent))]
pub struct Secret<T = Bytes>(T);

impl<T> Secret<T> {
    /// Hides `content`.
    pub const fn new(content: T) -> Self {
        Self(content)
    }

    /// Returns the content, for its one use: to log in, to sign, or to send it.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<T: AsRef<[u8]>, U: AsRef<[u8]>> PartialEq<Secret<U>> for Secret<T> {
    fn eq(&self, other: &Secret<U>) -> bool {
        self.0.as_ref().ct_eq(other.0.as_ref()).into()
    }
}

impl<T: AsRef<[u8]>> Eq for Secret<T> {}

impl FromStr for Secret<String> {
    type Err = Infallible;

    fn from_str(content: &str) -> Result<Self, Infallible> {
        Ok(Self(content.to_owned()))
    }
}

impl From<Bytes> for Secret {
    fn from(content: Bytes) -> Self {
        Self(content)
    }
}

impl From<Vec<u8>> for Secret {
    fn from(content: Vec<u8>) -> Self {
        Self(content.into())
    }
}

impl From<String> for Secret {
    fn from(content: String) -> Self {
        Self(content.into())
    }
}

impl From<&str> for Secret {
    fn from(content: &str) -> Self {
        content.as_bytes().into()
    }
}

impl From<&[u8]> for Secret {
    fn from(content: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(content))
    }
}

impl<const N: usize> From<&[u8; N]> for Secret {
    fn from(content: &[u8; N]) -> Self {
        content[..].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_secrets_have_equal_bytes_of_any_type() {
        let secret = Secret::from("pencil");
        assert_eq!(secret, Secret::new("pencil".to_owned()));
        assert_eq!(secret, Secret::new(*b"pencil"));
        for other in ["", "Pencil", "pencil2", "penci"] {
            assert_ne!(secret, Secret::from(other));
        }
    }
}
