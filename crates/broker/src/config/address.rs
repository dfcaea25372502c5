use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// Address of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenAddress {
    /// One IP address.
    Ip(SocketAddr),
    /// All addresses of the machine, of IPv4 and IPv6.
    Port(u16),
    /// All addresses that the system's resolver knows for a name.
    Name {
        /// The name.
        host: String,
        /// Port at each of the addresses.
        port: u16,
    },
    /// Path of a unix socket.
    Unix(PathBuf),
}

/// Rights of a unix socket's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(pub(super) u32);

/// A text that is no address of a listener.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address to listen on: {1}")]
pub struct AddressError(String, &'static str);

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = |reason| Err(AddressError(text.to_owned(), reason));
        match text.strip_prefix("unix:") {
            Some("") => return error("a path is missing, as in unix:/run/tenbin.sock"),
            Some(path) => return Ok(Self::Unix(path.into())),
            None => {}
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some(parts) => parts,
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => ("", text),
            None => return error("a port is missing, as in 127.0.0.1:1883"),
        };
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        match port.parse() {
            _ if host.contains(':') => error("an IPv6 address needs brackets, as in [::1]:1883"),
            _ if !host.bytes().all(is_host) => error("valid are PORT, :PORT, HOST:PORT, [IPV6]:PORT and unix:PATH"),
            Err(_) => error("the port has to be a number from 0 to 65535"),
            Ok(port) if host.is_empty() => Ok(Self::Port(port)),
            Ok(port) => Ok(Self::Name { host: host.to_owned(), port }),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Port(port) => write!(f, ":{port}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl<A: Into<SocketAddr>> From<A> for ListenAddress {
    fn from(address: A) -> Self {
        Self::Ip(address.into())
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777);
        let wrong =
            || serde::de::Error::custom(format!("{text:?} is no mode of a file: needs octal digits, as in \"0660\""));
        mode.map(Self).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_forms_of_other_brokers() {
        let name = |host: &str| ListenAddress::Name { host: host.to_owned(), port: 1883 };
        for (text, address, shown) in [
            ("1883", ListenAddress::Port(1883), ":1883"),
            (":1883", ListenAddress::Port(1883), ":1883"),
            ("127.0.0.1:1883", ([127, 0, 0, 1], 1883).into(), "127.0.0.1:1883"),
            ("[::]:1883", ([0_u16; 8], 1883).into(), "[::]:1883"),
            ("localhost:1883", name("localhost"), "localhost:1883"),
            ("unix:run/a.sock", ListenAddress::Unix("run/a.sock".into()), "unix:run/a.sock"),
            ("broker-1.example.org:1883", name("broker-1.example.org"), "broker-1.example.org:1883"),
        ] {
            assert_eq!(text.parse(), Ok(address.clone()), "{text}");
            assert_eq!(address.to_string(), shown);
        }
    }

    #[test]
    fn wrong_addresses_are_explained() {
        for (text, reason) in [
            ("unix:", "a path is missing"),
            ("nowhere", "a port is missing"),
            ("127.0.0.1", "a port is missing"),
            ("", "0 to 65535"),
            ("::1:1883", "brackets"),
            ("[::1", "brackets"),
            ("localhost:", "0 to 65535"),
            ("localhost:mqtt", "0 to 65535"),
            (":65536", "0 to 65535"),
            ("99999", "0 to 65535"),
            ("-1:+2 ", "0 to 65535"),
            ("tcp//host:1", "HOST:PORT"),
        ] {
            let error = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains(reason), "{error}");
        }
    }
}
