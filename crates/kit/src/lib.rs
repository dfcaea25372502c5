//! Tools that several crates and programs share, without a runtime.
#![forbid(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
pub mod files;
#[cfg(feature = "pem")]
pub mod pem;
pub mod programs;
pub mod rng;
mod span;
pub mod table;
pub mod units;

pub use span::Span;
