//! Configurations of nodes as the project's files have them, with addresses and directories of this machine.

use toml::{Table, Value};

use crate::harness::{Cluster, free_address};

/// Nodes with this configuration. They have not been started. `engine` returns the address of a server of etcd.
pub(crate) fn nodes(config: &Table, engine: impl Fn(&str) -> String) -> Cluster {
    let names = list(&config["cluster"]["nodes"]).map(|node| node.split(['=', ':']).next().expect("a name").to_owned());
    Cluster::configured(&names.collect::<Vec<_>>(), |_, nodes, node| {
        let mut config = config.clone();
        let listener = config["listeners"][0].as_table_mut().expect("a listener");
        listener["address"] = node.address.to_string().into();
        listener.remove("password_file");
        listener.insert("anonymous".to_owned(), true.into());
        config["store"]["directory"] = node.data.to_str().expect("a readable name").into();
        let cluster = config["cluster"].as_table_mut().expect("a table");
        cluster.insert("node".to_owned(), node.name.clone().into());
        cluster["nodes"] =
            nodes.iter().map(|node| format!("{}={}", node.name, node.cluster)).collect::<Vec<_>>().into();
        cluster["listen"] = node.cluster.to_string().into();
        cluster["plain_from"] = vec!["127.0.0.0/8"].into();
        if let Some(urls) = cluster.get_mut("etcd") {
            *urls = list(urls).map(&engine).collect::<Vec<_>>().into();
        }
        let admin = [("address".to_owned(), node.admin.to_string().into())];
        config.insert("admin".to_owned(), Value::Table(admin.into_iter().collect()));
        config.to_string()
    })
}

/// Texts of a list.
pub(crate) fn list(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().expect("a list").iter().map(|text| text.as_str().expect("a text"))
}

/// First three numbers of addresses on loopback that no other test has, such as `127.46.224.`. All ports are free there.
pub(crate) fn network() -> String {
    let [high, low] = free_address().port().to_be_bytes();
    format!("127.{high}.{low}.")
}
