//! Tools that several crates and programs share, without a runtime.
#![forbid(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
pub mod files;
#[cfg(feature = "pem")]
pub mod pem;
pub mod programs;
mod span;

pub use span::Span;
