//! Admin HTTP of the broker: health, metrics, a JSON interface below `/api/v1`, and a dashboard.
//!
//! ```text
//!   Listener ─► server: one thread, within `places` ─► guard: Host, Origin, token
//!                                                               └─► routes ─► ControlPlane (the broker)
//! ```
//!
//! The crate knows no broker: [`ControlPlane`] is all that it asks of one.
#![forbid(unsafe_code)]

pub mod client;
mod control;
mod dashboard;
mod events;
mod exposition;
mod guard;
mod places;
mod problem;
mod routes;
mod server;
mod stream;
mod tokens;
mod trace;
mod views;
mod wire;

pub use control::{Answer, BoxFuture, Check, ControlError, ControlPlane};
pub use exposition::{Exposition, Kind};
pub use server::{Listener, Server, Settings, start};
pub use tokens::{Role, Tokens, add_token};
pub use trace::{PacketView, TraceEvent, TraceFeed, TraceQuery};
pub use views::*;

pub use tenbin_codec::Secret;
