//! Listeners that operators close for a time, to send their clients away.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::task::AbortHandle;

use super::super::drain::Drain;
use super::{Listeners, OpenListener};
use crate::config::ListenAddress;
use crate::lifecycle::{BrokerState, Operations};
use crate::net::{ListenError, ListeningSocket};
use crate::values::DrainRefused;

impl Listeners {
    /// Closes the listener of this name, or all. `send_away` begins to end their connections.
    ///
    /// # Errors
    /// There is no such listener, or clients of an earlier drain still go. Then nothing changes.
    pub(in crate::broker) fn begin_drain(
        &mut self,
        name: Option<&str>,
        send_away: impl FnOnce(Arc<AtomicBool>) -> AbortHandle,
    ) -> Result<(), DrainRefused> {
        if self.drain.is_running() {
            return Err(DrainRefused::Running);
        }
        let is_wanted = |listener: &OpenListener| name.is_none_or(|name| *listener.name == *name);
        if !self.open.iter().any(is_wanted) && (name.is_some() || self.drained.is_empty()) {
            return Err(DrainRefused::NoListener);
        }
        let (closed, open) = std::mem::take(&mut self.open).into_iter().partition(is_wanted);
        self.open = open;
        let closed: Vec<OpenListener> = closed;
        closed.iter().flat_map(|listener| &listener.jobs).for_each(AbortHandle::abort);
        self.drained.extend(closed.into_iter().map(OpenListener::without_sockets));
        self.drain = Drain::begun(send_away);
        Ok(())
    }

    /// Ends the drain, and opens its listeners again, at the addresses that they had. Returns false without a drain.
    ///
    /// # Errors
    /// A listener cannot be opened. Then it stays closed until the next attempt; the others are open.
    pub(in crate::broker) fn end_drain(&mut self, shared: &Arc<BrokerState>) -> Result<bool, ListenError> {
        if self.drained.is_empty() {
            return Ok(false);
        }
        let (mut failed, drained) = (None, std::mem::take(&mut self.drained));
        self.forget_drain(&shared.operations);
        for mut listener in drained {
            if listener.settings.transport.at_gateway().is_some() {
                match listener.open_gateway(self, shared) {
                    Ok(()) => self.open.push(listener),
                    Err(error) => {
                        failed = Some(error);
                        self.drained.push(listener);
                    }
                }
                continue;
            }
            match listener.open_again(shared) {
                Ok(()) => {
                    let runtime = listener.door.as_ref().and(self.at_doors.as_ref()).map(|(runtime, _)| runtime);
                    let inside = runtime.unwrap_or(&self.plain).enter();
                    let acceptors =
                        listener.sockets.iter().map(ListeningSocket::acceptor).collect::<Result<Vec<_>, _>>();
                    drop(inside);
                    match acceptors {
                        Ok(acceptors) => {
                            let accept = |acceptor| self.accept(shared, &listener, acceptor);
                            listener.jobs = acceptors.into_iter().map(accept).collect();
                            self.open.push(listener);
                        }
                        Err(error) => {
                            failed = Some(ListenError::new(&listener.settings, error));
                            self.drained.push(listener.without_sockets());
                        }
                    }
                }
                Err(error) => {
                    failed = Some(error);
                    self.drained.push(listener);
                }
            }
        }
        failed.map_or(Ok(true), Err)
    }

    /// Whether the tasks of drained listeners have let go of their sockets.
    pub(in crate::broker) fn are_drained_closed(&self) -> bool {
        self.drained.iter().flat_map(|listener| &listener.jobs).all(AbortHandle::is_finished)
    }

    /// Keeps clients that have not gone yet, and forgets the listeners that the drain has closed.
    pub(super) fn forget_drain(&mut self, operations: &Operations) {
        (self.drain, self.drained) = (Drain::None, Vec::new());
        operations.server_reference.store(None);
    }

    /// Whether drains have closed all listeners, at once or one by one.
    pub(in crate::broker) fn is_drained(&self) -> bool {
        self.open.is_empty() && !self.drained.is_empty()
    }
}

impl OpenListener {
    /// Closes the sockets; keeps their addresses.
    fn without_sockets(mut self) -> Self {
        self.addresses = self.sockets.iter().map(|socket| socket.address().clone()).collect();
        self.sockets.clear();
        self.gateway = None;
        self
    }

    /// Opens the sockets again, with the ports that they had.
    fn open_again(&mut self, shared: &BrokerState) -> Result<(), ListenError> {
        let open = |address: &ListenAddress| ListeningSocket::open_at(address, &self.settings, &shared.config);
        self.sockets = self.addresses.iter().map(open).collect::<Result<_, _>>()?;
        Ok(())
    }
}
