//! The broker's certificates, by the name that a client asks for (SNI).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tenbin_kit::pem::DAMAGED_CERTIFICATE;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::DnsName;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error, InconsistentKeys};

use super::certificate::{self, Validity};
use super::files;
use crate::config::Tls;
use crate::net::tls_error::TlsError;

/// Certificates of a listener.
#[derive(Debug)]
pub(super) struct Names {
    first: Arc<CertifiedKey>,
    /// By name in lower case; `*.` and a domain for all names with one more label.
    by_name: HashMap<String, Arc<CertifiedKey>>,
    is_strict: bool,
    /// Name and validity of each certificate.
    pub(super) validities: Vec<(Box<str>, Validity)>,
}

impl Names {
    pub(super) fn load(listener: &str, tls: &Tls, provider: &CryptoProvider) -> Result<Self, TlsError> {
        let error = |key, path: &Path, reason: String| TlsError::new(listener, key, path, reason);
        let pair = |path: &Path, key: &Path, keys: [&'static str; 2]| {
            let chain = files::certificates(path).map_err(|reason| error(keys[0], path, reason))?;
            let private = files::private_key(key).map_err(|reason| error(keys[1], key, reason))?;
            let unusable = |reason: Error| error(keys[1], key, format!("cannot be used: {reason}"));
            let private = provider.key_provider.load_private_key(private).map_err(unusable)?;
            let is_old = chain.first().is_some_and(|own| certificate::is_of_version_1(own));
            let pair = CertifiedKey::new(chain, private);
            match pair.keys_match() {
                Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(Arc::new(pair)),
                Err(Error::InconsistentKeys(_)) => Err(error(keys[1], key, format!("does not fit {}", path.display()))),
                Err(_) if is_old => Err(error(keys[0], path, format!("is {}", certificate::VERSION_1))),
                Err(_) => Err(error(keys[0], path, DAMAGED_CERTIFICATE.to_owned())),
            }
        };
        let first = pair(&tls.certificate, &tls.key, ["tls.certificate", "tls.key"])?;
        // A strict listener serves the names in its first certificate, too.
        let mut validities = Vec::new();
        let mut note = |name: &str, pair: &CertifiedKey| {
            let own = pair.cert.first().and_then(|own| Validity::of(own));
            validities.extend(own.map(|validity| (name.into(), validity)));
        };
        note(DEFAULT, &first);
        let own = certificate::read(&first.cert).map_or_else(Vec::new, |own| own.dns_names);
        let mut by_name = own.into_iter().map(|name| (name.to_ascii_lowercase(), Arc::clone(&first))).collect();
        for named in &tls.names {
            let name = named.name.to_ascii_lowercase();
            if DnsName::try_from(name.strip_prefix("*.").unwrap_or(&name)).is_err() {
                let reason = format!("{:?} is no DNS name, and not \"*.\" and a domain", named.name);
                return Err(TlsError::in_key(listener, "tls.names.name", &reason));
            }
            let keys = ["tls.names.certificate", "tls.names.key"];
            let by_name: &mut HashMap<_, _> = &mut by_name;
            let pair = pair(&named.certificate, &named.key, keys)?;
            note(&name, &pair);
            by_name.insert(name, pair);
        }
        Ok(Self { first, by_name, is_strict: tls.strict_names, validities })
    }

    /// Certificate for clients that ask for `name`, exactly or by the `*` in the place of its first label.
    fn of(&self, name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        let named = name.and_then(|name| {
            let domain = || name.split_once('.').map(|(_, domain)| format!("*.{domain}"));
            self.by_name.get(name).or_else(|| self.by_name.get(&domain()?))
        });
        named.or_else(|| (!self.is_strict).then_some(&self.first))
    }
}

impl ResolvesServerCert for Names {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // rustls passes names in lower case.
        self.of(hello.server_name()).cloned()
    }
}

/// Name of the first certificate in [`Names::ends`].
const DEFAULT: &str = "default";
