//! Tools that several crates and programs share, without a runtime.
#![forbid(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
pub mod digits;
pub mod files;
#[cfg(feature = "pem")]
pub mod pem;
pub mod printable;
pub mod programs;
pub mod rng;
mod span;
pub mod table;
pub mod tls;
pub mod units;
mod within;

pub use span::Span;
pub use within::within;
