//! `tenbin-loadgen run --agents` with agents that are processes of their own, and over TLS.

mod agent;
mod clocks;
mod lost;
mod stdio;
mod tls;
