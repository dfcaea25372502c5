//! Authentication and authorization.

#![allow(clippy::print_stderr, reason = "some tests tell what they have measured")]

mod acl;
mod administration;
mod certificates;
mod chain;
mod command;
mod cut_files;
mod embedded;
mod exchange;
mod guarded;
mod http_service;
mod identifiers;
mod passwords;
mod realms;
mod refusals;
mod reload;
mod scram_client;
mod sessions;
mod stage;
mod tokens;
mod wills;
