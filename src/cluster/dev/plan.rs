//! The nodes of `tenbin cluster dev`: ports, directories and configuration files.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use super::super::etcd_server::free_ports;

/// A node.
#[derive(Debug, Clone)]
pub(super) struct NodePlan {
    pub(super) name: String,
    /// Port of MQTT clients.
    pub(super) port: u16,
    /// Port of admin HTTP.
    pub(super) admin: u16,
    cluster: u16,
    /// Data directory.
    pub(super) directory: PathBuf,
    /// Configuration file.
    pub(super) config: PathBuf,
}

/// Plans nodes with consecutive ports for clients, beginning with `first`. Ports between nodes are any free ones.
///
/// # Errors
/// A port for clients is in use.
pub(super) fn nodes(directory: &Path, count: u8, first: u16) -> Result<Vec<NodePlan>, String> {
    let mut nodes = Vec::new();
    for index in 0..count {
        let name = format!("node-{}", index + 1);
        let port = first.checked_add(index.into()).ok_or("--port is too large")?;
        check(port)
            .map_err(|error| format!("{name} cannot listen on port {port}: {error}; select others by --port"))?;
        let [cluster, any] = free_ports().map_err(|error| error.to_string())?;
        let preferred = ADMIN_PORT + u16::from(index);
        nodes.push(NodePlan {
            port,
            admin: check(preferred).map_or(any, |()| preferred),
            cluster,
            directory: directory.join(&name),
            config: directory.join(format!("{name}.toml")),
            name,
        });
    }
    Ok(nodes)
}

/// Writes the configuration files of all nodes.
///
/// # Errors
/// A directory or a file cannot be written.
pub(super) fn write(nodes: &[NodePlan], etcd: &str) -> io::Result<()> {
    for node in nodes {
        fs::create_dir_all(&node.directory)?;
        fs::write(&node.config, node.text(nodes, etcd))?;
    }
    Ok(())
}

impl NodePlan {
    fn text(&self, all: &[Self], etcd: &str) -> String {
        let members = all.iter().map(|node| quoted(&format!("{}=127.0.0.1:{}", node.name, node.cluster)));
        format!(
            "# Written by `tenbin cluster dev` at each start.\n\
             listen = [\"127.0.0.1:{}\"]\n\n\
             [store]\ndirectory = {}\n\n\
             [admin]\naddress = \"127.0.0.1:{}\"\n\n\
             [cluster]\nname = \"dev\"\nnode = {}\nnodes = [{}]\nlisten = \"127.0.0.1:{}\"\netcd = [{}]\n",
            self.port,
            quoted(&self.directory.to_string_lossy()),
            self.admin,
            quoted(&self.name),
            members.collect::<Vec<_>>().join(", "),
            self.cluster,
            quoted(etcd),
        )
    }
}

/// A text in quotes. The escapes of JSON are valid in TOML too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn check(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop)
}

/// Default port of admin HTTP.
const ADMIN_PORT: u16 = 9883;

/// Makes a plan at any free ports. Another process may take one of the consecutive ports, so it tries several times.
#[cfg(test)]
pub(super) fn somewhere<T>(plan: impl Fn(u16) -> Result<T, String>) -> T {
    let plans = (0..50).filter_map(|_| {
        let [port] = free_ports().expect("a port");
        plan(port).ok()
    });
    plans.into_iter().next().expect("free ports")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_names_all_nodes() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a \"quoted\" \\ directory");
        let nodes = somewhere(|port| nodes(&path, 3, port));
        write(&nodes, "http://127.0.0.1:2379").expect("files");
        for node in &nodes {
            let text = fs::read_to_string(&node.config).expect("a file");
            let table: toml::Table = text.parse().expect("TOML");
            let cluster = &table["cluster"];
            assert_eq!(cluster["node"].as_str(), Some(&*node.name));
            let members = cluster["nodes"].as_array().expect("a list");
            let own = format!("{}=127.0.0.1:{}", node.name, node.cluster);
            assert_eq!(members.iter().filter(|member| member.as_str() == Some(&own)).count(), 1);
            assert_eq!(members.len(), 3);
            assert_eq!(table["store"]["directory"].as_str(), node.directory.to_str());
            assert!(node.directory.is_dir());
        }
        assert_eq!(nodes[2].port, nodes[0].port + 2);
    }

    #[test]
    fn used_port_is_an_error_that_names_it() {
        let used = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = used.local_addr().expect("an address").port();
        let error = nodes(Path::new("unused"), 2, port).expect_err("the port is in use");
        assert!(error.contains(&format!("port {port}")) && error.contains("--port"), "{error}");
    }
}
