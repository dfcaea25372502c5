use base64ct::{Base64, Base64UrlUnpadded, Encoding};
use ring::hmac;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde_json::Value;
use tenbin_codec::Secret;

use super::der;

/// A key that checks signatures. Its type fixes the family of algorithms: a public key never is the secret of an HMAC.
#[derive(Debug)]
pub(super) struct Key {
    /// `kid`; `None` = it has none.
    pub(super) id: Option<String>,
    /// The only algorithm of the key; `None` = all of its family.
    algorithm: Option<String>,
    material: Material,
}

#[derive(Debug)]
pub(super) enum Material {
    Secret(Secret),
    /// Modulus and exponent.
    Rsa(Vec<u8>, Vec<u8>),
    /// Uncompressed point on P-256.
    P256(Vec<u8>),
    /// Uncompressed point on P-384.
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Key {
    /// The secret of a file, without a line break at the end.
    pub(super) fn from_secret(mut bytes: Vec<u8>) -> Result<Self, String> {
        for end in [b'\n', b'\r'] {
            if bytes.last() == Some(&end) {
                bytes.pop();
            }
        }
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(format!("needs at least {SECRET_BYTES_MIN} bytes, has {}", bytes.len()));
        }
        Ok(Self { id: None, algorithm: None, material: Material::Secret(bytes.into()) })
    }

    /// A public key in PEM.
    pub(super) fn from_pem(text: &str) -> Result<Self, String> {
        let body = text.split_once("-----BEGIN PUBLIC KEY-----").ok_or("has no BEGIN PUBLIC KEY")?.1;
        let body = body.split_once("-----END PUBLIC KEY-----").ok_or("has no END PUBLIC KEY")?.0;
        let der = Base64::decode_vec(&body.split_whitespace().collect::<String>()).map_err(|_| "is not base64")?;
        let material = der::public_key(&der).ok_or("is no key of RSA, P-256, P-384 or Ed25519")?;
        Self { id: None, algorithm: None, material }.checked().ok_or_else(|| "is too short".to_owned())
    }

    /// A key of a JSON Web Key Set; `None` for a kind that is not known, or another use.
    pub(super) fn from_jwk(jwk: &Value) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let bytes = |name: &str| Base64UrlUnpadded::decode_vec(text(name)?).ok();
        if text("use").is_some_and(|used| used != "sig") {
            return None;
        }
        let point = |length: usize| {
            let (x, y) = (bytes("x")?, bytes("y")?);
            (x.len() == length && y.len() == length).then(|| [&[4][..], &x, &y].concat())
        };
        let material = match (text("kty")?, text("crv")) {
            ("oct", _) => Material::Secret(bytes("k").filter(|secret| secret.len() >= SECRET_BYTES_MIN)?.into()),
            ("RSA", _) => Material::Rsa(without_zeros(&bytes("n")?), without_zeros(&bytes("e")?)),
            ("EC", Some("P-256")) => Material::P256(point(32)?),
            ("EC", Some("P-384")) => Material::P384(point(48)?),
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes("x").filter(|x| x.len() == 32)?),
            _ => return None,
        };
        Self { id: text("kid").map(Into::into), algorithm: text("alg").map(Into::into), material }.checked()
    }

    fn checked(self) -> Option<Self> {
        let is_short = matches!(&self.material, Material::Rsa(modulus, _) if modulus.len() < RSA_BYTES_MIN);
        (!is_short).then_some(self)
    }

    /// Whether the key makes signatures by this algorithm.
    pub(super) fn has_algorithm(&self, algorithm: &str) -> bool {
        let is_of_family = match &self.material {
            Material::Secret(_) => hmac_of(algorithm).is_some(),
            Material::Rsa(..) => rsa_of(algorithm).is_some(),
            Material::P256(_) => algorithm == "ES256",
            Material::P384(_) => algorithm == "ES384",
            Material::Ed25519(_) => ["EdDSA", "Ed25519"].contains(&algorithm),
        };
        is_of_family && self.algorithm.as_ref().is_none_or(|only| only == algorithm)
    }

    /// Whether `signature` of `message` was made by `algorithm` with this key.
    pub(super) fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        if !self.has_algorithm(algorithm) {
            return false;
        }
        let public = |kind: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(kind, key).verify(message, signature).is_ok()
        };
        match &self.material {
            Material::Secret(secret) => hmac_of(algorithm)
                .is_some_and(|kind| hmac::verify(&hmac::Key::new(kind, secret.expose()), message, signature).is_ok()),
            Material::Rsa(n, e) => rsa_of(algorithm)
                .is_some_and(|kind| RsaPublicKeyComponents { n, e }.verify(kind, message, signature).is_ok()),
            Material::P256(point) => public(&signature::ECDSA_P256_SHA256_FIXED, point),
            Material::P384(point) => public(&signature::ECDSA_P384_SHA384_FIXED, point),
            Material::Ed25519(key) => public(&signature::ED25519, key),
        }
    }
}

/// The bytes of a positive number without leading zeros.
pub(super) fn without_zeros(number: &[u8]) -> Vec<u8> {
    number.iter().copied().skip_while(|&byte| byte == 0).collect()
}

fn hmac_of(algorithm: &str) -> Option<hmac::Algorithm> {
    match algorithm {
        "HS256" => Some(hmac::HMAC_SHA256),
        "HS384" => Some(hmac::HMAC_SHA384),
        "HS512" => Some(hmac::HMAC_SHA512),
        _ => None,
    }
}

fn rsa_of(algorithm: &str) -> Option<&'static RsaParameters> {
    match algorithm {
        "RS256" => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
        "RS384" => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
        "RS512" => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
        "PS256" => Some(&signature::RSA_PSS_2048_8192_SHA256),
        "PS384" => Some(&signature::RSA_PSS_2048_8192_SHA384),
        "PS512" => Some(&signature::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

/// Shortest secret (RFC 7518 §3.2, for HS256).
const SECRET_BYTES_MIN: usize = 32;
/// Shortest modulus (RFC 7518 §3.3).
const RSA_BYTES_MIN: usize = 256;
