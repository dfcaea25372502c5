//! Admin HTTP of a running broker.

mod bounds;
mod clients;
mod command;
mod dashboard;
mod drain;
mod events;
mod findings;
mod groups;
mod guard;
mod health;
mod letters;
mod metrics;
mod openapi;
mod past;
mod pub_and_sub;
mod refusals;
mod scaling;
mod secrets;
mod secure;
mod stage;
mod trace;
