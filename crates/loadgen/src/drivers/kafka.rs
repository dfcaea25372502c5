//! Kafka: clients of Kafka's own library, in a program of this project.

use crate::LoadgenError;
use crate::run::{Assignment, Driver, DriverFuture, DriverRun, Plan};

use super::installed::kafka_jars;
use super::settings::{ACKS, PARTITIONS, REPLICAS};
use super::{command, names, settings};

/// The driver of Kafka, protocol `kafka`.
///
/// A message is published once the system has acknowledged it as the setting [`ACKS`] says, and received once a poll
/// returns it. The topic is named as the first level of the plan's topics; it is created with [`PARTITIONS`] and
/// [`REPLICAS`]. All messages of a stream go to one partition, so that their order is defined. A share group is a
/// consumer group. QoS has no effect.
///
/// The clients are those of Kafka's library, in the Java program `verifications/clients/KafkaLoad.java`. Its losses of
/// connections are not counted: the library hides them.
#[derive(Debug, Clone, Copy)]
pub struct KafkaDriver;

impl Driver for KafkaDriver {
    fn protocol(&self) -> &'static str {
        "kafka"
    }

    fn prepare(&self, assignment: Assignment) -> DriverFuture<'_, Box<dyn DriverRun>> {
        Box::pin(async move {
            check(&assignment.plan)?;
            let jars = kafka_jars().map_err(LoadgenError::Arguments)?;
            let files = tempfile::Builder::new().prefix("tenbin-kafka-").tempdir().map_err(LoadgenError::Runtime)?;
            let program = files.path().join("KafkaLoad.java");
            std::fs::write(&program, PROGRAM)
                .map_err(|source| LoadgenError::Write { path: program.clone(), source })?;
            let heap = heap_mib(&assignment.plan);
            let command = format!("exec java -Xmx{heap}m {JVM} -cp '{jars}/*' '{}'", program.display());
            command::prepare(command, Some(files), assignment).await
        })
    }
}

fn check(plan: &Plan) -> Result<(), LoadgenError> {
    settings::check_nothing_of_mqtt(plan)?;
    settings::check_known(plan, &[ACKS, PARTITIONS, REPLICAS])?;
    settings::count(plan, PARTITIONS)?;
    settings::count(plan, REPLICAS)?;
    if let Some(acks) = plan.settings.get(ACKS).filter(|acks| !["0", "1", "all"].contains(&acks.as_str())) {
        return Err(LoadgenError::Arguments(format!("setting {ACKS}: {acks:?} is none of 0, 1 and all")));
    }
    names::check_filters(plan)
}

/// Largest heap of its JVM, in MiB: a producer of the library buffers 32 MiB.
fn heap_mib(plan: &Plan) -> u64 {
    let subscribers = plan.audiences.iter().map(|audience| audience.count);
    let clients = subscribers.chain([plan.publishers.count]).max().unwrap_or_default();
    (256 + 32 * u64::from(clients)).min(4096)
}

/// Options of its JVM. A small heap with serial collection takes the least from the system under test. Standard output is
/// for lines alone. JVMs in PID namespaces share /tmp, so they must not write performance data there. When memory runs out,
/// the whole program must end: otherwise one thread of the library would end, and its messages would be lost.
const JVM: &str = "-Xms256m -XX:+UseSerialGC -XX:-UsePerfData -XX:+ExitOnOutOfMemoryError -XX:+DisplayVMOutputToStderr \
                   -Xlog:disable -Xlog:all=warning:stderr";

/// The program, in Java.
const PROGRAM: &str = include_str!("../../../../verifications/clients/KafkaLoad.java");
