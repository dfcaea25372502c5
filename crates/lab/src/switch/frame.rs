//! Ethernet frames as TAP devices and packet sockets pass them: behind a header that tells of the offloads.

use std::borrow::Cow;

/// Size of `virtio_net_hdr`, which precedes each frame.
pub(crate) const HEADER: usize = 10;
/// Room for the largest frame with its header: 64 KiB of IP, and Ethernet.
pub(crate) const MOST: usize = HEADER + 14 + 65_536 + 64;

const NEEDS_CHECKSUM: u8 = 1;
const NO_SEGMENTS: u8 = 0;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;
/// Bit beside the kinds above: the TCP segment carries ECN's CWR.
const ECN: u8 = 0x80;

const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const FIN_AND_PUSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Destination of a frame. None for a frame that is too short to have one.
pub(crate) fn destination(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(HEADER + ETHERNET - 1)?;
    frame[HEADER..HEADER + 6].try_into().ok()
}

/// Source of a frame, as [`destination`].
pub(crate) fn source(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(HEADER + ETHERNET - 1)?;
    frame[HEADER + 6..HEADER + 12].try_into().ok()
}

/// Number of packets that the frame is on a wire.
pub(crate) fn packets(frame: &[u8]) -> u64 {
    let parts = Parts::of(frame);
    parts.map_or(1, |parts| (frame.len() - parts.payload).div_ceil(parts.size).max(1) as u64)
}

/// Bytes of the frame on a wire, without preamble; headers of a segmented frame count once.
pub(crate) fn wire_bytes(frame: &[u8]) -> u64 {
    frame.len().saturating_sub(HEADER) as u64
}

/// The frame as single packets. A kernel leaves segments of one connection whole up to 64 KiB; this splits them as a
/// network card would.
pub(crate) fn split(frame: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let parts = Parts::of(frame);
    let payload = parts.as_ref().map_or(&[][..], |parts| &frame[parts.payload..]);
    let whole = parts.is_none().then_some(Cow::Borrowed(frame));
    let chunks = parts.map(|parts| {
        let count = payload.len().div_ceil(parts.size);
        let chunks = payload.chunks(parts.size).enumerate();
        chunks.map(move |(at, chunk)| Cow::Owned(parts.packet(frame, at, at + 1 == count, chunk)))
    });
    whole.into_iter().chain(chunks.into_iter().flatten())
}

/// Completes a checksum that the sender's kernel left to its network card. Receivers then verify it.
pub(crate) fn complete_checksum(frame: &mut [u8]) {
    if frame[0] & NEEDS_CHECKSUM == 0 {
        return;
    }
    let (start, offset) = (HEADER + number(frame, 6), number(frame, 8));
    if start + offset + 2 > frame.len() {
        return;
    }
    let checksum = match !folded(sum(&frame[start..])) {
        // 0 means "no checksum" in UDP; the two are equal in the arithmetic.
        0 => 0xffff,
        checksum => checksum,
    };
    frame[start + offset..start + offset + 2].copy_from_slice(&checksum.to_be_bytes());
    frame[0] &= !NEEDS_CHECKSUM;
    frame[6..HEADER].fill(0);
}

/// Inverts one bit behind the Ethernet header, which `draw` chooses by a number below its argument.
pub(crate) fn invert_bit(frame: &mut [u8], draw: impl FnOnce(usize) -> usize) {
    let bits = frame.len().saturating_sub(HEADER + ETHERNET) * 8;
    if bits > 0 {
        let bit = draw(bits);
        frame[HEADER + ETHERNET + bit / 8] ^= 1 << (bit % 8);
    }
}

/// Where the parts of a frame of several segments are, counted from the frame's header.
struct Parts {
    is_tcp: bool,
    is_v4: bool,
    transport: usize,
    payload: usize,
    /// Payload of each packet but the last.
    size: usize,
}

impl Parts {
    /// None for a frame that is one packet, and for kinds that need no splitting.
    fn of(frame: &[u8]) -> Option<Self> {
        let kind = frame.get(1)? & !ECN;
        if kind == NO_SEGMENTS || frame[0] & NEEDS_CHECKSUM == 0 {
            return None;
        }
        let transport = HEADER + number(frame, 6);
        let is_tcp = kind == TCP_V4 || kind == TCP_V6;
        let ethertype = frame.get(HEADER + 12..HEADER + ETHERNET)?;
        let is_v4 = ethertype == IPV4;
        let least = HEADER + ETHERNET + if is_v4 { 20 } else { 40 };
        if !(is_tcp || kind == UDP) || !(is_v4 || ethertype == IPV6) || transport < least {
            return None;
        }
        let length = if is_tcp { usize::from(*frame.get(transport + 12)? >> 4) * 4 } else { 8 };
        let payload = transport + length;
        let size = number(frame, 4);
        let fits = size > 0 && payload < frame.len() && (!is_tcp || length >= 20);
        fits.then_some(Self { is_tcp, is_v4, transport, payload, size })
    }

    /// Packet number `at` with the payload `chunk`.
    fn packet(&self, frame: &[u8], at: usize, last: bool, chunk: &[u8]) -> Vec<u8> {
        let mut packet = Vec::with_capacity(self.payload + chunk.len());
        packet.extend_from_slice(&frame[..self.payload]);
        packet.extend_from_slice(chunk);
        packet[1] = NO_SEGMENTS;
        packet[4..6].fill(0);
        let ip = HEADER + ETHERNET;
        let segment = packet.len() - self.transport;
        if self.is_v4 {
            let length = (packet.len() - ip) as u16;
            let identification = (big(&packet, ip + 4)).wrapping_add(at as u16);
            packet[ip + 2..ip + 4].copy_from_slice(&length.to_be_bytes());
            packet[ip + 4..ip + 6].copy_from_slice(&identification.to_be_bytes());
            packet[ip + 10..ip + 12].fill(0);
            let checksum = !folded(sum(&packet[ip..self.transport]));
            packet[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            let length = (packet.len() - ip - 40) as u16;
            packet[ip + 4..ip + 6].copy_from_slice(&length.to_be_bytes());
        }
        let checksum_at = self.transport + if self.is_tcp { 16 } else { 6 };
        if self.is_tcp {
            let sequence = self.transport + 4;
            let before = u32::from(big(&packet, sequence)) << 16 | u32::from(big(&packet, sequence + 2));
            let number = before.wrapping_add((at * self.size) as u32);
            packet[sequence..sequence + 4].copy_from_slice(&number.to_be_bytes());
            let flags = self.transport + 13;
            packet[flags] &= if last { 0xff } else { !FIN_AND_PUSH };
            packet[flags] &= if at == 0 { 0xff } else { !CWR };
        } else {
            packet[self.transport + 4..self.transport + 6].copy_from_slice(&(segment as u16).to_be_bytes());
        }
        // As before, the checksum holds the sum of the pseudo header alone; `NEEDS_CHECKSUM` stays set.
        let addresses = if self.is_v4 { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
        let protocol = if self.is_tcp { 6 } else { 17 };
        let pseudo = folded(sum(&packet[addresses]) + protocol + segment as u64);
        packet[checksum_at..checksum_at + 2].copy_from_slice(&pseudo.to_be_bytes());
        packet
    }
}

/// A number of `virtio_net_hdr`, in the machine's own order of bytes.
fn number(frame: &[u8], at: usize) -> usize {
    frame.get(at..at + 2).map_or(0, |bytes| usize::from(u16::from_ne_bytes([bytes[0], bytes[1]])))
}

/// A number of a network header.
fn big(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Sum of the Internet checksum, before it is folded and inverted.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(4);
    let rest = words.remainder();
    let mut total: u64 = words.map(|word| u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]))).sum();
    for (at, byte) in rest.iter().enumerate() {
        total += u64::from(*byte) << if at % 2 == 0 { 8 } else { 0 };
    }
    // The halves of the 32-bit words are the 16-bit words of the checksum.
    (total >> 32) + (total & 0xffff_ffff)
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
