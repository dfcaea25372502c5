use alloc::vec::Vec;

use crate::DecodeError;
use crate::reader::Reader;

/// AUTH: a client's credentials, which follow its CONNECT.
///
/// ```text
///   Reason | length of Method | Method | Data
/// ```
///
/// MQTT-SN 1.2 reserves the message type and has no credentials. The form comes from a draft of MQTT-SN 2.0, which the
/// gateway and the clients of Bisquitt use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// 0 = Success, the only one here.
    pub reason: u8,
    /// SASL mechanism.
    pub method: &'a str,
    /// Data of the mechanism.
    pub data: &'a [u8],
}

impl<'a> Auth<'a> {
    /// The mechanism of user name and password (RFC 4616).
    pub const PLAIN: &'static str = "PLAIN";

    /// Data of [`PLAIN`](Self::PLAIN): no authorization identity, NUL, user name, NUL, password.
    pub fn plain_data(user: &str, password: &[u8]) -> Vec<u8> {
        [&[0], user.as_bytes(), &[0], password].concat()
    }

    /// User name and password; `None` for another mechanism, or data that is none of it.
    pub fn plain(&self) -> Option<(&'a str, &'a [u8])> {
        if self.method != Self::PLAIN {
            return None;
        }
        let mut parts = self.data.splitn(3, |&byte| byte == 0);
        let (_authorization, user, password) = (parts.next()?, parts.next()?, parts.next()?);
        Some((core::str::from_utf8(user).ok()?, password))
    }

    pub(super) fn decode(mut body: Reader<'a>) -> Result<Self, DecodeError> {
        let (reason, length) = (body.u8()?, body.u8()?);
        Ok(Self { reason, method: body.text(length.into())?, data: body.rest() })
    }

    pub(super) fn len(&self) -> usize {
        2 + self.method.len() + self.data.len()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        // A longer name of a mechanism does not exist.
        out.extend_from_slice(&[self.reason, self.method.len() as u8]);
        out.extend_from_slice(self.method.as_bytes());
        out.extend_from_slice(self.data);
    }
}

/// Without the data: it has a password.
impl core::fmt::Debug for Auth<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Auth").field("reason", &self.reason).field("method", &self.method).finish_non_exhaustive()
    }
}
