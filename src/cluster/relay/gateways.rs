//! Listeners of MQTT-SN and HTTP. At the leader, gateways open their sockets, so the relay opens its sockets itself.

use std::fmt::Display;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenbin_broker::config::{ListenAddress, Listener, Transport};
use tenbin_broker::write_relay_header;
use tenbin_sn_gateway::{Config, RelaySocket};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::{SharedRelay, Target};

impl SharedRelay {
    /// Serves the clients of a gateway's listener until the relay stops. Its socket is closed then.
    pub(super) async fn serve_gateway(self: Arc<Self>, name: Arc<str>, listener: Listener) {
        let ListenAddress::Ip(address) = listener.address else { return };
        let mut target = self.target.subscribe();
        let serves = async {
            if listener.transport == Transport::Http {
                let opened = until_open(&name, address, || TcpListener::bind(address)).await;
                drop(Arc::clone(&self).accept(Arc::clone(&name), opened).await);
            } else if let Ok(config) = Config::of_listener(address, listener.sn.unwrap_or_default()) {
                let opened = until_open(&name, address, || ready(RelaySocket::open(&config.listener))).await;
                self.pass_datagrams(&name, address, opened).await;
            }
        };
        tokio::select! {
            () = serves => {}
            _ = target.wait_for(|target| *target == Target::Stopped) => {}
        }
    }

    async fn pass_datagrams(&self, name: &str, address: SocketAddr, mut socket: RelaySocket) {
        let header = write_relay_header(address, address, name, false);
        let mut target = self.target.subscribe();
        // The reason in the last line of the log.
        let mut told = None;
        loop {
            let (stream, leader) = match self.reach(address, &header).await {
                Ok(Some(reached)) => reached,
                Ok(None) => return, // the relay has stopped
                Err(error) => {
                    socket.drop_waiting(); // clients have repeated them, or have left
                    let error = error.map(|error| error.to_string());
                    if told.as_ref() != Some(&error) {
                        tracing::warn!(error, listener = name, "no leader is reachable for datagrams");
                        told = Some(error);
                    }
                    continue;
                }
            };
            told = None;
            let ended = tokio::select! {
                ended = socket.pass(stream, &leader, &self.counters.bytes) => ended,
                _ = target.wait_for(|target| target.is_instead_of(&leader)) => continue,
            };
            tracing::debug!(?ended, listener = name, %leader, "the stream for datagrams has ended");
            sleep(PASS_AGAIN_AFTER).await;
        }
    }
}

/// Opens a socket, as soon as the gateway of this node that had its address has ended.
async fn until_open<S, E: Display, F>(name: &str, address: SocketAddr, open: impl Fn() -> F) -> S
where
    F: Future<Output = Result<S, E>>,
{
    let mut attempt = 0;
    loop {
        attempt += 1;
        match open().await {
            Ok(socket) => return socket,
            Err(error) if attempt == WARN_AT => {
                tracing::warn!(%error, listener = name, %address, "cannot accept clients for the leader; trying on");
            }
            Err(_) => {}
        }
        sleep(OPEN_AGAIN_AFTER).await;
    }
}

const OPEN_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Attempts to open a socket before a line in the log: a broker ends within 10 s.
const WARN_AT: u32 = 200;
/// Pause after the end of a stream, such as by a leader that does not have the listener.
const PASS_AGAIN_AFTER: Duration = Duration::from_millis(200);
