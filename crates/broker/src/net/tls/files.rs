//! PEM files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tenbin_kit::pem;
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::config::Tls;

/// Marks of all files of a listener, which change with the files. A file that cannot be looked at has none.
pub(super) type Marks = Vec<Option<[u64; 5]>>;

/// Looks at all files of a listener.
pub(super) fn marks(tls: &Tls) -> Marks {
    let names = tls.names.iter().flat_map(|name| [&name.certificate, &name.key]);
    let files = [&tls.certificate, &tls.key].into_iter().chain(names).chain(&tls.client_ca).chain(&tls.crl);
    files.map(|path| mark(path)).collect()
}

/// Follows symbolic links, so that a link to another file changes the mark. The time of change, unlike that of
/// modification, also tells of files that were copied with their times.
fn mark(path: &Path) -> Option<[u64; 5]> {
    let file = fs::metadata(path).ok()?;
    Some([file.dev(), file.ino(), file.size(), file.ctime() as u64, file.ctime_nsec() as u64])
}

/// All certificates in a file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    pem::all(&bytes(path)?, "certificate (PEM)")
}

/// All revocation lists in a file, at least one.
pub(super) fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    pem::all(&bytes(path)?, "revocation list (PEM)")
}

pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    pem::first(&bytes(path)?, "private key (PEM, not encrypted)")
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    tenbin_kit::files::read(path, tenbin_kit::files::BYTES_MAX).map_err(|error| error.to_string())
}
