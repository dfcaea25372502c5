use std::time::Duration;

/// Bounds of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Threads that serve connections, at least 1. Default 1.
    pub threads: usize,
    /// Largest body of a request, in bytes: the broker's Maximum Packet Size. Default 4 MiB.
    pub body_bytes_maximum: usize,
    /// Time for the head of a request, which is also the time that a connection may be idle; and time from the head to
    /// the broker's acknowledgement. Default 10 s.
    pub request_time: Duration,
    /// Connections at a time. Default 100,000.
    pub connections_maximum: usize,
    /// Connections of one network address, or one /64 of IPv6; 0 = no bound. Default 25,000.
    pub per_address_maximum: usize,
    /// The same for addresses of this machine. Default 0.
    pub loopback_per_address_maximum: usize,
    /// Bytes of bodies that are being received and of answers that are being sent, in all. Default 256 MiB.
    pub bytes_maximum: usize,
    /// The same for one network address, also of this machine. Default 48 MiB.
    pub address_bytes_maximum: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            threads: 1,
            body_bytes_maximum: 4 << 20,
            request_time: Duration::from_secs(10),
            connections_maximum: 100_000,
            per_address_maximum: 25_000,
            loopback_per_address_maximum: 0,
            bytes_maximum: 256 << 20,
            address_bytes_maximum: 48 << 20,
        }
    }
}
