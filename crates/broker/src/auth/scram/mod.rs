//! Server side of SCRAM-SHA-256 (RFC 5802, RFC 7677), without channel binding.
//!
//! ```text
//!   client                                                     server
//!   CONNECT  n,,n=user,r=NONCE  ──────────────────────────────►
//!            ◄──────────────────  AUTH 0x18  r=NONCE+,s=salt,i=iterations
//!   AUTH 0x18  c=biws,r=NONCE+,p=proof  ──────────────────────►
//!            ◄──────────────────  CONNACK (or AUTH 0x00)  v=signature
//! ```

mod secret;
mod server;

pub(super) use secret::{ITERATIONS, PREFIX, SALT_BYTES, ScramSecret, Shapes, hmac};
pub(super) use server::{Challenge, ClientFirst};

/// Name of the Authentication Method.
pub(super) const METHOD: &str = "SCRAM-SHA-256";
