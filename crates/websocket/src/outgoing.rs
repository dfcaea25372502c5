//! A byte stream to frames.

use crate::frame::Header;
use crate::{CONTROL_MAX, CloseCode, Opcode, append_frame};

/// Sending half of a server's connection. It holds headers and control frames, never a payload.
///
/// Two methods tell which bytes come next on the wire: [`Outgoing::control`], then [`Outgoing::header`] with the
/// stream's bytes behind it.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// The frame of data under way.
    frame: Option<Frame>,
    /// The control frame under way and its bytes sent. Boxed, as it is rare.
    control: Option<Box<(Vec<u8>, usize)>>,
}

/// A frame of which not all bytes were sent.
#[derive(Debug)]
struct Frame {
    header: Header,
    header_sent: u8,
    /// Bytes of the payload that were not sent.
    left: u64,
}

impl Outgoing {
    /// Whether a frame of data is under way, so that a control frame has to wait.
    pub fn is_within_frame(&self) -> bool {
        self.frame.is_some()
    }

    /// Whether a control frame is under way.
    pub fn is_within_control(&self) -> bool {
        self.control.is_some()
    }

    /// Begins a control frame. No other frame may be under way.
    pub fn begin_control(&mut self, opcode: Opcode, payload: &[u8]) {
        debug_assert!(!self.is_within_frame() && !self.is_within_control() && payload.len() <= CONTROL_MAX);
        let mut frame = Vec::with_capacity(payload.len() + 2);
        append_frame(&mut frame, opcode, payload, None);
        self.control = Some(Box::new((frame, 0)));
    }

    /// Begins a Close frame.
    pub fn begin_close(&mut self, code: Option<CloseCode>) {
        match code {
            Some(CloseCode(code)) => self.begin_control(Opcode::Close, &code.to_be_bytes()),
            None => self.begin_control(Opcode::Close, &[]),
        }
    }

    /// Unsent bytes of the control frame under way.
    pub fn control(&self) -> Option<&[u8]> {
        self.control.as_ref().map(|control| &control.0[control.1..])
    }

    /// Counts sent bytes of the control frame.
    pub fn control_sent(&mut self, bytes: usize) {
        let Some(control) = &mut self.control else { return };
        control.1 += bytes;
        if control.1 >= control.0.len() {
            self.control = None;
        }
    }

    /// Unsent bytes of the header, and how many bytes of the stream follow it. `offered` is the length of a new frame,
    /// if none is under way, and must not be 0.
    pub fn header(&mut self, offered: usize) -> (&[u8], usize) {
        let frame = self.frame.get_or_insert_with(|| Frame {
            header: Header::new(Opcode::Binary, offered as u64, None),
            header_sent: 0,
            left: offered as u64,
        });
        (&frame.header.bytes()[usize::from(frame.header_sent)..], frame.left as usize)
    }

    /// Counts sent bytes of header and stream; returns how many of the stream.
    pub fn sent(&mut self, bytes: usize) -> usize {
        let Some(frame) = &mut self.frame else { return 0 };
        let header = bytes.min(frame.header.bytes().len() - usize::from(frame.header_sent));
        frame.header_sent += header as u8;
        let payload = bytes - header;
        frame.left -= payload as u64;
        if frame.left == 0 {
            self.frame = None;
        }
        payload
    }
}
