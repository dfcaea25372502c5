//! DTLS below MQTT-SN, without sockets.
//!
//! ```text
//!   datagrams ─► Session ─► messages        Server: pre-shared keys, a certificate, or both
//!             ◄─         ◄─                 Client: one pre-shared key, or certificates
//! ```
//!
//! Versions: DTLS 1.2 with pre-shared keys (`TLS_PSK_WITH_AES_128_CCM_8`), DTLS 1.2 and 1.3 with certificates of ECDSA.
//! The caller owns the sockets and the clock.

mod certificates;
mod error;
mod keys;
mod session;
mod sides;

pub use error::{SessionError, SetupError};
pub use session::{Hello, Identity, Output, Session, has_plain_alert};
pub use sides::{Client, ClientKeys, Server, ServerFiles};
