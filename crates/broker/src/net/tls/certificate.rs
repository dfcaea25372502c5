//! Certificates of clients.

use std::io;

use sha2::{Digest, Sha256};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Version;

use crate::values::Certificate;

/// Reads the verified chain of a client, its own certificate first; `None` if it cannot be read.
pub(super) fn read(chain: &[CertificateDer<'_>]) -> Option<Certificate> {
    let (_, own) = X509Certificate::from_der(chain.first()?).ok()?;
    let mut certificate = Certificate {
        chain: chain.iter().map(|der| der.as_ref().into()).collect(),
        fingerprint: Sha256::digest(chain.first()?).into(),
        common_name: common_name(&own),
        dns_names: Vec::new(),
        uris: Vec::new(),
        emails: Vec::new(),
        not_after: own.validity().not_after.timestamp(),
    };
    let names = own.subject_alternative_name().ok()?.map_or(&[][..], |extension| &extension.value.general_names);
    for name in names {
        match name {
            GeneralName::DNSName(name) => certificate.dns_names.push((*name).to_owned()),
            GeneralName::URI(uri) => certificate.uris.push((*uri).to_owned()),
            GeneralName::RFC822Name(email) => certificate.emails.push((*email).to_owned()),
            _ => {}
        }
    }
    Some(certificate)
}

/// When a certificate is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Validity {
    /// In seconds since 1970, and as text: 2025-02-01.
    begins: (i64, String),
    ends: (i64, String),
}

impl Validity {
    /// Validity of a certificate; `None` if it cannot be read.
    pub(super) fn of(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let moment = |at: ASN1Time| (at.timestamp(), at.to_datetime().date().to_string());
        let validity = certificate.validity();
        Some(Self { begins: moment(validity.not_before), ends: moment(validity.not_after) })
    }

    /// The end, in seconds since 1970.
    pub(super) fn end(&self) -> i64 {
        self.ends.0
    }

    /// Why the certificate is not valid at `now`, in seconds since 1970.
    pub(super) fn fault_at(&self, now: i64) -> Option<String> {
        if now > self.ends.0 {
            Some(format!("ended on {}", self.ends.1))
        } else {
            (now < self.begins.0).then(|| format!("is not valid before {}", self.begins.1))
        }
    }
}

/// Why a certificate is not valid now: it has ended, or begins later. `None` also if it cannot be read.
pub fn certificate_fault(der: &[u8]) -> Option<String> {
    Validity::of(der)?.fault_at(UnixTime::now().as_secs().cast_signed())
}

/// Whether a certificate is of X.509 version 1, which rustls does not verify.
pub(super) fn is_of_version_1(der: &[u8]) -> bool {
    X509Certificate::from_der(der).is_ok_and(|(_, certificate)| certificate.version() == X509Version::V1)
}

/// The error of a handshake, with the cause if the client's certificate is of version 1.
pub(super) fn explained(error: io::Error) -> io::Error {
    if error.to_string().contains("UnsupportedCertVersion") {
        return io::Error::new(error.kind(), format!("the client's certificate is {VERSION_1}"));
    }
    error
}

/// Cause of errors, and the way out.
pub(super) const VERSION_1: &str =
    "of X.509 version 1, which is not supported; make one of version 3, as by `openssl x509 -req -extfile FILE`";

/// The Common Name. With several, programs would disagree on the client's name, so it has none.
fn common_name(certificate: &X509Certificate<'_>) -> Option<String> {
    let mut names = certificate.subject().iter_common_name();
    let name = names.next()?.as_str().ok()?;
    names.next().is_none().then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn certificate(common_names: &[&str], names: &[SanType]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in common_names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = names.to_vec();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn names_and_fingerprint_are_those_of_the_certificate() {
        let text = |text: &str| Ia5String::try_from(text).unwrap();
        let names = [
            SanType::DnsName(text("a.example")),
            SanType::URI(text("urn:device:7")),
            SanType::Rfc822Name(text("a@b.example")),
            SanType::DnsName(text("*.b.example")),
            SanType::IpAddress([127, 0, 0, 1].into()),
        ];
        let own = certificate(&["plant/7+é"], &names);
        let other = certificate(&[], &[]);
        let read = read(&[own.clone(), other.clone()]).unwrap();
        assert_eq!(read.common_name.as_deref(), Some("plant/7+é"));
        assert_eq!(read.dns_names, ["a.example", "*.b.example"]);
        assert_eq!((read.uris, read.emails), (vec!["urn:device:7".to_owned()], vec!["a@b.example".to_owned()]));
        assert_eq!(read.chain, [Box::from(own.as_ref()), Box::from(other.as_ref())]);
        assert_eq!(read.fingerprint, <[u8; 32]>::from(Sha256::digest(&own)));
    }

    #[test]
    fn certificate_is_valid_from_its_begin_to_its_end() {
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (date_time_ymd(2025, 2, 1), date_time_ymd(2026, 3, 1));
        let own = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let validity = Validity::of(own.der()).unwrap();
        let [begin, end] = [1_738_368_000, 1_772_323_200];
        assert_eq!(validity.end(), end);
        for (at, fault) in [
            (begin - 1, Some("is not valid before 2025-02-01")),
            (begin, None),
            (end, None),
            (end + 1, Some("ended on 2026-03-01")),
        ] {
            assert_eq!(validity.fault_at(at).as_deref(), fault, "{at}");
        }
        assert_eq!(Validity::of(&[0x30]), None);
    }

    #[test]
    fn certificate_without_names_has_none() {
        let read = read(&[certificate(&[], &[])]).unwrap();
        assert_eq!((read.common_name, read.dns_names), (None, vec![]));
    }

    #[test]
    fn bytes_that_are_no_certificate_are_refused() {
        let cut = certificate(&["a"], &[]);
        for bytes in [&[][..], &[0x30, 0x03, 0x02, 0x01, 0x01], &cut[..cut.len() / 2]] {
            assert!(read(&[CertificateDer::from(bytes)]).is_none());
        }
        assert!(read(&[]).is_none());
    }
}
