//! A server of etcd on loopback ports: for `tenbin cluster dev`, and for tests.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::{env, io};

/// Settings of one server.
#[derive(Debug, Clone)]
pub(crate) struct EtcdServer {
    pub(crate) name: String,
    /// Directory of its data; etcd makes it.
    pub(crate) directory: PathBuf,
    client_port: u16,
    peer_port: u16,
}

impl EtcdServer {
    /// A server on free ports.
    ///
    /// # Errors
    /// No port is free.
    pub(crate) fn on_free_ports(name: &str, directory: &Path) -> io::Result<Self> {
        let [client_port, peer_port] = free_ports()?;
        Ok(Self { name: name.to_owned(), directory: directory.to_owned(), client_port, peer_port })
    }

    /// URL for clients.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    fn peer(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    /// Arguments of the program. `all`: the servers of the cluster, with this one.
    pub(crate) fn arguments(&self, all: &[Self]) -> Vec<OsString> {
        let members =
            all.iter().map(|server| format!("{}={}", server.name, server.peer())).collect::<Vec<_>>().join(",");
        let (client, peer) = (self.endpoint(), self.peer());
        let directory = self.directory.as_os_str();
        let texts: [(&str, &str); 10] = [
            ("--name", &self.name),
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--initial-cluster", &members),
            ("--heartbeat-interval", "100"),
            ("--election-timeout", "500"),
            ("--logger", "zap"),
            ("--log-level", "error"),
        ];
        let texts = texts.into_iter().flat_map(|(key, value)| [key.into(), value.into()]);
        texts.chain(["--data-dir".into(), directory.to_owned()]).collect()
    }
}

/// The program etcd in `PATH`.
///
/// # Errors
/// It is not installed. The text names the package.
pub(crate) fn find_program() -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|directory| directory.join("etcd")).find(|file| file.is_file());
    found.ok_or_else(|| {
        "the program etcd is not in PATH; install the package etcd-server (apt install etcd-server)".to_owned()
    })
}

/// Different TCP ports of 127.0.0.1 that are free now.
///
/// # Errors
/// The system has none.
pub(crate) fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    // All are open until the last one is known.
    let mut listeners = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}
