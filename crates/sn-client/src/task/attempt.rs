//! Connections to the gateways of the list, one after the other.

use std::time::Instant;

use tenbin_sn::ClientEvent as PeerEvent;
use tenbin_sn_codec::v1_2::Message as SnMessage;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{Task, until};
use crate::command::Reply;
use crate::link::{Link, resolve};
use crate::{ClientEvent, DisconnectReason, Failure};

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
        let lost_address = self.link.as_ref().map(|link| link.address);
        // The only gateway, or a busy one, is not asked again at once.
        let mut is_pause_due = self.options.gateways.len() == 1 && !matches!(lost.reason, DisconnectReason::NoAnswer);
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
        if self.options.clean_session || self.link.as_ref().map(|link| link.address) != lost_address {
            self.subscribe_again();
        }
        Ok(())
    }

    /// Connects to the gateway at the current position.
    async fn attempt(&mut self) -> Result<(), DisconnectReason> {
        let address = resolve(self.gateway_name()).await?;
        match &self.link {
            // The same socket, so that the gateway sees the same client again.
            Some(link) if link.address == address => link.clear_error(),
            _ => {
                self.link = Some(Link::open(address).await?);
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
                    if let Ok(message) = SnMessage::decode(received?) {
                        self.peer.handle_message(&message, Instant::now(), &mut self.out);
                    }
                }
                () = until(deadline) => self.peer.handle_timeout(Instant::now(), &mut self.out),
            }
            while let Some(event) = self.peer.poll_event() {
                match event {
                    PeerEvent::Connected => return Ok(()),
                    PeerEvent::Refused(code) => return Err(DisconnectReason::Refused(code)),
                    PeerEvent::Lost => return Err(DisconnectReason::NoAnswer),
                    PeerEvent::Disconnected => return Err(DisconnectReason::ByGateway),
                    other => self.handle_event(other),
                }
            }
        }
    }
}
