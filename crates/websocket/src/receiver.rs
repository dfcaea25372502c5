//! Bytes to parts of frames.

use std::ops::Range;

use crate::frame::{FIN, LENGTH_16, LENGTH_64, MASKED, RESERVED};
use crate::{CONTROL_MAX, Mask, Side, Violation};

/// Position in the peer's frames. It holds no bytes of them.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// Bytes of the payload that are still to come; in the header, the length as far as it is known.
    left: u64,
    mask: Mask,
    step: FrameStep,
    kind: Kind,
    message: MessageState,
    side: Side,
}

/// Next byte of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameStep {
    /// Opcode and flags.
    Start,
    /// Mask bit and short length.
    Length,
    /// Missing bytes of the long length.
    LongLength(u8),
    /// Missing bytes of the mask.
    Mask(u8),
    Payload,
}

/// Kind of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Data,
    Close,
    Ping,
    Pong,
}

/// Whether the next data frame begins a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageState {
    Complete,
    Fragmented,
}

/// Part of a frame.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) kind: Kind,
    /// Bytes of the payload, unmasked, in the input. Its end is the end of decoded input.
    pub(crate) payload: Range<usize>,
    /// Whether the frame ends here.
    pub(crate) is_last: bool,
}

impl Receiver {
    pub(crate) fn new(side: Side) -> Self {
        let (step, kind, message) = (FrameStep::Start, Kind::Data, MessageState::Complete);
        Self { left: 0, mask: Mask::default(), step, kind, message, side }
    }

    /// Decodes and unmasks the next part of a frame. `None`: all of the input is decoded.
    pub(crate) fn next(&mut self, input: &mut [u8]) -> Result<Option<Part>, Violation> {
        let mut at = 0;
        while self.step != FrameStep::Payload {
            let Some(&byte) = input.get(at) else { return Ok(None) };
            self.header_byte(byte)?;
            at += 1;
        }
        if at == input.len() && self.left > 0 {
            return Ok(None);
        }
        let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len() - at);
        let payload = at..at + len;
        self.mask.apply(&mut input[payload.clone()]);
        self.left -= len as u64;
        let is_last = self.left == 0;
        if is_last {
            self.step = FrameStep::Start;
        }
        Ok(Some(Part { kind: self.kind, payload, is_last }))
    }

    fn header_byte(&mut self, byte: u8) -> Result<(), Violation> {
        match self.step {
            FrameStep::Start => {
                self.begin(byte)?;
                self.step = FrameStep::Length;
            }
            FrameStep::Length => {
                self.check_mask(byte)?;
                self.step = match byte & !MASKED {
                    LENGTH_16 | LENGTH_64 if self.kind != Kind::Data => return Err(Violation::Control),
                    LENGTH_16 => FrameStep::LongLength(2),
                    LENGTH_64 => FrameStep::LongLength(8),
                    length => {
                        debug_assert!(usize::from(length) <= CONTROL_MAX);
                        self.left = length.into();
                        self.after_length()
                    }
                };
            }
            FrameStep::LongLength(missing) => {
                self.left = self.left << 8 | u64::from(byte);
                if missing == 8 && byte & 0x80 != 0 {
                    return Err(Violation::Length);
                }
                self.step = if missing > 1 { FrameStep::LongLength(missing - 1) } else { self.after_length() };
            }
            FrameStep::Mask(missing) => {
                self.mask.0[4 - usize::from(missing)] = byte;
                self.step = if missing > 1 { FrameStep::Mask(missing - 1) } else { self.after_header() };
            }
            FrameStep::Payload => {}
        }
        Ok(())
    }

    /// Reads opcode and flags.
    fn begin(&mut self, byte: u8) -> Result<(), Violation> {
        let is_final = byte & FIN != 0;
        if byte & RESERVED != 0 {
            return Err(Violation::Reserved);
        }
        self.left = 0;
        self.kind = match (byte & 0x0F, self.message) {
            (0x0, MessageState::Fragmented) | (0x2, MessageState::Complete) => Kind::Data,
            (0x0, MessageState::Complete) | (0x2, MessageState::Fragmented) => return Err(Violation::Fragment),
            (0x1, _) => return Err(Violation::Text),
            (0x8, _) => Kind::Close,
            (0x9, _) => Kind::Ping,
            (0xA, _) => Kind::Pong,
            _ => return Err(Violation::Reserved),
        };
        match (self.kind, is_final) {
            (Kind::Data, true) => self.message = MessageState::Complete,
            (Kind::Data, false) => self.message = MessageState::Fragmented,
            (_, false) => return Err(Violation::Control),
            (_, true) => {}
        }
        Ok(())
    }

    fn check_mask(&self, byte: u8) -> Result<(), Violation> {
        match (self.side, byte & MASKED != 0) {
            (Side::Server, false) => Err(Violation::Unmasked),
            (Side::Client, true) => Err(Violation::Masked),
            _ => Ok(()),
        }
    }

    fn after_length(&self) -> FrameStep {
        if self.side == Side::Server { FrameStep::Mask(4) } else { self.after_header() }
    }

    /// An empty data frame has no part.
    fn after_header(&self) -> FrameStep {
        if self.left == 0 && self.kind == Kind::Data { FrameStep::Start } else { FrameStep::Payload }
    }
}
