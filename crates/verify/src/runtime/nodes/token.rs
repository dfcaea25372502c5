//! Secret of a run, by which nodes know each other.

use std::fs::File;
use std::io::{self, Read};

use tenbin_kit::digits::hexadecimal;
use tenbin_loadgen::run::Secret;

/// Characters of a token.
pub(super) const LENGTH: usize = 32;

/// A new token: 128 random bits as hexadecimal digits.
pub(super) fn new() -> io::Result<Secret<String>> {
    let mut bytes = [0; LENGTH / 2];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(Secret::new(hexadecimal(&bytes)))
}
