//! Frames to the byte stream that they carry.

use crate::receiver::{Kind, Part, Receiver};
use crate::{CloseCode, Side, Violation};

/// Receiving half of a connection.
#[derive(Debug)]
pub struct Incoming {
    receiver: Receiver,
    /// Boxed, as few clients send pings.
    control: Option<Box<Control>>,
    end: Option<End>,
}

/// End of the byte stream. Nothing behind it is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The peer sent Close, possibly with a code.
    Close(Option<CloseCode>),
    /// The peer broke a rule.
    Violation(Violation),
}

/// Payloads of control frames.
#[derive(Debug, Default)]
struct Control {
    /// Payload of the frame under way.
    received: Vec<u8>,
    /// Payload of the last ping without an answer.
    ping: Option<Vec<u8>>,
}

impl Incoming {
    /// Returns the receiving half of `side`.
    pub fn new(side: Side) -> Self {
        Self { receiver: Receiver::new(side), control: None, end: None }
    }

    /// Moves the bytes of the stream in the received `bytes` to their beginning, and returns how many there are.
    pub fn unpack(&mut self, bytes: &mut [u8]) -> usize {
        let (mut from, mut length) = (0, 0);
        while self.end.is_none() {
            let part = match self.receiver.next(&mut bytes[from..]) {
                Ok(Some(part)) => part,
                Ok(None) => break,
                Err(violation) => {
                    self.end = Some(End::Violation(violation));
                    break;
                }
            };
            let payload = from + part.payload.start..from + part.payload.end;
            from = payload.end;
            if part.kind == Kind::Data {
                bytes.copy_within(payload.clone(), length);
                length += payload.len();
            } else {
                self.control(&part, &bytes[payload]);
            }
        }
        length
    }

    /// End of the stream, once all bytes before it are unpacked.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Whether a ping has no answer yet.
    pub fn owes_pong(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.ping.is_some())
    }

    /// Payload of the pong that is due. Only the last ping gets an answer, which RFC 6455 §5.5.3 permits.
    pub fn take_pong(&mut self) -> Option<Vec<u8>> {
        let control = self.control.as_mut()?;
        let ping = control.ping.take();
        if control.received.is_empty() {
            self.control = None;
        }
        ping
    }

    fn control(&mut self, part: &Part, payload: &[u8]) {
        let control = self.control.get_or_insert_default();
        // A pong answers nothing, since this crate's users send no pings.
        if part.kind != Kind::Pong {
            control.received.extend_from_slice(payload);
        }
        if !part.is_last {
            return;
        }
        match part.kind {
            Kind::Close => self.end = Some(close(&control.received)),
            Kind::Ping => {
                let ping = control.ping.get_or_insert_default();
                std::mem::swap(ping, &mut control.received);
            }
            Kind::Pong | Kind::Data => {}
        }
        control.received.clear();
        if self.end.is_some() || control.ping.is_none() {
            self.control = None;
        }
    }
}

fn close(payload: &[u8]) -> End {
    match payload {
        [] => End::Close(None),
        [high, low, ..] => {
            let code = CloseCode(u16::from_be_bytes([*high, *low]));
            if code.is_legal() { End::Close(Some(code)) } else { End::Violation(Violation::CloseCode) }
        }
        [_] => End::Violation(Violation::CloseCode),
    }
}
