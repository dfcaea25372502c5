//! The request of a CONNECT to begin a new session only. The codec does not interpret it.

use crate::{Text, UserProperty};

/// User Property of CONNECT by which a client asks for a new session: the server refuses it with 0x85 if a session has
/// its Client Identifier, and changes nothing of that session.
///
/// ```
/// use tenbin_codec::NewSession;
///
/// assert!(NewSession::is_required(&[NewSession::property()]));
/// assert!(!NewSession::is_required(&[]));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct NewSession;

impl NewSession {
    /// Name of the User Property.
    pub const PROPERTY: &str = "tenbin-session";
    /// Its value.
    pub const VALUE: &str = "new";

    /// The User Property.
    pub fn property() -> UserProperty {
        UserProperty::new(Text::from_static(Self::PROPERTY), Text::from_static(Self::VALUE))
    }

    /// Whether the User Properties of a CONNECT require a new session.
    pub fn is_required(properties: &[UserProperty]) -> bool {
        let is_it = |property: &UserProperty| {
            property.name.as_bytes() == Self::PROPERTY.as_bytes() && property.value.as_bytes() == Self::VALUE.as_bytes()
        };
        properties.iter().any(is_it)
    }
}
