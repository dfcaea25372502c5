//! Clients that may not connect: tables `[[ban]]`.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer};
use toml::value::{Datetime, Offset};

use super::auth::fingerprint;
use crate::values::Network;

/// A ban of the clients that have all of the given properties.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawBan")]
pub struct Ban {
    /// Authenticated user; `None` = any client.
    pub user: Option<String>,
    /// Client Identifier; `None` = any.
    pub client_id: Option<String>,
    /// Network of the client's address; `None` = any.
    pub network: Option<Network>,
    /// SHA-256 fingerprint of the client's certificate, as lower-case hexadecimal digits; `None` = any or none.
    pub certificate: Option<String>,
    /// End of the ban; `None` = it has none.
    pub until: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBan {
    user: Option<String>,
    client_id: Option<String>,
    #[serde(default, deserialize_with = "network")]
    network: Option<Network>,
    #[serde(default, deserialize_with = "certificate")]
    certificate: Option<String>,
    #[serde(default, deserialize_with = "until")]
    until: Option<SystemTime>,
}

impl TryFrom<RawBan> for Ban {
    type Error = &'static str;

    fn try_from(raw: RawBan) -> Result<Self, Self::Error> {
        let RawBan { user, client_id, network, certificate, until } = raw;
        if user.is_none() && client_id.is_none() && network.is_none() && certificate.is_none() {
            return Err("a ban needs user, client_id, network or certificate");
        }
        Ok(Self { user, client_id, network, certificate, until })
    }
}

/// Reads a network. Bits behind the prefix may be a slip, by which a ban would reach further than meant.
fn network<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Network>, D::Error> {
    let network = Network::deserialize(deserializer)?;
    let slip = || {
        serde::de::Error::custom(format!("{network} has bits behind the prefix; the network is {}", network.plain()))
    };
    if network == network.plain() { Ok(Some(network)) } else { Err(slip()) }
}

fn certificate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || serde::de::Error::custom("needs to be a SHA-256 fingerprint of 64 hexadecimal digits");
    fingerprint(&text).map(Some).ok_or_else(wrong)
}

fn until<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let time = Datetime::deserialize(deserializer)?;
    let wrong = || serde::de::Error::custom("needs to be a time with a zone, such as 2030-01-31T12:00:00Z");
    system_time(time).map(Some).ok_or_else(wrong)
}

/// Converts a time with date and zone; times before 1970 are its beginning.
fn system_time(time: Datetime) -> Option<SystemTime> {
    let (date, clock, offset) = (time.date?, time.time?, time.offset?);
    let offset_minutes = match offset {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    // Days since 1970 of the proleptic Gregorian calendar; years begin in March, so that leap days are last.
    let (year, month) = match date.month {
        month @ 3.. => (i64::from(date.year), i64::from(month) - 3),
        month => (i64::from(date.year) - 1, i64::from(month) + 9),
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + i64::from(date.day) - 1 - DAYS_BEFORE_1970;
    let minutes = i64::from(clock.hour) * 60 + i64::from(clock.minute) - offset_minutes;
    let seconds = days * 86_400 + minutes * 60 + i64::from(clock.second.unwrap_or_default());
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
}

/// Days from 1 March of year 0 to 1 January 1970.
const DAYS_BEFORE_1970: i64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn end_of_a_ban_is_read_as_a_time() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2026-11-23T21:14:52Z", 1_795_468_492),
            ("2026-11-23T23:14:52+02:00", 1_795_468_492),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("1969-12-31T23:59:59Z", 0),
        ] {
            let config = Config::parse(&format!("[[ban]]\nuser = \"a\"\nuntil = {text}")).unwrap();
            let until = config.ban[0].until.unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(until.as_secs(), seconds, "{text}");
        }
    }

    #[test]
    fn errors_in_bans_name_key_and_line() {
        for (text, line, word) in [
            ("[[ban]]\nuntil = 2030-01-01T00:00:00Z", 1, "user, client_id, network or certificate"),
            ("[[ban]]\nuser = \"a\"\nuntil = 2030-01-01", 3, "zone"),
            ("[[ban]]\nuser = \"a\"\nuntil = \"2030-01-01T00:00:00Z\"", 3, "until"),
            ("[[ban]]\nnetwork = \"10.0.0.0/33\"", 2, "10.0.0.0/33"),
            ("[[ban]]\nnetwork = \"10.0.0.1/8\"", 2, "10.0.0.0/8"),
            ("[[ban]]\ncertificate = \"ab\"", 2, "64"),
            ("[[ban]]\nusr = \"a\"", 2, "usr"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}")) && error.contains(word), "{text}: {error}");
        }
    }
}
