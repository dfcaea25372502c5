//! A client of HTTP services: those that have keys, are asked about logins, or get events.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tenbin_kit::pem;
use tokio::time::timeout;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::config::ServiceUrl;

/// Client of one service. It keeps connections open for the next requests.
#[derive(Debug)]
pub(crate) struct WebClient(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

/// Answer to a GET.
pub(super) enum Fetched {
    /// The service still has the content of the given `ETag`.
    NotModified,
    Body {
        body: Bytes,
        etag: Option<String>,
    },
}

impl WebClient {
    /// A client that trusts the system's authorities and the authorities in the PEM file `ca`.
    ///
    /// # Errors
    /// The file cannot be read or has no certificate.
    pub(crate) fn new(url: &ServiceUrl, ca: Option<&Path>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        if url.expose().starts_with("https://") {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if let Some(path) = ca {
            let wrong = |reason: String| format!("{}: {reason}", path.display());
            let text = tenbin_kit::files::read(path, tenbin_kit::files::BYTES_MAX)
                .map_err(|error| wrong(error.to_string()))?;
            for certificate in pem::all::<CertificateDer<'_>>(&text, "certificate (PEM)").map_err(wrong)? {
                roots.add(certificate).map_err(|_| wrong(pem::DAMAGED_CERTIFICATE.to_owned()))?;
            }
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_MAX)
            .build(connector.wrap_connector(tcp));
        Ok(Self(client))
    }

    /// # Errors
    /// The reason why there is no usable answer.
    pub(super) async fn get(&self, url: &str, etag: Option<&str>) -> Result<Fetched, String> {
        let mut request = Request::get(url);
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        let request = request.body(Full::default()).map_err(|error| error.to_string())?;
        let response = self.send(request).await?;
        match response.status() {
            StatusCode::NOT_MODIFIED => Ok(Fetched::NotModified),
            StatusCode::OK => {
                let etag = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok()).map(ToOwned::to_owned);
                Ok(Fetched::Body { body: response.into_body(), etag })
            }
            status => Err(format!("the answer is {status}")),
        }
    }

    /// Sends JSON, perhaps with a signature. Returns status and content of the answer.
    ///
    /// # Errors
    /// The reason why there is no answer.
    pub(crate) async fn post(
        &self,
        url: &str,
        json: Bytes,
        signature: Option<&str>,
    ) -> Result<(StatusCode, Bytes), String> {
        let mut request = Request::post(url).header(CONTENT_TYPE, "application/json");
        if let Some(signature) = signature {
            request = request.header("Tenbin-Signature", signature);
        }
        let request = request.body(Full::from(json)).map_err(|error| error.to_string())?;
        let response = self.send(request).await?;
        Ok((response.status(), response.into_body()))
    }

    /// Sends a request and reads the whole answer.
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, String> {
        let answer = async {
            let response = self.0.request(request).await.map_err(|error| with_causes(&error))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| with_causes(&*error))?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        };
        timeout(TIMEOUT, answer).await.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")))
    }
}

/// The text of an error, with the texts of the errors below it.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Time for a whole request.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Time for its TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for which unused connections stay open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const IDLE_MAX: usize = 32;
const BODY_BYTES_MAX: usize = 256 << 10;
