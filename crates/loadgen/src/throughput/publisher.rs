use std::io;
use std::sync::Arc;
use std::time::Duration;

use tenbin_codec::{PacketType, QoS};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::connection::Handover;
use super::frames::{Frame, NoFrame, PublishFrame, append_ack};
use super::inbox::Inbox;
use super::window::{Claim, Phase, Window};
use crate::LoadgenError;

/// A publishing connection: sends blocks of frames while the window is open, and completes the handshakes of
/// QoS 1 and 2 with a limited number of messages in flight.
pub(super) struct Publisher {
    name: String,
    stream: TcpStream,
    window: Arc<Window>,
    frame: PublishFrame,
    qos: QoS,
    /// Messages that go out in one block.
    block: u64,
    /// Messages that may be unacknowledged; no limit at QoS 0.
    in_flight_limit: u64,
    in_flight: u64,
    packet_id: u16,
    inbox: Inbox,
    /// Answers to what came, which go before the next block.
    answers: Vec<u8>,
    out: Vec<u8>,
    written: usize,
    /// Messages at the end of `out`.
    messages_in_out: u64,
}

impl Publisher {
    /// Takes a connection over on the runtime of this thread.
    pub(super) fn new(
        handover: Handover,
        window: Arc<Window>,
        frame: PublishFrame,
        qos: QoS,
        block: u64,
    ) -> io::Result<Self> {
        let in_flight_limit =
            if qos.is_acknowledged() { IN_FLIGHT.min(handover.receive_maximum).into() } else { u64::MAX };
        Ok(Self {
            name: handover.name,
            stream: TcpStream::from_std(handover.stream)?,
            window,
            qos,
            block,
            in_flight_limit,
            in_flight: 0,
            packet_id: 0,
            inbox: Inbox::new(INBOX_SIZE, &handover.received),
            answers: Vec::new(),
            out: Vec::with_capacity(frame.len() * block as usize),
            written: 0,
            messages_in_out: 0,
            frame,
        })
    }

    /// Publishes until the connection is closed, which is an error before the end of the run.
    pub(super) async fn run(mut self) {
        let Err(error) = self.publish().await;
        let unsent = (self.out.len() - self.written).div_ceil(self.frame.len()) as u64;
        self.window.unclaim(unsent.min(self.messages_in_out));
        self.window.fail(LoadgenError::lost(&self.name, error));
    }

    async fn publish(&mut self) -> Result<Never, String> {
        loop {
            if self.is_written() {
                self.refill();
            }
            let wrote = self.write()?;
            let read = self.inbox.fill(&self.stream).map_err(|error| error.to_string())?;
            if read {
                self.take_frames()?;
            }
            if wrote || read {
                tokio::task::yield_now().await;
            } else {
                self.wait().await?;
            }
        }
    }

    /// Fills `out` with answers and as many messages as may go.
    fn refill(&mut self) {
        self.out.clear();
        self.written = 0;
        self.out.append(&mut self.answers);
        let wanted = self.block.min(self.in_flight_limit - self.in_flight);
        let Claim { count, mark } = self.window.claim(wanted);
        for _ in 0..count {
            self.packet_id = self.packet_id.checked_add(1).unwrap_or(1);
            self.frame.append(self.packet_id, mark, &mut self.out);
        }
        self.messages_in_out = count;
        if self.qos.is_acknowledged() {
            self.in_flight += count;
        }
    }

    fn write(&mut self) -> Result<bool, String> {
        if self.is_written() {
            return Ok(false);
        }
        match self.stream.try_write(&self.out[self.written..]) {
            Ok(count) => {
                self.written += count;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    fn take_frames(&mut self) -> Result<(), String> {
        let (mut completed, mut refused) = (0, 0);
        let answers = &mut self.answers;
        self.inbox.drain(|frame| {
            match (frame.packet_type(), frame.ack_packet_id()) {
                (Some(PacketType::PubRec), Some(id)) if !frame.is_refusal() => {
                    append_ack(PacketType::PubRel, id, answers);
                }
                (Some(PacketType::PubAck | PacketType::PubRec), Some(_)) => {
                    completed += 1;
                    refused += u64::from(frame.is_refusal());
                }
                (Some(PacketType::PubComp), Some(_)) => completed += 1,
                _ => return Err(unexpected(&frame)),
            }
            Ok(())
        })?;
        self.in_flight = self.in_flight.saturating_sub(completed);
        self.window.refuse(refused);
        Ok(())
    }

    /// Waits for whatever lets the connection go on.
    async fn wait(&self) -> Result<(), String> {
        let ready = |interest| async move { self.stream.ready(interest).await.map(drop) };
        let waited = if !self.is_written() {
            ready(Interest::READABLE | Interest::WRITABLE).await
        } else if self.in_flight == self.in_flight_limit || self.window.phase() != Phase::Running {
            ready(Interest::READABLE).await
        } else {
            // The window is closed; the other thread does not spend time on telling when it opens.
            tokio::time::timeout(WINDOW_PAUSE, ready(Interest::READABLE)).await.unwrap_or(Ok(()))
        };
        waited.map_err(|error| error.to_string())
    }

    fn is_written(&self) -> bool {
        self.written == self.out.len()
    }
}

/// What else a broker may send: a DISCONNECT, or what the run never asked for.
pub(super) fn unexpected(frame: &Frame<'_>) -> String {
    match (frame.packet_type(), frame.body.first()) {
        (Some(PacketType::Disconnect), Some(reason)) => format!("DISCONNECT with reason {reason:#04x}"),
        (Some(packet_type), _) => format!("unexpected {packet_type}"),
        (None, _) => "malformed packet".to_owned(),
    }
}

impl From<NoFrame> for String {
    fn from(_: NoFrame) -> Self {
        "malformed packet".to_owned()
    }
}

/// A loop that ends with an error only.
pub(super) enum Never {}

/// Messages above QoS 0 that a publisher has unacknowledged, if the broker allows so many.
const IN_FLIGHT: u16 = 100;

/// Acknowledgements are small.
const INBOX_SIZE: usize = 16 * 1024;

/// How often a closed window is looked at. At a million messages a second, a thousand of the window's 20,000.
const WINDOW_PAUSE: Duration = Duration::from_millis(1);
