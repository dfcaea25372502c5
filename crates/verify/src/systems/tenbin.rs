//! This project's broker.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::{InstancePlace, ReadyWhen, Startup, System, port};
use crate::line::Line;
use crate::plan::Instance;

/// This project's broker, with its defaults and the template's settings.
pub(super) struct Tenbin;

impl System for Tenbin {
    fn startup(&self, place: &InstancePlace<'_>) -> Result<Startup, String> {
        // Dotted keys stay valid ahead of all tables, in any order.
        let own = place.instance.config.iter().map(|(key, value)| (key.clone(), toml(value)));
        let of_cluster = cluster(place).into_iter().map(|(key, value)| (format!("cluster.{key}"), value));
        let is_given = |key: &str| place.instance.config.iter().any(|(given, _)| given == key);
        let settings = of_cluster.filter(|(key, _)| !is_given(key)).chain(own);
        let settings: String = settings.map(|(key, value)| format!("{key} = {value}\n")).collect();
        let config = place.files.join("tenbin.toml");
        let address = format!("{}:{}", place.listen, place.port());
        let path = |path: &Path| path.display().to_string();
        let mut arguments =
            vec!["broker".to_owned(), "--listen".to_owned(), address, "--data".to_owned(), path(place.data)];
        // The broker refuses a configuration without any key.
        let files = if settings.is_empty() { Vec::new() } else { vec![(config, settings)] };
        arguments.extend(files.iter().flat_map(|(config, _)| ["--config".to_owned(), path(config)]));
        Ok(Startup {
            line: Line::new(path(place.tenbin), arguments),
            files,
            prepare: Vec::new(),
            ready: ReadyWhen::Mqtt(place.port()),
        })
    }

    fn status_socket(&self, instance: &Instance, data: &Path) -> Option<PathBuf> {
        instance.mode.map(|_| data.join("cluster.sock"))
    }
}

/// Keys of the table `cluster` with their values in TOML; none for a broker that is alone.
fn cluster(place: &InstancePlace<'_>) -> Vec<(&'static str, String)> {
    let InstancePlace { instance, all, address, .. } = place;
    let Some(peer) = instance.peer.as_deref().filter(|_| instance.mode.is_some()) else { return Vec::new() };
    let list = |texts: Vec<String>| format!("[{}]", texts.join(", "));
    let text = |text: &str| format!("{text:?}");
    let nodes = all.iter().filter_map(|one| Some(text(&format!("{}={}", one.name, one.peer.as_deref()?))));
    vec![
        ("name", text(&instance.system)),
        ("node", text(&instance.name)),
        ("nodes", list(nodes.collect())),
        ("listen", text(&format!("{address}:{}", port(peer)))),
        ("plain_from", list(vec![text("127.0.0.0/8"), text(&network(*address))])),
        ("agreement", text("etcd")),
        ("etcd", list(place.etcd.iter().map(|door| text(&format!("http://{door}"))).collect())),
    ]
}

/// The network of all machines of a run with this address.
fn network(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("{}.{}.0.0/16", address.octets()[0], address.octets()[1]),
        IpAddr::V6(address) => format!("{address}/128"),
    }
}

/// A value as TOML: numbers, booleans, arrays and quoted texts as they are, other texts in quotes.
fn toml(value: &str) -> String {
    let is_value =
        value.parse::<f64>().is_ok() || matches!(value, "true" | "false") || value.starts_with(['"', '\'', '[', '{']);
    if is_value { value.to_owned() } else { format!("{value:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::template::Template;

    /// The configuration of the second node, as text.
    fn config(mode: &str, more: &str) -> String {
        let text = format!(
            "systems: {{ b: {{ kind: tenbin, mode: {mode}, {more} }}, w: {{ kind: etcd }}, p: {{ publishes_to: b }} }}"
        );
        let plan = Plan::new(&Template::read("t.yaml", &text).unwrap()[0], None).unwrap();
        let all: Vec<_> = plan.instances.iter().filter(|instance| instance.system == "b").collect();
        let etcd = ["w:2379".to_owned()];
        let place = InstancePlace::of_second(&all, plan.machines[1].address, &etcd);
        let startup = Tenbin.startup(&place).unwrap();
        assert_eq!(startup.line.arguments[..2], ["broker", "--listen"]);
        assert_eq!(Tenbin.status_socket(all[1], place.data), Some(PathBuf::from("/data/cluster.sock")));
        startup.files[0].1.clone()
    }

    #[test]
    fn settings_become_toml_values() {
        for (value, wanted) in [("5", "5"), ("true", "true"), ("fast", "\"fast\""), ("[1]", "[1]"), ("\"x\"", "\"x\"")]
        {
            assert_eq!(toml(value), wanted);
        }
    }

    #[test]
    fn nodes_of_a_pair_know_each_other_and_the_witness() {
        let table: toml::Table = config("pair", "").parse().unwrap();
        let wanted: toml::Table = r#"
            cluster.name = "b"
            cluster.node = "b-2"
            cluster.nodes = ["b-1=b-1:7883", "b-2=b-2:7883"]
            cluster.listen = "10.77.0.2:7883"
            cluster.plain_from = ["127.0.0.0/8", "10.77.0.0/16"]
            cluster.agreement = "etcd"
            cluster.etcd = ["http://w:2379"]
        "#
        .parse()
        .unwrap();
        assert_eq!(table, wanted);
    }

    #[test]
    fn settings_of_the_template_replace_those_of_the_cluster() {
        let text = config("cluster", "config: { cluster.agreement: manual, cluster.copies_minimum: 2 }");
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["cluster"]["agreement"].as_str(), Some("manual"));
        assert_eq!(table["cluster"]["copies_minimum"].as_integer(), Some(2));
        assert_eq!(table["cluster"]["nodes"].as_array().unwrap().len(), 3);
    }
}
