//! RabbitMQ with its MQTT plug-in.

use super::{InstancePlace, ReadyWhen, Startup, System};
use crate::line::Line;

/// RabbitMQ of the distribution, with separate files, data and ports.
pub(super) struct Rabbitmq;

impl System for Rabbitmq {
    fn startup(&self, place: &InstancePlace<'_>) -> Result<Startup, String> {
        let InstancePlace { instance, all, listen, .. } = place;
        let host = |address: &str| address.rsplit_once(':').map_or(address, |(host, _)| host).to_owned();
        let peer = instance.peer.as_deref().unwrap_or_default();
        let node = |peer: &str| format!("{}@{}", instance.system, node_host(&host(peer)));
        let peers: Vec<_> = all.iter().filter_map(|instance| instance.peer.as_deref()).collect();
        let mut text = format!(
            "listeners.tcp = none\nmqtt.listeners.tcp.1 = {listen}:{}\nmqtt.allow_anonymous = true\n\
             loopback_users = none\nlog.console = true\nlog.console.level = info\nlog.file = false\n\
             disk_free_limit.absolute = 50MB\n",
            place.port()
        );
        if peers.len() > 1 {
            text += "cluster_formation.peer_discovery_backend = classic_config\n";
            for (number, peer) in (1..).zip(&peers) {
                text += &format!("cluster_formation.classic_config.nodes.{number} = {}\n", node(peer));
            }
        }
        text.extend(instance.config.iter().map(|(key, value)| format!("{key} = {value}\n")));

        let config = place.files.join("rabbitmq.conf");
        let plugins = place.files.join("enabled_plugins");
        let path = |path: &std::path::Path| path.display().to_string();
        let distribution = super::port(peer);
        let environment = [
            ("RABBITMQ_NODENAME", node(peer)),
            ("RABBITMQ_CONFIG_FILE", path(&config)),
            ("RABBITMQ_CONF_ENV_FILE", path(&place.files.join("no-environment"))),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", path(&plugins)),
            ("RABBITMQ_MNESIA_BASE", path(&place.data.join("mnesia"))),
            ("RABBITMQ_LOG_BASE", path(&place.data.join("log"))),
            ("RABBITMQ_DIST_PORT", distribution.to_string()),
            // Names are not looked up with epmd, a daemon that would outlast the instance.
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                format!("-setcookie tenbin -start_epmd false -erl_epmd_port {distribution}"),
            ),
            ("HOME", path(place.data)),
        ];
        let mut line = Line::new(PROGRAM, Vec::<String>::new());
        line.environment = environment.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Startup {
            files: vec![(config, text), (plugins, "[rabbitmq_mqtt].\n".to_owned())],
            prepare: Vec::new(),
            line,
            ready: ReadyWhen::Line("Server startup complete".to_owned()),
        })
    }
}

/// Host part of a node's name, which may have no dots.
fn node_host(host: &str) -> &str {
    if host == "127.0.0.1" { "localhost" } else { host }
}

/// The server's own script. The one in `PATH` changes the user, which a namespace of an ordinary user does not allow.
const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
