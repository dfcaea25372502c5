use std::fmt;

use bytes::Bytes;

/// Stands for a secret in the text of a packet, which may get into a log: a Password, or Authentication Data.
pub(crate) struct Hidden(usize);

impl Hidden {
    /// In the place of `secret`, if there is one.
    pub(crate) fn of(secret: Option<&Bytes>) -> Option<Self> {
        secret.map(|secret| Self(secret.len()))
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes)", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AuthProperties, Connect, ProtocolVersion, Text};

    #[test]
    fn packets_do_not_show_their_secrets() {
        let secret = || Some(Bytes::from_static(b"hidden"));
        let mut connect = Connect::new(ProtocolVersion::V5, Text::from_static("c"));
        connect.password = secret();
        connect.properties.authentication_data = secret();
        let auth = AuthProperties { authentication_data: secret(), ..AuthProperties::default() };
        let shown = format!("{connect:?} {auth:?}");
        assert_eq!(shown.matches("authentication_data: Some((6 bytes))").count(), 2, "{shown}");
        assert!(shown.contains("password: Some((6 bytes))") && !shown.contains("hidden"), "{shown}");
    }
}
