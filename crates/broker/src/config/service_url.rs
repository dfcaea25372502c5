//! URLs of services that the broker asks or tells.

use std::fmt;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

/// URL of a service. Its text has scheme, host and port alone: path and query may be secret. User info is dropped, since
/// requests do not send it, and the HTTP client would log it.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceUrl(String);

impl ServiceUrl {
    /// The whole URL, for requests alone.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether the connection is encrypted, or stays on this machine.
    pub(crate) fn is_private(&self) -> bool {
        let host = match self.authority().strip_prefix('[') {
            Some(v6) => v6.split(']').next(),
            None => self.authority().split(':').next(),
        };
        let host = host.unwrap_or_default();
        let is_loopback = |address: std::net::IpAddr| address.is_loopback();
        self.0.starts_with("https://") || host == "localhost" || host.parse().is_ok_and(is_loopback)
    }

    /// Host and perhaps port.
    fn authority(&self) -> &str {
        let rest = self.0.split_once("://").map_or("", |(_, rest)| rest);
        rest.split(ENDS).next().unwrap_or_default()
    }
}

/// Characters that end user info, host and port.
const ENDS: [char; 4] = ['/', '?', '#', '\\'];

impl TryFrom<String> for ServiceUrl {
    type Error = &'static str;

    /// The error does not show the URL.
    fn try_from(url: String) -> Result<Self, &'static str> {
        let has_scheme = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
        let is_text = !url.contains(|other: char| other.is_whitespace() || other.is_control());
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(ENDS).unwrap_or(rest.len()));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let url = Self(format!("{scheme}://{host}{path}"));
        let is_legal = has_scheme && is_text && !url.authority().is_empty();
        is_legal.then_some(url).ok_or("needs to be an URL with http:// or https:// and a host")
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.split_once("://").map_or("", |(scheme, _)| scheme);
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl fmt::Debug for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ServiceUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ServiceUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> ServiceUrl {
        ServiceUrl::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn text_of_an_url_has_no_secrets() {
        for (text, shown) in [
            ("https://user:secret@keys.example:8443/secret/jwks?key=secret#secret", "https://keys.example:8443"),
            ("http://user:se@cret@[::1]:80", "http://[::1]:80"),
            ("https://keys.example?secret", "https://keys.example"),
        ] {
            assert_eq!((url(text).to_string(), format!("{:?}", url(text))), (shown.to_owned(), shown.to_owned()));
        }
        let with_user = "https://user:secret@keys.example:8443/a/b?key=c#d";
        assert_eq!(url(with_user).expose(), "https://keys.example:8443/a/b?key=c#d");
        for wrong in ["", "ftp://a", "http://", "https://user:secret@", "http://a b", "https:///path"] {
            let error = ServiceUrl::try_from(wrong.to_owned()).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn user_info_is_no_host() {
        for (text, is_private) in [
            ("http://127.0.0.1:80/", true),
            ("http://user:secret@localhost/", true),
            ("http://[::1]/", true),
            ("https://keys.example", true),
            ("http://keys.example/", false),
            ("http://127.0.0.1:80@keys.example/", false),
            ("http://127.0.0.1.keys.example/", false),
        ] {
            assert_eq!(url(text).is_private(), is_private, "{text}");
        }
    }
}
