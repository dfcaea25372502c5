//! One connection, from CONNACK to its end.

use std::pin::pin;
use std::time::{Duration, Instant};

use tenbin_codec::ReasonCode;
use tenbin_session::Violation;

use super::Task;
use super::link::Link;
use super::pings::Due;
use crate::command::{Control, Reply};
use crate::{ClientErrorKind, DisconnectReason};

/// Why the task stopped serving a connection.
pub(super) enum End {
    /// The application ended the client, and its requests are complete or took too long.
    Asked,
    /// The connection was lost.
    Lost(DisconnectReason),
}

/// State of an end that the application requested.
pub(super) struct Closing {
    /// When the client ends even with open requests.
    deadline: Instant,
    /// `None` if the last handle was dropped.
    reply: Option<Reply<()>>,
}

impl Closing {
    pub(super) fn new(reply: Option<Reply<()>>, now: Instant) -> Self {
        Self { deadline: now + LEAVE_MAX, reply }
    }

    pub(super) fn answer(self, outcome: Result<(), ClientErrorKind>) {
        if let Some(reply) = self.reply {
            let _ = reply.send(outcome);
        }
    }
}

impl Task {
    pub(super) async fn serve(&mut self, link: &mut Link) -> End {
        match self.exchange(link).await {
            Ok(()) => End::Asked,
            Err(reason @ DisconnectReason::Io(_)) => End::Lost(self.last_words(link).unwrap_or(reason)),
            Err(reason) => End::Lost(reason),
        }
    }

    /// Reads packets that arrived before a write failed: a DISCONNECT tells more than the error.
    fn last_words(&mut self, link: &mut Link) -> Option<DisconnectReason> {
        while !self.events.holds_message() && matches!(link.read(), Ok(true)) {
            if let Err(reason) = self.receive(link, Instant::now()) {
                return Some(reason);
            }
        }
        None
    }

    /// Sends, receives and handles timers until the application ends the client.
    async fn exchange(&mut self, link: &mut Link) -> Result<(), DisconnectReason> {
        // Deadlines move with every packet. The timer is reset only for an earlier deadline, and checks the deadlines
        // when it fires.
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let mut armed: Option<Instant> = None;
        self.receive(link, Instant::now())?; // Bytes that arrived with CONNACK.
        loop {
            let now = Instant::now();
            self.send_backlog(link, now);
            link.flush()?;
            if self.has_nothing_left(now) {
                return Ok(());
            }
            let reading = self.is_reading(link);
            let due = [link.pings.next(reading), self.closing.as_ref().map(|closing| closing.deadline)];
            if let Some(due) = due.into_iter().flatten().min()
                && armed.is_none_or(|armed| due < armed)
            {
                timer.as_mut().reset(due.into());
                armed = Some(due);
            }
            tokio::select! {
                // If only the load has changed, the loop computes the deadlines anew.
                read = link.exchange(reading) => {
                    if read? {
                        self.receive(link, Instant::now())?;
                    }
                }
                command = self.commands.recv(), if self.takes_commands(link) => {
                    self.take_commands(link, command, Instant::now());
                }
                Some(acknowledgement) = self.acknowledgements.recv() => {
                    self.acknowledge(Some(link), &acknowledgement);
                    self.take_acknowledgements(link);
                }
                control = self.control.recv(), if self.closing.is_none() => {
                    let reply = match control {
                        Some(Control::Cut(away)) => {
                            self.away = Some(away);
                            return Err(DisconnectReason::Cut);
                        }
                        Some(Control::Leave(reply)) => Some(reply),
                        None => None,
                    };
                    self.closing = Some(Closing::new(reply, Instant::now()));
                    self.commands.close();
                }
                () = self.events.hand_over(), if self.events.is_waiting() => {
                    if !reading && !self.events.holds_message() {
                        let now = Instant::now();
                        link.pings.reading_resumed(now);
                        self.receive(link, now)?;
                    }
                }
                () = &mut timer, if armed.is_some() => {
                    armed = None;
                    self.keep_alive(link)?;
                }
            }
        }
    }

    /// Whether the socket is read: not while a message waits for the application, nor while the broker does not read
    /// the client's replies.
    ///
    /// The broker then notices a slow client.
    fn is_reading(&self, link: &Link) -> bool {
        !self.events.holds_message() && link.replies_leave()
    }

    fn read(&mut self, link: &mut Link) -> Result<(), DisconnectReason> {
        if link.read()? { self.receive(link, Instant::now()) } else { Ok(()) }
    }

    fn take_acknowledgements(&mut self, link: &mut Link) {
        while let Ok(acknowledgement) = self.acknowledgements.try_recv() {
            self.acknowledge(Some(link), &acknowledgement);
            if link.is_congested() {
                return;
            }
        }
    }

    fn keep_alive(&mut self, link: &mut Link) -> Result<(), DisconnectReason> {
        if self.is_reading(link) && link.pings.is_overdue(Instant::now()) {
            self.read(link)?; // The answer may have arrived, if the task was late.
            if self.is_reading(link) && link.pings.is_overdue(Instant::now()) {
                return Err(Violation::PingResponse.into());
            }
        }
        let now = Instant::now();
        while let Some(due) = link.pings.due(link.is_congested(), now) {
            match due {
                Due::Ping(ping) => link.connection.ping(ping, now, &mut link.out),
                Due::Report(report) => self.publish_report(link, &report, now),
            }
        }
        Ok(())
    }

    /// Whether the application ended the client, and all requests are complete or the deadline has passed.
    fn has_nothing_left(&self, now: Instant) -> bool {
        self.closing.as_ref().is_some_and(|closing| self.is_all_done() || closing.deadline <= now)
    }

    fn is_all_done(&self) -> bool {
        !self.commands_open && self.backlog.is_empty() && self.in_flight.is_empty()
    }

    /// Sends the last acknowledgements and DISCONNECT, and closes the connection.
    pub(super) async fn take_leave(&mut self, mut link: Link) -> Result<(), ClientErrorKind> {
        while let Ok(acknowledgement) = self.acknowledgements.try_recv() {
            self.acknowledge(Some(&mut link), &acknowledgement);
        }
        link.connection.disconnect(ReasonCode::Success, &mut link.out);
        link.finish(FINISH_MAX).await.map_err(ClientErrorKind::Lost)?;
        if self.is_all_done() { Ok(()) } else { Err(ClientErrorKind::NoAnswer) }
    }
}

/// How long the end waits for open requests and acknowledgements.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// How long the last write may take, and then the broker's closing.
const FINISH_MAX: Duration = Duration::from_secs(1);
