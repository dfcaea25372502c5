//! etcd, which holds the record that names the leader of a pair or cluster of Tenbin.

use super::{InstancePlace, ReadyWhen, Startup, System, port};
use crate::line::Line;
use crate::plan::Instance;

/// etcd with short times to a new leader.
pub(super) struct Etcd;

/// Time between two heartbeats of etcd's leader, in milliseconds.
const HEARTBEAT: &str = "50";
/// Silence after which etcd elects a new leader, in milliseconds.
const ELECTION: &str = "500";

impl System for Etcd {
    fn startup(&self, place: &InstancePlace<'_>) -> Result<Startup, String> {
        let InstancePlace { instance, all, listen, .. } = place;
        let url = |address: &str| format!("http://{address}");
        let peer = |instance: &Instance| url(instance.peer.as_deref().unwrap_or_default());
        let listen_on = |address: &str| format!("http://{listen}:{}", port(address));
        let members: Vec<_> = all.iter().map(|one| format!("{}={}", one.name, peer(one))).collect();
        let mut settings = [
            ("name", instance.name.clone()),
            ("data-dir", place.data.join("etcd").display().to_string()),
            ("listen-client-urls", listen_on(&instance.door)),
            ("advertise-client-urls", url(&instance.door)),
            ("listen-peer-urls", listen_on(instance.peer.as_deref().unwrap_or_default())),
            ("initial-advertise-peer-urls", peer(instance)),
            ("initial-cluster", members.join(",")),
            ("initial-cluster-token", instance.system.clone()),
            ("initial-cluster-state", "new".to_owned()),
            ("heartbeat-interval", HEARTBEAT.to_owned()),
            ("election-timeout", ELECTION.to_owned()),
            ("log-level", "warn".to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec();
        for (key, value) in &instance.config {
            settings.retain(|(known, _)| known != key);
            settings.push((key.clone(), value.clone()));
        }
        let arguments = settings.into_iter().map(|(key, value)| format!("--{key}={value}"));
        Ok(Startup {
            files: Vec::new(),
            prepare: Vec::new(),
            line: Line::new("etcd", arguments),
            ready: ReadyWhen::Health(place.port()),
        })
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::plan::Plan;
    use crate::template::Template;

    #[test]
    fn servers_know_each_other_and_settings_replace_defaults() {
        let text = "systems: { b: { kind: tenbin, mode: pair }, e: { kind: etcd, replicas: 3, config: { election-timeout: 900 } }, \
                    p: { publishes_to: b } }";
        let plan = Plan::new(&Template::read("t.yaml", text).unwrap()[0], None).unwrap();
        let all: Vec<_> = plan.instances.iter().filter(|instance| instance.system == "e").collect();
        let place = InstancePlace::of_second(&all, plan.machines[3].address, &[]);
        let startup = Etcd.startup(&place).unwrap();
        let line = startup.line.arguments.join(" ");
        for wanted in [
            "--name=e-2 --data-dir=/data/etcd --listen-client-urls=http://0.0.0.0:2379",
            "--initial-cluster=e-1=http://e-1:2380,e-2=http://e-2:2380,e-3=http://e-3:2380",
            "--initial-advertise-peer-urls=http://e-2:2380",
            "--heartbeat-interval=50",
            "--election-timeout=900",
        ] {
            assert!(line.contains(wanted), "{wanted} in {line}");
        }
        assert!(!line.contains("--election-timeout=500"), "{line}");
        assert_eq!(startup.ready, ReadyWhen::Health(2379));
    }
}
