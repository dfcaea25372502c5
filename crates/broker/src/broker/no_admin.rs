//! Stands in for admin HTTP in a build without the feature `admin`.

use std::io;
use std::sync::Arc;

use super::{Parts, StartError};
use crate::Config;
use crate::config::Listener;
use crate::net::TlsError;

/// The wish of the program around a broker for admin HTTP: it can have none.
#[derive(Default)]
pub(super) struct Wanted;

impl Wanted {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub(super) fn configured(&mut self) -> Result<(), StartError> {
        Err(StartError::Admin(io::Error::other("built without the feature admin")))
    }

    pub(super) fn tls(&self, _: &Config) -> Result<Tls, TlsError> {
        Ok(Tls)
    }

    pub(super) fn begin(self, _: &Arc<Parts>) -> Result<Operators, StartError> {
        Ok(Operators)
    }
}

/// TLS of admin HTTP: none.
#[derive(Debug)]
pub(super) struct Tls;

impl Tls {
    pub(super) fn read(&self, _: &Config) -> Result<impl FnOnce() + use<>, TlsError> {
        Ok(|| ())
    }

    pub(super) fn failed(&self, _: &TlsError) {}
}

/// The broker as operators see it: not at all.
#[derive(Debug)]
pub(super) struct Operators;

impl Operators {
    pub(super) fn begin_to_serve(&self) {}

    pub(super) async fn store_past(&self) {}

    pub(super) fn url(&self) -> Option<String> {
        None
    }
}

pub(super) fn listener(_: &Config) -> Option<Listener> {
    None
}

pub(super) fn check(_: &Config) -> (Vec<String>, Vec<String>) {
    Default::default()
}
