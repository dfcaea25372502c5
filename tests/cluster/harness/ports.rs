//! Ports of nodes. They stay free while a node is down: outgoing connections get others.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// An address on loopback with a free port.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test processes that run at the same time begin at different ports.
    let first = std::process::id().wrapping_mul(191);
    for _ in 0..COUNT {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = FIRST + u16::try_from(number).expect("a port");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return (Ipv4Addr::LOCALHOST, port).into();
        }
    }
    panic!("no port is free");
}

const FIRST: u16 = 12_000;
/// Number of ports below those of outgoing connections.
const COUNT: u32 = 20_000;
