//! Clients that may not connect.

use std::net::IpAddr;
use std::time::SystemTime;

use tenbin_kit::digits::hexadecimal;

use super::Principal;
use crate::config::Ban;

/// A client, as far as it is known, that a ban may cover.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Suspect<'a> {
    pub(crate) client_id: &'a str,
    /// Authenticated user.
    pub(crate) user: Option<&'a str>,
    pub(crate) address: Option<IpAddr>,
    /// SHA-256 fingerprint of its certificate.
    pub(crate) certificate: Option<[u8; 32]>,
}

impl<'a> From<&'a Principal> for Suspect<'a> {
    fn from(principal: &'a Principal) -> Self {
        let user = principal.identity.user.as_ref().map(|user| user.as_str());
        Self { client_id: principal.client_id.as_str(), user, ..Self::default() }
    }
}

/// Whether a ban is in force that has only properties of this client.
pub(super) fn is_banned(bans: &[Ban], suspect: &Suspect<'_>) -> bool {
    !bans.is_empty() && {
        let now = SystemTime::now();
        bans.iter().any(|ban| ban.until.is_none_or(|until| now < until) && covers(ban, suspect))
    }
}

fn covers(ban: &Ban, suspect: &Suspect<'_>) -> bool {
    let is_certificate =
        |digits: &String| suspect.certificate.is_some_and(|fingerprint| hexadecimal(&fingerprint) == *digits);
    ban.user.as_deref().is_none_or(|user| suspect.user == Some(user))
        && ban.client_id.as_deref().is_none_or(|client_id| suspect.client_id == client_id)
        && ban.network.is_none_or(|network| suspect.address.is_some_and(|address| network.contains(address)))
        && ban.certificate.as_ref().is_none_or(is_certificate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn ban_covers_clients_with_all_of_its_properties() {
        let certificate = "07".repeat(32);
        let bans = |keys: &str| Config::parse(&format!("[[ban]]\n{keys}")).unwrap().ban;
        let suspect = Suspect {
            client_id: "c",
            user: Some("alice"),
            address: Some([10, 0, 0, 1].into()),
            certificate: Some([7; 32]),
        };
        for (keys, expected) in [
            ("user = \"alice\"", true),
            ("user = \"bob\"", false),
            ("client_id = \"c\"", true),
            ("client_id = \"c\"\nuser = \"bob\"", false),
            ("network = \"10.0.0.0/8\"", true),
            ("network = \"10.0.0.0/8\"\nuntil = 2000-01-01T00:00:00Z", false),
            ("network = \"10.0.0.0/8\"\nuntil = 9999-01-01T00:00:00Z", true),
            ("network = \"192.0.2.0/24\"", false),
            (&format!("certificate = \"{certificate}\""), true),
            (&format!("certificate = \"{}\"", "ab".repeat(32)), false),
        ] {
            assert_eq!(is_banned(&bans(keys), &suspect), expected, "{keys}");
            let unknown = Suspect { client_id: "d", ..Suspect::default() };
            assert!(!is_banned(&bans(keys), &unknown), "{keys}");
        }
    }
}
