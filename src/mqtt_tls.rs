//! TLS between this program's MQTT clients and a broker.

use tenbin_client::Transport;
use tenbin_kit::tls::ClientFiles;

/// TLS to a broker, whose certificate has to be for `host`.
///
/// # Errors
/// A line that begins with `option` and the key of a file, or with `broker`, if no certificate could be for the host.
#[cfg(feature = "tls")]
pub(crate) fn transport(host: &str, files: &ClientFiles, option: &str, broker: &str) -> Result<Transport, String> {
    use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

    let connector = TlsConnector::from(files.config().map_err(|error| format!("{option}{error}"))?);
    let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("{broker} has no name of a server"))?;
    Ok(Transport::tcp().over(move |stream| {
        let (connector, name) = (connector.clone(), name.clone());
        async move { connector.connect(name, stream).await }
    }))
}

#[cfg(not(feature = "tls"))]
pub(crate) fn transport(_: &str, _: &ClientFiles, _: &str, broker: &str) -> Result<Transport, String> {
    Err(format!("{broker} needs a build with TLS (feature `tls`)"))
}
