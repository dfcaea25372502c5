//! Load reports in everything that they may come in, and what the broker says that it takes. The extended PINGREQ
//! itself is in `extended_pingreq`.

#[path = "../support/mod.rs"]
mod support;

mod bad;
mod carriers;
mod draining;
mod group;
mod load_topic;
mod told;
