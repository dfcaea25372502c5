//! A relay of MQTT frames: the cost of moving messages between sockets without any broker logic.
//!
//! In comparisons it is the upper bound that no broker can exceed with the same sockets and the same runtime (tokio's,
//! a task for each connection, as in Tenbin's broker). It finds the ends of frames in the publishers' bytes and copies
//! whole frames into the receivers' write buffers: to all subscribers without `$share`, and in rotation to those with
//! it. For one read of a publisher a receiver is locked once and woken at most once; one system call writes all its
//! queued bytes.
//!
//! **It is no broker.** It does not look at topics and filters (one share group, and one topic for all), nor at
//! properties, rights, sizes and Keep Alive; has no sessions, Wills, retained messages and UNSUBSCRIBE; lowers no QoS
//! (both sides have to request the same); enforces no limits (a receiver that does not read makes it grow); sends
//! nothing again. Above QoS 0 it acknowledges at once, gives the copy a Packet Identifier of its receiver's own,
//! counting upwards, and answers PUBREC with PUBREL, without tracking messages in flight. Both sides must speak the
//! same version.
//!
//! ```text
//! tenbin-relay [ADDRESS:PORT]      # 127.0.0.1:1883 by default; port 0 selects a free one, which is printed
//! ```
#![forbid(unsafe_code)]

mod connection;
mod frame;
mod hub;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};

use connection::Connection;
use hub::Hub;

fn main() -> ExitCode {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:1883".to_owned());
    let parsed = address.parse().map_err(|_| io::Error::other(format!("{address:?}: want ADDRESS:PORT")));
    match parsed.and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "tenbin-relay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(address: SocketAddr) -> io::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_io().build()?.block_on(async {
        let listener = bind(address)?;
        writeln!(io::stdout(), "tenbin-relay listening on {}", listener.local_addr()?)?;
        serve(listener).await
    })
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until accepting fails.
async fn serve(listener: TcpListener) -> io::Result<()> {
    let hub = Arc::new(Hub::default());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // The result is ignored: the peer knows why the connection ended.
        tokio::spawn(Connection::new(stream, Arc::clone(&hub)).run());
    }
}

/// Accept queue, as in the broker.
const BACKLOG: u32 = 4096;

#[cfg(test)]
mod tests;
