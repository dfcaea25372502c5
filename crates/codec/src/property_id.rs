use std::fmt;

/// Identifier of a property (MQTT 5.0 §2.2.2.2, table 2-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the standard's own names")]
pub enum PropertyId {
    PayloadFormatIndicator = 0x01,
    MessageExpiryInterval = 0x02,
    ContentType = 0x03,
    ResponseTopic = 0x08,
    CorrelationData = 0x09,
    SubscriptionIdentifier = 0x0B,
    SessionExpiryInterval = 0x11,
    AssignedClientIdentifier = 0x12,
    ServerKeepAlive = 0x13,
    AuthenticationMethod = 0x15,
    AuthenticationData = 0x16,
    RequestProblemInformation = 0x17,
    WillDelayInterval = 0x18,
    RequestResponseInformation = 0x19,
    ResponseInformation = 0x1A,
    ServerReference = 0x1C,
    ReasonString = 0x1F,
    ReceiveMaximum = 0x21,
    TopicAliasMaximum = 0x22,
    TopicAlias = 0x23,
    MaximumQoS = 0x24,
    RetainAvailable = 0x25,
    UserProperty = 0x26,
    MaximumPacketSize = 0x27,
    WildcardSubscriptionAvailable = 0x28,
    SubscriptionIdentifierAvailable = 0x29,
    SharedSubscriptionAvailable = 0x2A,
}

impl PropertyId {
    /// All 27, ascending.
    pub const ALL: [Self; 27] = [
        Self::PayloadFormatIndicator,
        Self::MessageExpiryInterval,
        Self::ContentType,
        Self::ResponseTopic,
        Self::CorrelationData,
        Self::SubscriptionIdentifier,
        Self::SessionExpiryInterval,
        Self::AssignedClientIdentifier,
        Self::ServerKeepAlive,
        Self::AuthenticationMethod,
        Self::AuthenticationData,
        Self::RequestProblemInformation,
        Self::WillDelayInterval,
        Self::RequestResponseInformation,
        Self::ResponseInformation,
        Self::ServerReference,
        Self::ReasonString,
        Self::ReceiveMaximum,
        Self::TopicAliasMaximum,
        Self::TopicAlias,
        Self::MaximumQoS,
        Self::RetainAvailable,
        Self::UserProperty,
        Self::MaximumPacketSize,
        Self::WildcardSubscriptionAvailable,
        Self::SubscriptionIdentifierAvailable,
        Self::SharedSubscriptionAvailable,
    ];

    /// From the value on the wire; `None` for one that the standard does not define.
    pub fn from_value(value: u32) -> Option<Self> {
        Self::ALL.binary_search_by_key(&value, |id| *id as u32).ok().map(|index| Self::ALL[index])
    }

    /// The value on the wire.
    pub fn value(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for PropertyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PayloadFormatIndicator => "Payload Format Indicator",
            Self::MessageExpiryInterval => "Message Expiry Interval",
            Self::ContentType => "Content Type",
            Self::ResponseTopic => "Response Topic",
            Self::CorrelationData => "Correlation Data",
            Self::SubscriptionIdentifier => "Subscription Identifier",
            Self::SessionExpiryInterval => "Session Expiry Interval",
            Self::AssignedClientIdentifier => "Assigned Client Identifier",
            Self::ServerKeepAlive => "Server Keep Alive",
            Self::AuthenticationMethod => "Authentication Method",
            Self::AuthenticationData => "Authentication Data",
            Self::RequestProblemInformation => "Request Problem Information",
            Self::WillDelayInterval => "Will Delay Interval",
            Self::RequestResponseInformation => "Request Response Information",
            Self::ResponseInformation => "Response Information",
            Self::ServerReference => "Server Reference",
            Self::ReasonString => "Reason String",
            Self::ReceiveMaximum => "Receive Maximum",
            Self::TopicAliasMaximum => "Topic Alias Maximum",
            Self::TopicAlias => "Topic Alias",
            Self::MaximumQoS => "Maximum QoS",
            Self::RetainAvailable => "Retain Available",
            Self::UserProperty => "User Property",
            Self::MaximumPacketSize => "Maximum Packet Size",
            Self::WildcardSubscriptionAvailable => "Wildcard Subscription Available",
            Self::SubscriptionIdentifierAvailable => "Subscription Identifier Available",
            Self::SharedSubscriptionAvailable => "Shared Subscription Available",
        })
    }
}
