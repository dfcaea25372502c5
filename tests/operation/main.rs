//! Commands, configuration, rights, hooks and admin HTTP.

mod admin;
mod auth;
mod command;
mod explain;
mod first_steps;
mod hooks;
mod http_commands;
mod migrating;
#[path = "../support/mod.rs"]
mod support;
mod sys_topics;
