//! Public keys in DER (RFC 5280 SubjectPublicKeyInfo), as far as JSON Web Tokens use them.

use super::key::{Material, without_zeros};

/// Reads a SubjectPublicKeyInfo.
pub(super) fn public_key(der: &[u8]) -> Option<Material> {
    let (info, rest) = element(SEQUENCE, der)?;
    let (algorithm, key) = element(SEQUENCE, info)?;
    let (key, behind) = element(BIT_STRING, key)?;
    let (&unused_bits, key) = key.split_first()?;
    if unused_bits != 0 || !rest.is_empty() || !behind.is_empty() {
        return None;
    }
    let (id, parameters) = element(OBJECT_ID, algorithm)?;
    match id {
        RSA => rsa(key),
        ELLIPTIC_CURVE => match element(OBJECT_ID, parameters)?.0 {
            P256 if key.len() == 65 => Some(Material::P256(key.to_vec())),
            P384 if key.len() == 97 => Some(Material::P384(key.to_vec())),
            _ => None,
        },
        ED25519 if key.len() == 32 => Some(Material::Ed25519(key.to_vec())),
        _ => None,
    }
}

fn rsa(key: &[u8]) -> Option<Material> {
    let (numbers, _) = element(SEQUENCE, key)?;
    let (modulus, numbers) = element(INTEGER, numbers)?;
    let (exponent, _) = element(INTEGER, numbers)?;
    Some(Material::Rsa(without_zeros(modulus), without_zeros(exponent)))
}

/// Splits `der` behind its first element, which has this tag. Returns the element's content and the rest.
fn element(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&found, der) = der.split_first()?;
    let (&first, der) = der.split_first()?;
    let (length, der) = match first {
        0..=0x7f => (usize::from(first), der),
        0x81 | 0x82 => {
            let (bytes, der) = der.split_at_checked(usize::from(first & 3))?;
            (bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), der)
        }
        _ => return None,
    };
    (found == tag).then(|| der.split_at_checked(length))?
}

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT_ID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;

/// 1.2.840.113549.1.1.1
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// 1.2.840.10045.2.1
const ELLIPTIC_CURVE: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// 1.2.840.10045.3.1.7
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
/// 1.3.132.0.34
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
/// 1.3.101.112
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
