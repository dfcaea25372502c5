//! Opens and serves admin HTTP: its address, its tokens, and the files that tell both.

use std::io;
use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::sync::Arc;

use tenbin_admin::client::{TOKEN_FILE, URL_FILE};
use tenbin_admin::{BrokerSlot, ControlPlane, Listener, Node, Server, ServerTls, Settings, TokenFiles, Tokens};

use super::Control;
use crate::Config;
use crate::config::{Admin as AdminSettings, ListenAddress};
use crate::net::{AdminTls, TlsError};

/// Opens the socket of the admin interface; `None`: it is off, or the default address is taken.
///
/// # Errors
/// The configured address cannot be used. The error names it.
pub(crate) fn open(config: &Config) -> io::Result<Option<Listener>> {
    let Some(address) = config.admin.address() else { return Ok(None) };
    let opened = match &address {
        ListenAddress::Ip(address) => Listener::tcp(&[*address]),
        ListenAddress::Port(port) => Listener::tcp(&[([0_u16; 8], *port).into(), ([0_u8; 4], *port).into()]),
        ListenAddress::Name { host, port } => {
            (&host[..], *port).to_socket_addrs().and_then(|addresses| Listener::tcp(&addresses.collect::<Vec<_>>()))
        }
        ListenAddress::Unix(path) => Listener::unix(path),
    };
    match opened {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && config.admin.address == AdminSettings::ADDRESS => {
            tracing::warn!(%address, "no admin HTTP: its default address is taken, perhaps by another broker");
            Ok(None)
        }
        opened => {
            let cannot =
                |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
            opened.map(Some).map_err(cannot)
        }
    }
}

/// Checks the address and the tokens of the admin interface, without opening anything.
///
/// # Errors
/// Tokens are needed and missing, or unusable.
pub(crate) fn check(config: &Config) -> io::Result<()> {
    let is_local = match config.admin.address() {
        None => return Ok(()),
        Some(ListenAddress::Ip(address)) => address.ip().is_loopback(),
        Some(ListenAddress::Port(_)) => false,
        // Only a look-up tells the addresses of a name.
        Some(ListenAddress::Name { .. } | ListenAddress::Unix(_)) => true,
    };
    load_tokens(config, is_local).map(drop)
}

/// Reads the files of tokens. `is_local`: only this machine reaches the address.
fn load_tokens(config: &Config, is_local: bool) -> io::Result<Tokens> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
    let settings = &config.admin;
    let given = |file: &Path| (!file.as_os_str().is_empty()).then(|| file.to_owned());
    let files = TokenFiles { hashes: given(&settings.tokens), viewer: given(&settings.viewer_token_file) };
    if !is_local && files.hashes.is_none() && files.viewer.is_none() {
        let reason = format!(
            "{} is reached from other machines: needs `tokens`, see `tenbin admin token`, or `viewer_token_file`",
            settings.address
        );
        return Err(invalid(reason));
    }
    Tokens::load(files).map_err(invalid)
}

/// Serves the admin interface, on its thread.
///
/// # Errors
/// Tokens are needed and missing, or unusable, or the system refuses to start a thread.
pub(crate) fn serve(listener: Listener, control: &Arc<Control>, tls: Option<Arc<AdminTls>>) -> io::Result<Server> {
    let directory = control.shared.storage.durable.as_ref().map(|durable| durable.directory());
    let settings = settings(&control.shared.config, &listener, directory, tls)?;
    let plane: Arc<dyn ControlPlane> = Arc::<Control>::clone(control);
    tenbin_admin::start(listener, settings, plane)
}

/// Settings of the server. Makes the token of the local operator, in the data directory if there is one, and tells the address
/// there.
fn settings(
    config: &Config,
    listener: &Listener,
    directory: Option<&Path>,
    tls: Option<Arc<AdminTls>>,
) -> io::Result<Settings> {
    let mut tokens = load_tokens(config, listener.is_local())?;
    let local = directory.map(|directory| directory.join(TOKEN_FILE)).or_else(|| listener.token_file());
    match &local {
        Some(path) => tokens.make_local(path).map_err(|error| {
            io::Error::new(error.kind(), format!("token of the local operator: {}: {error}", path.display()))
        })?,
        None => {
            tracing::info!("admin HTTP without a token of the local operator: no data directory, no XDG_RUNTIME_DIR")
        }
    }
    let mut files: Vec<_> = local.into_iter().collect();
    if let Some((directory, url)) = directory.zip(listener.local_url(tls.is_some())) {
        let path = directory.join(URL_FILE);
        let certificate = tls.as_ref().and(config.admin.tls.as_ref()).map(|tls| &tls.certificate);
        let certificate = certificate.map(std::path::absolute).transpose()?;
        let certificate = certificate.map(|path| format!("{}\n", path.display())).unwrap_or_default();
        std::fs::write(&path, format!("{url}\n{certificate}"))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        files.push(path);
    }
    let tls = tls.map(|tls| tls as Arc<dyn ServerTls>);
    Ok(Settings { tokens, hosts: config.admin.hosts.clone(), files, tls })
}

/// Admin HTTP of a node of a cluster. It is open while the node runs, and shows the broker while the node leads.
#[derive(Debug)]
pub struct NodeAdmin {
    server: Server,
    slot: BrokerSlot,
    tls: Option<Arc<AdminTls>>,
}

impl NodeAdmin {
    /// Opens the address of `[admin]`, and serves `node` there. `None`: it is off, or the default address is taken.
    ///
    /// # Errors
    /// The address or the tokens cannot be used, or the system refuses to start a thread. The error names the cause.
    pub fn start(config: &Config, node: Arc<dyn Node>) -> io::Result<Option<Self>> {
        let Some(listener) = open(config)? else { return Ok(None) };
        // The caller names the table.
        let unnamed = |error: TlsError| io::Error::other(error.to_string().trim_start_matches("admin: ").to_owned());
        let tls = AdminTls::load(config).map_err(unnamed)?.map(Arc::new);
        let settings = settings(config, &listener, Some(&config.store.directory), tls.clone())?;
        let (server, slot) = tenbin_admin::start_node(listener, settings, node)?;
        Ok(Some(Self { server, slot, tls }))
    }

    /// Address as a URL, or `unix:PATH`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) fn slot(&self) -> &BrokerSlot {
        &self.slot
    }

    pub(crate) fn tls(&self) -> Option<Arc<AdminTls>> {
        self.tls.clone()
    }
}
