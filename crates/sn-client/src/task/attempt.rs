//! Connections to the gateways of the list, one after the other.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tenbin_sn::ClientEvent as PeerEvent;
use tenbin_sn_codec::v1_2::Message as SnMessage;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{Task, until};
use crate::command::Reply;
use crate::link::{Link, resolve};
use crate::{ClientEvent, DisconnectReason, Failure};

/// A connection of less time is no success, if there is no pause to compare with.
const SHORT: Duration = Duration::from_secs(5);

impl Task {
    /// Tells the application of the new connection.
    pub(super) fn note_connection(&mut self) {
        let gateway = self.gateway_name().to_owned();
        self.events.send(ClientEvent::Connected { gateway });
    }

    /// Tries all gateways once, from this one on.
    ///
    /// # Errors
    /// The failure of each.
    pub(super) async fn try_all(&mut self, first: usize) -> Result<(), Vec<Failure>> {
        let gateways = self.options.gateways.len();
        let mut failures = Vec::new();
        for index in (first..first + gateways).map(|index| index % gateways) {
            self.gateway = index;
            match self.attempt().await {
                Ok(()) => return Ok(()),
                Err(reason) => failures.push(Failure { gateway: self.gateway_name().into(), reason }),
            }
            self.peer.abandon();
        }
        Err(failures)
    }

    /// Looks for a gateway after a loss, the lost one last, until one accepts or the application ends the client.
    ///
    /// # Errors
    /// The client is to end, for this reason.
    pub(super) async fn reconnect(&mut self, lost: Failure, leave: &mut mpsc::Receiver<Reply>) -> Result<(), Failure> {
        let result = tokio::select! {
            result = self.find_gateway(&lost) => result,
            reply = leave.recv() => {
                self.leave(reply);
                Err(None)
            }
        };
        result.map_err(|failure| failure.unwrap_or(lost))
    }

    async fn find_gateway(&mut self, lost: &Failure) -> Result<(), Option<Failure>> {
        let is_answer = !matches!(lost.reason, DisconnectReason::NoAnswer);
        // A connection that ended soon may have ended by a message that the client repeats.
        let was_short = is_answer && self.connected_at.elapsed() < self.options.reconnect.unwrap_or(SHORT);
        if was_short && self.options.reconnect.is_none() {
            return Err(None);
        }
        // The only gateway, or a busy one, is not asked again at once.
        let mut is_pause_due = was_short || (self.options.gateways.len() == 1 && is_answer);
        loop {
            if let Some(pause) = self.options.reconnect.filter(|_| is_pause_due) {
                sleep(pause).await;
            }
            is_pause_due = true;
            match self.try_all(self.gateway + 1).await {
                Ok(()) => break,
                Err(_) if self.options.reconnect.is_some() => {}
                Err(mut failures) => return Err(failures.pop()),
            }
        }
        // CONNACK does not tell whether the gateway still has the session.
        self.subscribe_again();
        Ok(())
    }

    /// Connects to the gateway at the current position, at the first of its addresses that accepts. The address after the
    /// last one that failed comes first.
    async fn attempt(&mut self) -> Result<(), DisconnectReason> {
        let mut reason = DisconnectReason::NoAnswer;
        let mut addresses = resolve(self.gateway_name()).await?;
        begin_after(&mut addresses, self.failed_addresses.get(&self.gateway));
        for address in addresses {
            match self.attempt_at(address).await {
                Ok(()) => return Ok(()),
                Err(other) => reason = other,
            }
            self.failed_addresses.insert(self.gateway, address);
            self.peer.abandon();
        }
        Err(reason)
    }

    async fn open_link(&self, address: SocketAddr) -> io::Result<Link> {
        let link = Link::open(address).await?;
        if let Some(keys) = &self.options.dtls {
            let host = self.gateway_name().rsplit_once(':').map_or(self.gateway_name(), |(host, _)| host);
            return link.secure(keys, host.trim_matches(['[', ']'])).await;
        }
        Ok(link)
    }

    async fn attempt_at(&mut self, address: SocketAddr) -> Result<(), DisconnectReason> {
        match &self.link {
            // The same socket, so that the gateway sees the same client again.
            Some(link) if link.address == address && link.is_reusable() => link.clear(&mut self.buffer),
            _ => {
                self.link = Some(self.open_link(address).await?);
                self.peer.forget_topic_ids();
            }
        }
        self.out.clear();
        self.peer.connect(Instant::now(), &mut self.out);
        loop {
            self.flush().await?;
            let deadline = self.peer.poll_timeout();
            let Some(link) = &self.link else { return Err(DisconnectReason::NoAnswer) };
            tokio::select! {
                received = link.receive(&mut self.buffer) => {
                    // An error tells that no process listens there.
                    if let Ok(message) = SnMessage::decode(received?)
                        && (self.events.has_room() || !matches!(message, SnMessage::Publish(_)))
                    {
                        self.peer.handle_message(&message, Instant::now(), &mut self.out);
                    }
                }
                () = until(deadline) => self.peer.handle_timeout(Instant::now(), &mut self.out),
            }
            while let Some(event) = self.peer.poll_event() {
                match event {
                    PeerEvent::Connected => {
                        self.connected_at = Instant::now();
                        return Ok(());
                    }
                    PeerEvent::Refused(code) => return Err(DisconnectReason::Refused(code)),
                    PeerEvent::Lost => return Err(DisconnectReason::NoAnswer),
                    PeerEvent::Disconnected => return Err(DisconnectReason::ByGateway),
                    other => self.handle_event(other),
                }
            }
        }
    }
}

/// Moves the addresses up to the one that failed behind the others.
fn begin_after(addresses: &mut [SocketAddr], failed: Option<&SocketAddr>) {
    if let Some(at) = addresses.iter().position(|address| Some(address) == failed) {
        addresses.rotate_left(at + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_begin_after_the_one_that_failed() {
        let [a, b, c] = [1, 2, 3].map(|host| SocketAddr::from(([192, 0, 2, host], 10_000)));
        for (failed, expected) in [(None, [a, b, c]), (Some(a), [b, c, a]), (Some(b), [c, a, b]), (Some(c), [a, b, c])]
        {
            let mut addresses = [a, b, c];
            begin_after(&mut addresses, failed.as_ref());
            assert_eq!(addresses, expected);
        }
        let mut others = [a, b];
        begin_after(&mut others, Some(&c));
        assert_eq!(others, [a, b], "the name has other addresses now");
    }
}
