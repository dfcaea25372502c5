use super::*;

/// A frame of IPv4 and TCP with `payload` bytes in segments of `size`; its checksum is left to the card.
fn tcp(payload: usize, size: u16) -> Vec<u8> {
    let mut frame = vec![0; HEADER];
    frame[0] = NEEDS_CHECKSUM;
    frame[1] = TCP_V4 | ECN;
    frame[4..6].copy_from_slice(&size.to_ne_bytes());
    frame[6..8].copy_from_slice(&34_u16.to_ne_bytes());
    frame[8..10].copy_from_slice(&16_u16.to_ne_bytes());
    frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0x08, 0x00]);
    let total = (40 + payload) as u16;
    frame.extend([
        0x45,
        0,
        (total >> 8) as u8,
        total as u8,
        0xff,
        0xff,
        0x40,
        0,
        64,
        6,
        0,
        0,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
    ]);
    frame.extend([0x1f, 0x40, 0x1f, 0x41, 0xff, 0xff, 0xff, 0x00, 0, 0, 0, 9, 0x50, 0x99, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|at| (at % 251) as u8));
    frame
}

/// True if IP and TCP headers of the packet have valid checksums.
fn is_valid(packet: &[u8]) -> bool {
    let (ip, tcp) = (HEADER + 14, HEADER + 34);
    let segment = &packet[tcp..];
    let pseudo = sum(&packet[ip + 12..ip + 20]) + 6 + segment.len() as u64;
    folded(sum(&packet[ip..tcp])) == 0xffff && folded(sum(segment) + pseudo) == 0xffff
}

#[test]
fn split_packets_have_the_headers_that_a_card_would_give() {
    let frame = tcp(3_001, 1_000);
    assert_eq!(packets(&frame), 4);
    let mut split = split(&frame).map(Cow::into_owned).collect::<Vec<_>>();
    assert_eq!(split.len(), 4);
    let mut payload = Vec::new();
    for (at, packet) in split.iter_mut().enumerate() {
        assert_eq!(packets(packet), 1);
        complete_checksum(packet);
        assert!(is_valid(packet), "packet {at}");
        assert_eq!(packet[0] & NEEDS_CHECKSUM, 0);
        assert_eq!(usize::from(big(packet, HEADER + 16)), packet.len() - HEADER - 14);
        assert_eq!(big(packet, HEADER + 18), 0xffff_u16.wrapping_add(at as u16), "identification");
        let sequence = u32::from_be_bytes(packet[HEADER + 38..HEADER + 42].try_into().expect("four bytes"));
        assert_eq!(sequence, 0xffff_ff00_u32.wrapping_add(at as u32 * 1_000));
        let flags = [0x90, 0x10, 0x10, 0x19][at];
        assert_eq!(packet[HEADER + 47], flags, "flags of packet {at}");
        payload.extend_from_slice(&packet[HEADER + 54..]);
    }
    assert_eq!(payload, frame[HEADER + 54..]);
}

#[test]
fn frames_of_one_packet_pass_unchanged() {
    let mut frame = tcp(500, 0);
    frame[1] = NO_SEGMENTS;
    assert_eq!(split(&frame).map(Cow::into_owned).collect::<Vec<_>>(), [frame.clone()]);
    // A header that promises segments which are not there.
    for cut in 0..HEADER + 54 {
        let short = &tcp(500, 100)[..cut];
        assert_eq!(split(short).count(), 1);
        let _ = (packets(short), wire_bytes(short), destination(short));
    }
}

#[test]
fn an_inverted_bit_breaks_the_completed_checksum() {
    let mut frame = tcp(500, 0);
    frame[1] = NO_SEGMENTS;
    let mut packet = frame.clone();
    packet[HEADER + 24..HEADER + 26].copy_from_slice(&[0, 0]);
    let header = !folded(sum(&packet[HEADER + 14..HEADER + 34]));
    packet[HEADER + 24..HEADER + 26].copy_from_slice(&header.to_be_bytes());
    let pseudo = folded(sum(&packet[HEADER + 26..HEADER + 34]) + 6 + 520);
    packet[HEADER + 50..HEADER + 52].copy_from_slice(&pseudo.to_be_bytes());
    complete_checksum(&mut packet);
    assert!(is_valid(&packet));
    for bit in [0, 200, 4_000] {
        let mut broken = packet.clone();
        invert_bit(&mut broken, |bits| bit.min(bits - 1));
        assert!(!is_valid(&broken), "bit {bit}");
    }
}

#[test]
fn udp_over_ipv6_is_split_too() {
    let mut frame = vec![NEEDS_CHECKSUM, UDP, 0, 0];
    frame.extend(100_u16.to_ne_bytes());
    frame.extend(54_u16.to_ne_bytes());
    frame.extend(6_u16.to_ne_bytes());
    frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0x86, 0xdd]);
    frame.extend([0x60, 0, 0, 0, 1, 2, 17, 64]);
    frame.extend([0xfd; 32]);
    frame.extend([1, 2, 3, 4, 0, 0, 0, 0]);
    frame.extend([7; 250]);
    let lengths =
        split(&frame).map(|packet| (big(&packet, HEADER + 18), big(&packet, HEADER + 58))).collect::<Vec<_>>();
    assert_eq!(lengths, [(108, 108), (108, 108), (58, 58)]);
    for packet in split(&frame) {
        let mut packet = packet.into_owned();
        complete_checksum(&mut packet);
        let pseudo = sum(&packet[HEADER + 22..HEADER + 54]) + 17 + (packet.len() - HEADER - 54) as u64;
        assert_eq!(folded(sum(&packet[HEADER + 54..]) + pseudo), 0xffff);
    }
}
