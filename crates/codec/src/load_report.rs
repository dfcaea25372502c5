//! Carriers of load reports, and their names on the wire. The codec does not interpret the reports.

use std::fmt;
use std::str::FromStr;

use crate::{AckProperties, Text, UserProperty};

/// Carrier of a client's load report. Display, parsing and configuration use the same words.
///
/// | carrier | word | where the report stands | versions |
/// |---|---|---|---|
/// | [`PingReq`](Self::PingReq) | `pingreq` | payload of the extended PINGREQ | 5.0 |
/// | [`Ack`](Self::Ack) | `ack` | User Property [`PROPERTY`](Self::PROPERTY) of PUBACK, PUBREC and PUBCOMP | 5.0 |
/// | [`Publish`](Self::Publish) | `publish` | payload of a PUBLISH to [`TOPIC`](Self::TOPIC) | all |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportCarrier {
    /// The extended PINGREQ (thesis §4.1.1).
    PingReq = 1,
    /// An acknowledgement of a message that the client received.
    Ack = 2,
    /// A message to the server itself.
    Publish = 4,
}

/// A set of [`ReportCarrier`]s, such as those that a server accepts.
///
/// ```
/// use tenbin_codec::{ReportCarrier, ReportCarriers, Text, UserProperty};
///
/// let some = ReportCarriers::from_iter([ReportCarrier::Publish, ReportCarrier::Ack]);
/// let told = UserProperty::new(Text::from_static("load-report"), Text::from_static("ack,publish"));
/// assert_eq!(some.to_property(), Some(told.clone()));
/// assert_eq!(ReportCarriers::told(&[told]), some);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct ReportCarriers(u8);

impl ReportCarrier {
    /// All carriers.
    pub const ALL: [Self; 3] = [Self::PingReq, Self::Ack, Self::Publish];
    /// Topic of [`ReportCarrier::Publish`]. Its messages are for the server and go to no subscriber.
    pub const TOPIC: &str = "$load";
    /// Name of the User Property of [`ReportCarrier::Ack`]; the first one counts.
    pub const PROPERTY: &str = "load";

    /// The carrier's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PingReq => "pingreq",
            Self::Ack => "ack",
            Self::Publish => "publish",
        }
    }
}

impl fmt::Display for ReportCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ReportCarrier {
    type Err = UnknownCarrier;

    fn from_str(word: &str) -> Result<Self, UnknownCarrier> {
        Self::ALL.into_iter().find(|carrier| carrier.as_str() == word).ok_or(UnknownCarrier)
    }
}

/// A word that names no [`ReportCarrier`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownCarrier;

impl fmt::Display for UnknownCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no carrier of load reports: pingreq, ack and publish are")
    }
}

impl std::error::Error for UnknownCarrier {}

impl ReportCarriers {
    /// The set of all carriers.
    pub const ALL: Self = Self(7);
    /// Name of the User Property of CONNACK in which a server announces the carriers that it accepts.
    ///
    /// Its value is their words in the order of [`ReportCarrier::ALL`], with commas and no spaces between them. It is
    /// omitted if the server accepts none, or if the client did not [ask](Self::question).
    pub const PROPERTY: &str = "load-report";

    /// The User Property of CONNECT by which a client asks for [`PROPERTY`](Self::PROPERTY) in CONNACK: the same name,
    /// with any value.
    pub fn question() -> UserProperty {
        UserProperty::new(Text::from_static(Self::PROPERTY), Text::from_static("?"))
    }

    /// Whether the User Properties of a CONNECT ask for [`PROPERTY`](Self::PROPERTY).
    pub fn are_asked_for(properties: &[UserProperty]) -> bool {
        properties.iter().any(|property| property.name.as_bytes() == Self::PROPERTY.as_bytes())
    }

    /// Whether `carrier` is one of them.
    pub fn contains(self, carrier: ReportCarrier) -> bool {
        self.0 & carrier as u8 != 0
    }

    /// The User Property that announces this set, or `None` if it is empty.
    pub fn to_property(self) -> Option<UserProperty> {
        let words = ReportCarrier::ALL.into_iter().filter(|&carrier| self.contains(carrier));
        let value = words.map(ReportCarrier::as_str).collect::<Vec<_>>().join(",");
        let value = Text::try_from(value).ok().filter(|value| !value.is_empty())?;
        Some(UserProperty::new(Text::from_static(Self::PROPERTY), value))
    }

    /// The set announced by the User Properties of a CONNACK. Unknown words are ignored.
    pub fn told(properties: &[UserProperty]) -> Self {
        let told = properties.iter().find(|property| property.name.as_bytes() == Self::PROPERTY.as_bytes());
        let words = told.map_or("", |property| property.value.as_str()).split(',');
        words.filter_map(|word| word.trim().parse().ok()).collect()
    }
}

impl FromIterator<ReportCarrier> for ReportCarriers {
    fn from_iter<I: IntoIterator<Item = ReportCarrier>>(carriers: I) -> Self {
        Self(carriers.into_iter().fold(0, |bits, carrier| bits | carrier as u8))
    }
}

impl fmt::Debug for ReportCarriers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(ReportCarrier::ALL.into_iter().filter(|&carrier| self.contains(carrier))).finish()
    }
}

impl AckProperties {
    /// The load report in an acknowledgement, as sent.
    pub fn load_report(&self) -> Option<&Text> {
        let mut properties = self.user_properties.iter();
        properties
            .find(|property| property.name.as_bytes() == ReportCarrier::PROPERTY.as_bytes())
            .map(|property| &property.value)
    }

    /// Properties with only a load report.
    pub fn with_load_report(report: Text) -> Self {
        let property = UserProperty::new(Text::from_static(ReportCarrier::PROPERTY), report);
        Self { user_properties: vec![property], ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_carriers_are_read_back_among_other_properties() {
        for bits in 0..8 {
            let carriers = ReportCarriers(bits);
            let other = UserProperty::new(Text::from_static("load"), Text::from_static("ack"));
            let properties: Vec<_> = [other].into_iter().chain(carriers.to_property()).collect();
            assert_eq!(ReportCarriers::told(&properties), carriers);
        }
        let told = |value| {
            ReportCarriers::told(&[UserProperty::new(Text::from_static("load-report"), Text::from_static(value))])
        };
        assert_eq!(told("smoke, ack ,PINGREQ,"), ReportCarriers::from_iter([ReportCarrier::Ack]));
        assert_eq!(told(""), ReportCarriers::default());
    }

    #[test]
    fn report_carriers_all_contains_every_carrier() {
        assert_eq!(ReportCarriers::from_iter(ReportCarrier::ALL), ReportCarriers::ALL);
        assert_eq!(format!("{:?}", ReportCarriers::ALL), "{PingReq, Ack, Publish}");
        assert_eq!("ping".parse::<ReportCarrier>(), Err(UnknownCarrier));
    }
}
