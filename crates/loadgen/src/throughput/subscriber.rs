use std::io;
use std::sync::Arc;

use tenbin_codec::{PacketType, QoS};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::connection::Handover;
use super::frames::append_ack;
use super::inbox::Inbox;
use super::publisher::{Never, unexpected};
use super::window::Window;
use crate::LoadgenError;

/// A subscribing connection: finds the ends of the frames, counts the messages, and acknowledges all that one
/// read brought with one write.
pub(super) struct Subscriber {
    name: String,
    stream: TcpStream,
    window: Arc<Window>,
    inbox: Inbox,
    answers: Vec<u8>,
}

impl Subscriber {
    /// Takes a connection over on the runtime of this thread.
    pub(super) fn new(handover: Handover, window: Arc<Window>) -> io::Result<Self> {
        Ok(Self {
            name: handover.name,
            stream: TcpStream::from_std(handover.stream)?,
            window,
            inbox: Inbox::new(INBOX_SIZE, &handover.received),
            answers: Vec::new(),
        })
    }

    /// Counts until the connection is closed, which is an error before the end of the run.
    pub(super) async fn run(mut self) {
        let Err(error) = self.count().await;
        self.window.fail(LoadgenError::lost(&self.name, error));
    }

    async fn count(&mut self) -> Result<Never, String> {
        loop {
            self.take_frames()?;
            if !self.answers.is_empty() {
                self.stream.write_all(&self.answers).await.map_err(|error| error.to_string())?;
                self.answers.clear();
            }
            // One read, then the other connections' turn: a busy one does not starve them.
            tokio::task::yield_now().await;
            while !self.inbox.fill(&self.stream).map_err(|error| error.to_string())? {
                self.stream.readable().await.map_err(|error| error.to_string())?;
            }
        }
    }

    fn take_frames(&mut self) -> Result<(), String> {
        // Those of one mark follow each other: nearly always there is one call.
        let (mut mark, mut received) = (0, 0);
        let (window, answers) = (&self.window, &mut self.answers);
        self.inbox.drain(|frame| {
            match (frame.packet_type(), frame.qos()) {
                (Some(PacketType::Publish), Some(qos)) => {
                    if frame.mark() != mark {
                        window.receive(mark, received);
                        (mark, received) = (frame.mark(), 0);
                    }
                    received += 1;
                    if qos.is_acknowledged() {
                        let id = frame.publish_packet_id().ok_or("malformed PUBLISH")?;
                        let answer = if qos == QoS::AtLeastOnce { PacketType::PubAck } else { PacketType::PubRec };
                        append_ack(answer, id, answers);
                    }
                }
                (Some(PacketType::PubRel), _) => {
                    let id = frame.ack_packet_id().ok_or("malformed PUBREL")?;
                    append_ack(PacketType::PubComp, id, answers);
                }
                _ => return Err(unexpected(&frame)),
            }
            Ok(())
        })?;
        window.receive(mark, received);
        Ok(())
    }
}

/// Large, so that one read takes all that has come.
const INBOX_SIZE: usize = 256 * 1024;
