//! Probes: which instance leads.

use tenbin_loadgen::drivers::{self, TOPIC};

use crate::kind::{KINDS, Kind};

/// Name of the instance that leads the stream of JetStream, or partition 0 of the topic of Kafka, that a run publishes to;
/// `None` while none does.
///
/// `instances` are names and addresses (`HOST:PORT`) of all instances of a system, in order.
///
/// # Errors
/// No instance answers, the stream or topic does not exist, or the kind has no leader that this build can ask for.
pub async fn leader(kind: Kind, instances: &[(String, String)]) -> Result<Option<String>, String> {
    let doors: Vec<_> = instances.iter().map(|(_, door)| door.clone()).collect();
    match kind {
        #[cfg(feature = "nats")]
        Kind::Jetstream => drivers::jetstream_leader(&doors, TOPIC).await,
        Kind::Kafka => {
            let node = drivers::kafka_leader(&doors, TOPIC).await?;
            // Nodes have the numbers of their instances, from 1.
            let place = node.and_then(|node| usize::try_from(node).ok()?.checked_sub(1));
            Ok(place.and_then(|place| instances.get(place)).map(|(name, _)| name.clone()))
        }
        _ => Err(format!("{} has no leader that this program can ask for", kind.name())),
    }
}

/// As [`leader`], for the command line: a kind by its name, and instances as `NAME=HOST:PORT`.
///
/// # Errors
/// As [`leader`]; also arguments of another form.
pub fn probe(kind: &str, instances: &[String]) -> Result<Option<String>, String> {
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    let (_, kind) = known.ok_or_else(|| format!("unknown kind {kind:?}"))?;
    let parse = |text: &String| {
        let (name, door) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=HOST:PORT"))?;
        Ok((name.to_owned(), door.to_owned()))
    };
    let instances = instances.iter().map(parse).collect::<Result<Vec<_>, String>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    let found = runtime.block_on(leader(*kind, &instances));
    runtime.shutdown_background();
    found
}
