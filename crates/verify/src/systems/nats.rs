//! NATS, with and without JetStream.

use super::{InstancePlace, ReadyWhen, Startup, System, probe};
use crate::line::{Line, Programs};
use crate::plan::Instance;
use tenbin_loadgen::drivers::installed;

/// Core NATS.
pub(super) struct Nats;

/// NATS with JetStream, on the instance's own data directory.
pub(super) struct Jetstream;

impl System for Nats {
    fn startup(&self, place: &InstancePlace<'_>) -> Result<Startup, String> {
        Ok(startup(place, settings(place.instance, |_| true), String::new()))
    }
}

impl System for Jetstream {
    fn startup(&self, place: &InstancePlace<'_>) -> Result<Startup, String> {
        let own = settings(place.instance, |key| OF_JETSTREAM.contains(&key));
        let rest = settings(place.instance, |key| !OF_JETSTREAM.contains(&key));
        let jetstream = format!("jetstream {{\n  store_dir: {:?}\n{own}}}\n", place.data.display().to_string());
        Ok(startup(place, rest, jetstream))
    }

    fn probe(&self, instances: &[&Instance], programs: &Programs) -> Option<Line> {
        Some(probe(instances, programs))
    }
}

/// The template's settings whose keys are `wanted`, in the server's format.
fn settings(instance: &Instance, wanted: impl Fn(&str) -> bool) -> String {
    let of_kind = instance.config.iter().filter(|(key, _)| wanted(key));
    of_kind.map(|(key, value)| format!("{key}: {value}\n")).collect()
}

fn startup(place: &InstancePlace<'_>, settings: String, jetstream: String) -> Startup {
    let InstancePlace { instance, listen, .. } = place;
    let mut text = format!("server_name: {}\nlisten: {listen}:{}\n", instance.name, place.port());
    text += &jetstream;
    if let Some(peer) = instance.peer.as_ref().filter(|_| place.all.len() > 1) {
        let routes: String = instance.peers.iter().map(|peer| format!("    nats-route://{peer}\n")).collect();
        text += &format!(
            "cluster {{\n  name: {}\n  listen: {listen}:{}\n  routes: [\n{routes}  ]\n}}\n",
            instance.system,
            super::port(peer)
        );
    }
    text += &settings;
    let config = place.files.join("nats.conf");
    let line = Line::new(installed::nats_server(), ["-c".to_owned(), config.display().to_string()]);
    Startup { files: vec![(config, text)], prepare: Vec::new(), line, ready: ReadyWhen::Line("Server is ready".into()) }
}

/// Settings that belong into the block `jetstream`.
const OF_JETSTREAM: [&str; 9] = [
    "domain",
    "max_buffered_msgs",
    "max_buffered_size",
    "max_file_store",
    "max_memory_store",
    "max_outstanding_catchup",
    "request_queue_limit",
    "strict",
    "sync_interval",
];
