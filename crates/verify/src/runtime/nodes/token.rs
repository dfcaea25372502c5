//! Secret of a run, by which nodes know each other.

use std::fs::File;
use std::io::{self, Read};

/// Characters of a token.
pub(super) const LENGTH: usize = 32;

/// A new token: 128 random bits as hexadecimal digits.
pub(super) fn new() -> io::Result<String> {
    let mut bytes = [0; LENGTH / 2];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares without a hint, by the time taken, at the first difference.
pub(super) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
