//! Datagrams of clients that use another machine's socket: a relay passes them on over a stream.
//!
//! ```text
//!   client ◄─ UDP ─► RelaySocket ◄─ stream ─► Gateway::serve_relay ◄─► inboxes of the threads
//! ```
//!
//! The gateway has all state: it knows a client by its address, whichever socket the client uses. A relay keeps nothing, so
//! forged datagrams cost it no memory.

pub(crate) mod frame;

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustc_hash::FxBuildHasher;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, split};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::counters::{Counters, count};
use crate::peers::{Address, Handoff, Inbox};
use crate::route::{Route, Via};

/// Relays that are connected.
#[derive(Debug, Default)]
pub(crate) struct Relays(Mutex<Connected>);

/// Channels to relays by number, and the last number.
type Connected = (HashMap<u32, mpsc::Sender<(Route, Box<[u8]>)>, FxBuildHasher>, u32);

impl Relays {
    /// Sends a datagram to a client of a relay. False if the relay has gone, or has no room.
    pub(crate) fn send(&self, relay: u32, datagram: &[u8], route: Route) -> bool {
        self.lock().0.get(&relay).is_some_and(|relay| relay.try_send((route, datagram.into())).is_ok())
    }

    fn lock(&self) -> MutexGuard<'_, Connected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves the stream of a relay until it ends: the datagrams go to `inboxes`, and those for its clients come by `relays`.
pub(crate) async fn serve(
    relays: &Relays,
    inboxes: &[Arc<Inbox>],
    counters: &Counters,
    stream: impl AsyncRead + AsyncWrite,
) {
    let (sender, mut datagrams) = mpsc::channel(DATAGRAMS_MAXIMUM);
    let number = {
        let (by_number, last) = &mut *relays.lock();
        *last = last.wrapping_add(1);
        by_number.insert(*last, sender);
        *last
    };
    let (read, mut write) = split(stream);
    let mut read = BufReader::new(read);
    let up = async {
        loop {
            let read = timeout(SILENCE_MAXIMUM, frame::read(&mut read)).await??;
            let Some((Route { to, via }, datagram)) = read else { continue };
            let address = Address { socket: to, via: Via { relay: Some(number), ..via }, node: None };
            // An address has one thread, as at sockets.
            let thread = (FxBuildHasher.hash_one(to) >> 32) as usize % inboxes.len();
            if !inboxes[thread].post(Handoff::Relayed { address, datagram }) {
                count(&counters.handoffs_dropped, 1);
            }
        }
    };
    let down = async {
        // The relay passes nothing on before.
        let (mut bytes, mut waiting) = (b"\n".to_vec(), Vec::new());
        loop {
            write.write_all(&bytes).await?;
            write.flush().await?;
            bytes.clear();
            datagrams.recv_many(&mut waiting, DATAGRAMS_MAXIMUM).await;
            waiting.drain(..).for_each(|(route, datagram)| frame::write(route, &datagram, &mut bytes));
        }
    };
    let ended: io::Result<()> = tokio::select! {
        ended = up => ended,
        ended = down => ended,
    };
    relays.lock().0.remove(&number);
    tracing::debug!(?ended, "the stream of a relay has ended");
}

/// Datagrams that wait for a relay; further ones are dropped.
const DATAGRAMS_MAXIMUM: usize = 1024;
/// A relay sends an empty line as often.
pub(crate) const PING_PAUSE: Duration = Duration::from_secs(10);
/// Time without bytes after which a relay counts as gone.
const SILENCE_MAXIMUM: Duration = Duration::from_secs(40);
