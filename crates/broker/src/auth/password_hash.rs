//! Hashes of passwords in password files, each with the text that its line has behind the user's name.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use base64ct::{Base64, Base64Unpadded, Encoding};
use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq as _;

/// A parsed hash.
struct PasswordHash {
    function: Function,
    salt: Vec<u8>,
    hash: Vec<u8>,
}

enum Function {
    /// `$argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH`, of `tenbin passwd` and of Mosquitto from 2.1 on.
    Argon2id(Version, Params),
    /// `$7$ITERATIONS$SALT$HASH`: PBKDF2 with HMAC-SHA-512, of Mosquitto 2.0.
    Pbkdf2(u32),
    /// `$6$SALT$HASH`: SHA-512 of password and salt, of Mosquitto 1.6 and earlier.
    Sha512,
}

/// Checks that `text` is a hash.
///
/// # Errors
/// The reason why it is none.
pub(super) fn check(text: &str) -> Result<(), String> {
    parse(text).map(|_| ())
}

/// Whether `hash` was made from `password`. Slow; uses `memory`, which grows as needed.
pub(super) fn verify(password: &[u8], hash: &str, memory: &mut Vec<Block>) -> bool {
    let Ok(PasswordHash { function, salt, hash: expected }) = parse(hash) else { return false };
    let mut found = vec![0; expected.len()];
    match function {
        Function::Argon2id(version, params) => {
            if memory.len() < params.block_count() {
                memory.resize(params.block_count(), Block::new());
            }
            let argon2 = Argon2::new(Algorithm::Argon2id, version, params);
            if argon2.hash_password_into_with_memory(password, &salt, &mut found, memory).is_err() {
                return false;
            }
        }
        Function::Pbkdf2(iterations) => pbkdf2::pbkdf2_hmac::<Sha512>(password, &salt, iterations, &mut found),
        Function::Sha512 => {
            let hash = Sha512::new().chain_update(password).chain_update(&salt).finalize();
            found.copy_from_slice(&hash); // `parse` has checked its length
        }
    }
    found.ct_eq(&expected).into()
}

fn parse(text: &str) -> Result<PasswordHash, String> {
    let parts = text.split('$').collect::<Vec<_>>();
    let (function, salt, hash) = match parts[..] {
        ["", "argon2id", version, params, salt, hash] => {
            let (salt, hash) = (Base64Unpadded::decode_vec(salt), Base64Unpadded::decode_vec(hash));
            let length = hash.as_ref().map_or(0, Vec::len);
            (argon2id(version, params, length).map_err(|error| format!("argon2id: {error}"))?, salt, hash)
        }
        ["", "7", iterations, salt, hash] => {
            let iterations = iterations.parse().ok().filter(|&iterations| iterations > 0);
            let function = Function::Pbkdf2(iterations.ok_or("$7$: no number of iterations")?);
            (function, Base64::decode_vec(salt), Base64::decode_vec(hash))
        }
        ["", "6", salt, hash] => (Function::Sha512, Base64::decode_vec(salt), Base64::decode_vec(hash)),
        _ => return Err("neither a hash (argon2id, $7$ or $6$) nor a scram-sha-256 secret".to_owned()),
    };
    let (Ok(salt), Ok(hash)) = (salt, hash) else { return Err("salt or hash is not base64".to_owned()) };
    let is_sha512 = !matches!(function, Function::Argon2id(..));
    if is_sha512 && hash.len() != SHA512_BYTES {
        return Err(format!("the hash has {} bytes instead of {SHA512_BYTES}", hash.len()));
    }
    Ok(PasswordHash { function, salt, hash })
}

/// Reads version and parameters, as `v=19` and `m=19456,t=2,p=1`. `length`: bytes of the hash.
fn argon2id(version: &str, params: &str, length: usize) -> Result<Function, String> {
    let number = |text: Option<&str>, key: &str| {
        let value = text.and_then(|text| text.strip_prefix(key)?.strip_prefix('=')?.parse::<u32>().ok());
        value.ok_or_else(|| format!("no number for {key}"))
    };
    let version = Version::try_from(number(Some(version), "v")?).map_err(|error| error.to_string())?;
    let mut params = params.split(',');
    let [memory, passes, lanes] = ["m", "t", "p"].map(|key| number(params.next(), key));
    if params.next().is_some() {
        return Err("further parameters than m, t and p".to_owned());
    }
    let params = Params::new(memory?, passes?, lanes?, Some(length)).map_err(|error| error.to_string())?;
    Ok(Function::Argon2id(version, params))
}

const SHA512_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_mosquitto_fit_their_passwords() {
        for (password, hash) in [
            // By mosquitto_passwd 2.0.11, without options and with -H sha512.
            (
                "secret",
                "$7$101$WlxxWubuYR+X/VLf$k/dvg+aWpMuACXuJg7IW5rRwH2YFGBU1abTSReQOejgc+uAuQxVmah/VMZoCBAuhFoidtT3Y9vUl+lMGsQUrSw==",
            ),
            (
                "six",
                "$6$KTmOo0/Ofmv0hqsl$bg9YBn3zYumrVyitKhkkwMMYX3Pf0OJR/iSFz3ejrNdnjxzYMzytT1yQnRGn1e/5DAKL/R9Z9DUe52P/VrlpWQ==",
            ),
            // By libargon2, with the parameters of Mosquitto 2.1 and a salt of 64 bytes.
            (
                "secret",
                "$argon2id$v=19$m=47104,t=1,p=1$AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw$jN8KVtBuy9rOg+xx4HEO7K//Ei2hf4aegEDgCD4okj4rugUys2dVUsAyHcBFDFrGlWl198NIEs4dtHiTXPgqvA",
            ),
        ] {
            check(hash).unwrap();
            assert!(verify(password.as_bytes(), hash, &mut Vec::new()), "{hash}");
            assert!(!verify(b"other", hash, &mut Vec::new()) && !verify(b"", hash, &mut Vec::new()), "{hash}");
        }
    }

    #[test]
    fn broken_hashes_are_rejected() {
        for (hash, word) in [
            ("secret", "neither"),
            ("$5$c2FsdA==$aGFzaA==", "neither"),
            ("$7$0$c2FsdA==$aGFzaA==", "iterations"),
            ("$7$101$c2FsdA==$aGFzaA==", "4 bytes instead of 64"),
            ("$6$c2FsdA$aGFzaA==", "base64"),
            ("$6$c2FsdA==$aGFzaA==", "4 bytes instead of 64"),
            ("$argon2i$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaA", "neither"),
            ("$argon2id$v=18$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaA", "version"),
            ("$argon2id$v=19$m=8,t=1$c2FsdHNhbHQ$aGFzaGhhc2g", "p"),
            ("$argon2id$v=19$m=8,t=1,p=1,x=1$c2FsdHNhbHQ$aGFzaGhhc2g", "further"),
            ("$argon2id$v=19$m=8,t=0,p=1$c2FsdHNhbHQ$aGFzaGhhc2g", "argon2id"),
        ] {
            let error = check(hash).unwrap_err();
            assert!(error.contains(word), "{hash}: {error}");
        }
    }
}
