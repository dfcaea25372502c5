//! Logins by verified client certificates.

use tenbin_codec::{ReasonCode, Text};
use tenbin_kit::digits::hexadecimal;

use super::source::Source;
use super::{Answer, AuthRequest, Certificate, Terms};
use crate::config::{CertificateName, CertificateSource};

/// Users by their certificates.
#[derive(Debug)]
pub(super) struct Certificates(CertificateSource);

impl Certificates {
    pub(super) fn new(source: &CertificateSource) -> Self {
        Self(source.clone())
    }

    /// [`Answer::NotMine`] for a client without a certificate, or with an Authentication Method.
    pub(super) fn answer(&self, source: &Source, request: &AuthRequest) -> Answer {
        let Some(certificate) = request.origin.certificate.as_deref().filter(|_| request.method.is_none()) else {
            return Answer::NotMine;
        };
        let user = self.user_of(certificate).filter(|user| !user.is_empty());
        match user.and_then(|user| Text::try_from(user).ok()) {
            Some(user) => Answer::Accept { identity: source.identity(user, Terms::default()), data: None },
            None if self.0.users.is_empty() => {
                source.refuse(ReasonCode::NotAuthorized, "the certificate has not exactly one name of this kind")
            }
            None => source.refuse(ReasonCode::NotAuthorized, "unknown certificate"),
        }
    }

    /// Whether it may still accept the user: one whose certificate is listed, if any is.
    pub(super) fn knows(&self, user: Option<&Text>) -> bool {
        let users = &self.0.users;
        users.is_empty() || user.is_some_and(|user| users.values().any(|known| known == user.as_str()))
    }

    /// The name of the user: with several names, programs would disagree on it, so there is none.
    fn user_of<'a>(&'a self, certificate: &'a Certificate) -> Option<&'a str> {
        if !self.0.users.is_empty() {
            return self.0.users.get(&hexadecimal(&certificate.fingerprint)).map(String::as_str);
        }
        let only = |names: &'a [String]| match names {
            [name] => Some(name.as_str()),
            _ => None,
        };
        match self.0.user_from {
            CertificateName::CommonName => certificate.common_name.as_deref(),
            CertificateName::SanDns => only(&certificate.dns_names),
            CertificateName::SanUri => only(&certificate.uris),
            CertificateName::SanEmail => only(&certificate.emails),
        }
    }
}
