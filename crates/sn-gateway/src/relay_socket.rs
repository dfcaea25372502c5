use std::future::{pending, poll_fn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, split};
use tokio::time::{interval, timeout};

use crate::config::Listener;
use crate::discovery::{self, Discovery};
use crate::relay::{PING_PAUSE, frame};
use crate::udp::{self, Batch, Socket};

/// UDP socket of a listener on a machine whose gateway is elsewhere.
pub struct RelaySocket {
    listener: Listener,
    socket: Socket,
    batch: Batch,
}

/// Wait for the gateway's first line.
const GREETING_WITHIN: Duration = Duration::from_secs(5);
/// Batches of datagrams that are dropped at once.
const DROPPED_BATCHES: usize = 1024;

impl RelaySocket {
    /// Opens the socket of a listener, within a tokio runtime.
    ///
    /// # Errors
    /// The address is in use, or the system refuses.
    pub fn open(listener: &Listener) -> io::Result<Self> {
        let socket = udp::open(listener.address, false, listener.receive_buffer_bytes)?;
        discovery::prepare(&socket, listener)?;
        let socket = Socket::new(socket, None, Arc::default(), Arc::default())?;
        Ok(Self { listener: listener.clone(), socket, batch: Batch::new() })
    }

    /// Drops the datagrams that wait.
    pub fn drop_waiting(&mut self) {
        let is_last = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        (0..DROPPED_BATCHES).find(|_| self.socket.receive(&mut self.batch).is_err_and(is_last));
    }

    /// Passes datagrams on to `gateway` and back, over a stream that [`Gateway::serve_relay`](crate::Gateway::serve_relay)
    /// serves, until the stream ends. Adds their bytes to `passed`. Answers searches for gateways in the meantime.
    ///
    /// # Errors
    /// The reason of the end.
    pub async fn pass(
        &mut self,
        stream: impl AsyncRead + AsyncWrite,
        gateway: &str,
        passed: &AtomicU64,
    ) -> io::Result<()> {
        let (read, mut write) = split(stream);
        let mut read = BufReader::new(read);
        timeout(GREETING_WITHIN, frame::read(&mut read)).await??;
        let address = self.listener.address;
        tracing::info!(%address, gateway, "passing datagrams of MQTT-SN on");
        let (socket, batch) = (&self.socket, &mut self.batch);
        let up = async {
            let (mut ping, mut bytes) = (interval(PING_PAUSE), Vec::new());
            loop {
                tokio::select! {
                    _ = poll_fn(|cx| socket.poll_readable(cx)) => if socket.receive(batch).is_ok() {
                        for (datagram, route) in batch.iter() {
                            passed.fetch_add(datagram.len() as u64, Ordering::Relaxed);
                            frame::write(route, datagram, &mut bytes);
                        }
                    },
                    _ = ping.tick() => bytes.push(b'\n'),
                }
                write.write_all(&bytes).await?;
                write.flush().await?;
                bytes.clear();
            }
        };
        let down = async {
            loop {
                if let Some((route, datagram)) = frame::read(&mut read).await? {
                    passed.fetch_add(datagram.len() as u64, Ordering::Relaxed);
                    socket.send_in_time(&datagram, route).await;
                }
            }
        };
        let discovers = async {
            match Discovery::open(&self.listener) {
                Ok(Some(discovery)) => discovery.run(socket.shared()).await,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, %address, "cannot join the multicast group of the listener"),
            }
            pending::<()>().await
        };
        tokio::select! {
            ended = up => ended,
            ended = down => ended,
            () = discovers => Ok(()),
        }
    }
}
