//! Admin HTTP of the broker: health, metrics, a JSON interface below `/api/v1`, and a dashboard.
//!
//! ```text
//!   Listener ─► server: one thread, within `places` ─► guard: Host, Origin, token
//!                                                               └─► routes ─► ControlPlane (the broker)
//!                                                                          └─► Node (of a cluster)
//! ```
//!
//! The crate knows no broker: [`ControlPlane`] is all that it asks of one. The server of a cluster's node is open without a
//! broker too, see [`Node`].
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
mod site;
mod stream;
mod tokens;
mod trace;
mod views;
mod wire;

pub use control::{Answer, BoxFuture, Check, ControlError, ControlPlane, LeaderView, Node, NodeView};
pub use events::quantile;
pub use exposition::{Exposition, Kind};
pub use server::{Listener, Server, ServerTls, Settings, start, start_node};
pub use site::BrokerSlot;
pub use tokens::{Role, TokenFiles, Tokens, add_token};
pub use trace::{PacketView, TraceEvent, TraceFeed, TraceQuery};
pub use views::*;
pub use wire::Duplex;

pub use tenbin_codec::Secret;
