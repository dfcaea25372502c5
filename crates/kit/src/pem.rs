//! PEM files, with errors in words.

use rustls_pki_types::pem::{Error, PemObject};

/// Error of a certificate whose section is whole.
pub const DAMAGED_CERTIFICATE: &str = "a certificate in it is damaged, or of an unknown form";

/// Returns all items of a type in the bytes of a PEM file, at least one. `kind` is the name of the type in errors.
///
/// # Errors
/// There is none, or the file is cut or damaged; in words, without the file's name.
pub fn all<T: PemObject>(bytes: &[u8], kind: &str) -> Result<Vec<T>, String> {
    let all = T::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>().map_err(|error| in_words(&error, kind))?;
    if all.is_empty() { Err(in_words(&Error::NoItemsFound, kind)) } else { Ok(all) }
}

/// As [`all`], for the first item alone.
///
/// # Errors
/// As of [`all`].
pub fn first<T: PemObject>(bytes: &[u8], kind: &str) -> Result<T, String> {
    T::from_pem_slice(bytes).map_err(|error| in_words(&error, kind))
}

/// The library prints bytes as numbers.
fn in_words(error: &Error, kind: &str) -> String {
    match error {
        Error::MissingSectionEnd { end_marker } => {
            let section = match &end_marker[..] {
                b"CERTIFICATE" => "a certificate",
                b"X509 CRL" => "a revocation list",
                name if name.ends_with(b"PRIVATE KEY") => "a private key",
                _ => "a section",
            };
            format!("it ends inside {section}: a line with END is missing")
        }
        Error::IllegalSectionStart { .. } => "a line with BEGIN does not end with five hyphens".to_owned(),
        Error::Base64Decode(_) => "a section is not base64: it is cut or damaged".to_owned(),
        Error::NoItemsFound => format!("no {kind} is in it"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};

    use super::*;

    #[test]
    fn errors_are_words() {
        let whole = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let key = whole.replace("CERTIFICATE", "EC PRIVATE KEY");
        assert_eq!(all::<CertificateDer<'_>>(whole.repeat(2).as_bytes(), "certificate").map(|all| all.len()), Ok(2));
        assert_eq!(first::<PrivateKeyDer<'_>>([whole, &key].concat().as_bytes(), "key").map(drop), Ok(()));
        let list = whole.replace("CERTIFICATE", "X509 CRL");
        for (text, words) in [
            (&whole[..40], "it ends inside a certificate"),
            (&whole[..whole.len() - 7], "it ends inside a certificate"),
            (&key[..40], "it ends inside a private key"),
            (&list[..40], "it ends inside a revocation list"),
            ("-----BEGIN \u{7f}secret-----\n", "it ends inside a section"),
            (&whole[..20], "does not end with five hyphens"),
            (&whole.replace("AAAA", "A*AA"), "is not base64"),
            ("", "no certificate is in it"),
            (&key, "no certificate is in it"),
        ] {
            for error in [
                all::<CertificateDer<'_>>(text.as_bytes(), "certificate").unwrap_err(),
                first::<CertificateDer<'_>>(text.as_bytes(), "certificate").unwrap_err(),
            ] {
                assert!(error.contains(words), "{text:?}: {error}");
                assert!(!error.contains(['[', '\\']) && !error.contains("secret"), "{text:?}: {error}");
            }
        }
    }
}
