//! `tenbin-loadgen run --agents` with agents as separate processes, and over TLS.

mod agent;
mod clocks;
mod lost;
mod stdio;
mod tls;
