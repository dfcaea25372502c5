//! Bounds of the configuration by their keys, so that logs and metrics name the key to raise.

/// Defines the bounds with their keys.
macro_rules! bounds {
    ($($name:ident = $key:literal,)*) => {
        /// A bound of the configuration that refuses, drops or disconnects something.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Bound {
            $($name,)*
        }

        impl Bound {
            pub(crate) const ALL: [Self; [$($key),*].len()] = [$(Self::$name),*];

            /// Key in the configuration, with its table.
            pub(crate) fn key(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)*
                }
            }
        }
    };
}

bounds! {
    Connections = "connections.maximum",
    ConnectionsOfAddress = "connections.per_address_maximum",
    ConnectionsOfLoopback = "connections.loopback_per_address_maximum",
    ConnectRate = "connections.connects_per_second",
    ConnectRateOfAddress = "connections.connects_per_second_per_address",
    FailuresOfAddress = "connections.failures_per_minute_per_address",
    PacketBytes = "connections.packet_bytes_maximum",
    ConnectBytes = "connections.connect_packet_bytes_maximum",
    UserProperties = "connections.user_properties_maximum",
    Sessions = "sessions.maximum",
    SessionsOfAddress = "sessions.per_address_maximum",
    SessionsOfLoopback = "sessions.loopback_per_address_maximum",
    ClientIdBytes = "sessions.client_id_bytes_maximum",
    ReceiveMaximum = "sessions.receive_maximum",
    TopicAliases = "sessions.topic_alias_maximum",
    Subscriptions = "sessions.subscriptions_maximum",
    SubscriptionBytes = "sessions.subscription_bytes_maximum",
    WildcardPatterns = "sessions.wildcard_patterns_maximum",
    TopicBytes = "sessions.topic_bytes_maximum",
    TopicLevels = "sessions.topic_levels_maximum",
    WillBytes = "sessions.will_bytes_maximum",
    MemoryOfAll = "limits.bytes_maximum",
    MemoryOfUser = "limits.user_bytes_maximum",
    MemoryOfAddress = "limits.address_bytes_maximum",
    MemoryOfLoopback = "limits.loopback_address_bytes_maximum",
    GroupsPerTopic = "limits.groups_per_topic_maximum",
    QueueMessages = "queue.messages_maximum",
    QueueBytes = "queue.bytes_maximum",
    QueuesTotal = "queue.total_bytes_maximum",
    RetainedMessages = "retained.messages_maximum",
    RetainedBytes = "retained.bytes_maximum",
    StoredQueueBytes = "store.queue_bytes_maximum",
    StoreBytes = "store.bytes_maximum",
}
