//! Damaged frames and requests: the server's half never panics, and never invents bytes.
//!
//! `TENBIN_MUTATION_SECONDS` sets the time; half a second by default. `TENBIN_MUTATION_SEED` repeats a run.
#![allow(clippy::print_stderr, clippy::disallowed_methods, reason = "a run takes some time and tells its seed")]

use std::time::{Duration, Instant};

use tenbin_websocket::{ClientUpgrade, Incoming, Mask, Opcode, Rules, Side, UPGRADE_MAX, accept, append_frame};

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Changes, removes, inserts, doubles or swaps up to four times.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(5) {
            let (at, to) = (self.below(bytes.len()), self.below(bytes.len()));
            let part = at.min(to)..at.max(to).min(at.min(to) + 40);
            match self.below(6) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = self.next() as u8,
                2 => drop(bytes.drain(part)),
                3 => bytes.insert(at, self.next() as u8),
                4 => {
                    let doubled = bytes[part].to_vec();
                    bytes.splice(to..to, doubled);
                }
                5 if !bytes.is_empty() => bytes.swap(at, to),
                _ => bytes.truncate(at),
            }
        }
    }
}

fn variable(name: &str) -> Option<f64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Calls `check` with damaged bytes until the time is over.
fn mutate(originals: &[Vec<u8>], check: impl Fn(&[u8], &mut Dice)) {
    let seconds = Duration::from_secs_f64(variable("TENBIN_MUTATION_SECONDS").unwrap_or(0.5));
    let clock = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
    let seed = variable("TENBIN_MUTATION_SEED").map_or(clock, |seed| seed as u64) & 0xFFFF_FFFF_FFFF;
    eprintln!("TENBIN_MUTATION_SEED={seed}");
    let (begin, mut dice, mut rounds) = (Instant::now(), Dice(seed), 0_u64);
    while rounds == 0 || begin.elapsed() < seconds {
        for _ in 0..100 {
            let mut bytes = originals[dice.below(originals.len())].clone();
            dice.damage(&mut bytes);
            check(&bytes, &mut dice);
            rounds += 1;
        }
    }
    eprintln!("{rounds} rounds");
}

#[test]
fn damaged_frames_are_judged_alike_in_any_pieces() {
    let mask = Some(Mask([0x11, 0x22, 0x33, 0x44]));
    let originals = [0, 1, 3, 125, 126, 200, 66_000].map(|length| {
        let mut bytes = Vec::new();
        append_frame(&mut bytes, Opcode::Ping, b"ping", mask);
        append_frame(&mut bytes, Opcode::Binary, &vec![7; length], mask);
        bytes[10] &= 0x7F;
        append_frame(&mut bytes, Opcode::Pong, b"", mask);
        let fragment = bytes.len();
        append_frame(&mut bytes, Opcode::Binary, &[8; 9], mask);
        bytes[fragment] = 0x80;
        append_frame(&mut bytes, Opcode::Close, &[3, 0xE8], mask);
        bytes
    });
    mutate(&originals, |bytes, dice| {
        let mut whole = bytes.to_vec();
        let mut at_once = Incoming::new(Side::Server);
        let length = at_once.unpack(&mut whole);
        let (mut pieces, mut stream, mut at) = (Incoming::new(Side::Server), Vec::new(), 0);
        while at < bytes.len() {
            let mut piece = bytes[at..(at + 1 + dice.below(200)).min(bytes.len())].to_vec();
            at += piece.len();
            let length = pieces.unpack(&mut piece);
            stream.extend_from_slice(&piece[..length]);
            assert!(pieces.take_pong().is_none_or(|pong| pong.len() <= 125));
        }
        assert_eq!(at_once.end(), pieces.end(), "{bytes:?}");
        assert!(whole[..length] == stream, "{bytes:?}");
    });
}

#[test]
fn damaged_requests_are_accepted_or_refused() {
    let usual = ClientUpgrade::new([5; 16]).request("broker:8080", "/mqtt");
    let browser = usual.replace("Upgrade\r\n", "keep-alive, Upgrade\r\nOrigin: https://a.example\r\nCookie: a=b\r\n");
    let many = usual.replace("\r\n\r\n", &format!("\r\n{}\r\n", "x: y\r\n".repeat(58)));
    let originals = [usual, browser, many].map(String::into_bytes);
    let origins = ["https://a.example".to_owned()];
    mutate(&originals, |bytes, dice| {
        let rules = Rules { path: "/mqtt", origins: &origins };
        let end = accept(bytes, rules);
        if let Ok(Some(accepted)) = &end {
            assert!(bytes.len() <= UPGRADE_MAX && accepted.answer.starts_with("HTTP/1.1 101 "));
            assert_eq!(accepted.answer.matches("\r\n\r\n").count(), 1, "{bytes:?}");
        }
        // A part of an accepted request is no refusal.
        if let (Ok(_), Err(refusal)) = (&end, accept(&bytes[..dice.below(bytes.len())], rules)) {
            panic!("{refusal}: {bytes:?}");
        }
    });
}
