//! The receivers, and the relay of a client's frames to them.

use std::io;

use crate::connection::Connection;
use crate::frame::{self, Publish, malformed, word};

/// Receivers, by the indices of their connections.
#[derive(Debug, Default)]
pub(crate) struct Receivers {
    /// Receivers of every message.
    each: Vec<usize>,
    /// Members of the share group, in rotation.
    group: Vec<usize>,
    /// The member whose turn it is.
    turn: usize,
    /// Messages of the present read.
    messages: Vec<Publish>,
}

/// All connections, and those to be written at the end of the lap.
struct Lap<'a> {
    connections: &'a mut [Option<Connection>],
    to_write: &'a mut Vec<usize>,
}

impl Receivers {
    /// Handles all complete frames among the bytes that a client sent. The rest stays with its connection.
    ///
    /// # Errors
    /// The client breaks the protocol, or it has sent DISCONNECT.
    pub(crate) fn take(
        &mut self,
        from: usize,
        bytes: &[u8],
        connections: &mut [Option<Connection>],
        to_write: &mut Vec<usize>,
    ) -> io::Result<()> {
        let mut lap = Lap { connections, to_write };
        let (mut start, mut is_one_run, mut is_over) = (0, true, false);
        self.messages.clear();
        while let Some((size, header)) = frame::size(&bytes[start..])?
            && start + size <= bytes.len()
        {
            let end = start + size;
            if bytes[start] >> 4 == PUBLISH {
                let message = Publish::of(bytes, start, header, end)?;
                is_one_run &= message.id_at.is_none() && self.messages.last().is_none_or(|last| last.end == start);
                if let Some(id_at) = message.id_at {
                    let answer = if bytes[start] & EXACTLY_ONCE == 0 { PUBACK << 4 } else { PUBREC << 4 };
                    lap.send(from, &[answer, 2, bytes[id_at], bytes[id_at + 1]]);
                }
                self.messages.push(message);
            } else if bytes[start] >> 4 == DISCONNECT {
                is_over = true;
            } else {
                self.answer(from, bytes[start] >> 4, &bytes[start + header..end], &mut lap)?;
            }
            start = end;
        }
        self.deliver(bytes, is_one_run, &mut lap);
        if is_over {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(connection) = lap.at(from) {
            connection.rest.extend_from_slice(&bytes[start..]);
        }
        Ok(())
    }

    pub(crate) fn leave(&mut self, index: usize) {
        for list in [&mut self.each, &mut self.group] {
            list.retain(|other| *other != index);
        }
    }

    /// Copies the messages of this read, which lie in `bytes`, to their receivers. `is_one_run`: they are contiguous.
    fn deliver(&mut self, bytes: &[u8], is_one_run: bool, lap: &mut Lap<'_>) {
        let (Some(first), Some(last)) = (self.messages.first(), self.messages.last()) else { return };
        for &receiver in &self.each {
            if is_one_run {
                lap.send(receiver, &bytes[first.start..last.end]);
            } else {
                self.messages.iter().for_each(|message| lap.publish(receiver, bytes, message));
            }
        }
        let members = self.group.len();
        if members == 0 {
            return;
        }
        let runs = members.min(self.messages.len());
        for place in 0..runs {
            let receiver = self.group[(self.turn + place) % members];
            self.messages.iter().skip(place).step_by(members).for_each(|message| lap.publish(receiver, bytes, message));
        }
        self.turn = (self.turn + self.messages.len()) % members;
    }

    /// Answers a packet that is not a PUBLISH.
    fn answer(&mut self, from: usize, packet_type: u8, body: &[u8], lap: &mut Lap<'_>) -> io::Result<()> {
        match packet_type {
            CONNECT => {
                // The version follows the protocol name, which is "MQTT" since 3.1.1.
                let is_v5 = *body.get(6).ok_or_else(malformed)? == 5;
                lap.at(from).into_iter().for_each(|connection| connection.is_v5 = is_v5);
                lap.send(from, if is_v5 { &[0x20, 3, 0, 0, 0] } else { &[0x20, 2, 0, 0] });
            }
            SUBSCRIBE => self.subscribe(from, body, lap)?,
            PUBREC => lap.echo(from, 0x62, body),
            PUBREL => lap.echo(from, PUBCOMP << 4, body),
            PINGREQ => lap.send(from, &[0xD0, 0]),
            PUBACK | PUBCOMP => {}
            _ => return Err(malformed()),
        }
        Ok(())
    }

    /// Grants every filter with the requested QoS. Only the prefix `$share` of a filter matters.
    fn subscribe(&mut self, from: usize, body: &[u8], lap: &mut Lap<'_>) -> io::Result<()> {
        let is_v5 = lap.at(from).is_some_and(|connection| connection.is_v5);
        let mut at = 2;
        if is_v5 {
            // As in a frame, the length follows one byte, which is ignored.
            let (end, _) = frame::size(body.get(1..).ok_or_else(malformed)?)?.ok_or_else(malformed)?;
            at = 1 + end;
        }
        let mut granted = Vec::new();
        while at < body.len() {
            let end = at + 2 + usize::from(word(body, at).ok_or_else(malformed)?);
            let (filter, options) = (body.get(at + 2..end), body.get(end));
            let (filter, options) = filter.zip(options).ok_or_else(malformed)?;
            let list = if filter.starts_with(b"$share/") { &mut self.group } else { &mut self.each };
            if !list.contains(&from) {
                list.push(from);
            }
            granted.push(options & 3);
            at = end + 1;
        }
        let properties: &[u8] = if is_v5 { &[0] } else { &[] };
        let length = u8::try_from(2 + properties.len() + granted.len()).map_err(|_| malformed())?;
        let id = body.get(..2).ok_or_else(malformed)?;
        lap.send(from, &[&[0x90, length], id, properties, &granted].concat());
        Ok(())
    }
}

impl Lap<'_> {
    fn at(&mut self, index: usize) -> Option<&mut Connection> {
        self.connections[index].as_mut()
    }

    /// Gives the connection that gets bytes, and lets it be written at the end of the lap.
    fn receiver(&mut self, index: usize) -> Option<&mut Connection> {
        let connection = self.connections[index].as_mut()?;
        if !std::mem::replace(&mut connection.is_written, true) {
            self.to_write.push(index);
        }
        Some(connection)
    }

    fn send(&mut self, to: usize, bytes: &[u8]) {
        self.receiver(to).into_iter().for_each(|connection| connection.out.extend_from_slice(bytes));
    }

    /// Answers with the same Packet Identifier.
    fn echo(&mut self, to: usize, first_byte: u8, body: &[u8]) {
        if let Some(id) = body.first_chunk::<2>() {
            self.send(to, &[first_byte, 2, id[0], id[1]]);
        }
    }

    #[inline]
    fn publish(&mut self, to: usize, bytes: &[u8], message: &Publish) {
        let Some(connection) = self.receiver(to) else { return };
        let at = connection.out.len();
        connection.out.extend_from_slice(&bytes[message.start..message.end]);
        if let Some(id_at) = message.id_at {
            connection.id = connection.id.checked_add(1).unwrap_or(1);
            let id_at = at + id_at - message.start;
            connection.out[id_at..id_at + 2].copy_from_slice(&connection.id.to_be_bytes());
        }
    }
}

const CONNECT: u8 = 1;
const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const PUBREC: u8 = 5;
const PUBREL: u8 = 6;
const PUBCOMP: u8 = 7;
const SUBSCRIBE: u8 = 8;
const PINGREQ: u8 = 12;
const DISCONNECT: u8 = 14;

/// The QoS bit of a PUBLISH that is set at QoS 2.
const EXACTLY_ONCE: u8 = 0b0100;
