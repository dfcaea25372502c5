//! Load reports in all their carriers, and the announcement of the accepted carriers. The extended PINGREQ itself is in
//! `extended_pingreq`.

mod bad;
mod carriers;
mod draining;
mod group;
mod load_topic;
mod told;
