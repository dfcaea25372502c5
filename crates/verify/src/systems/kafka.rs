//! Apache Kafka in KRaft mode, without ZooKeeper.

use std::collections::BTreeMap;

use super::{InstancePlace, ReadyWhen, Startup, System, probe};
use crate::line::{Line, Programs};
use crate::plan::Instance;
use tenbin_loadgen::drivers::installed;

/// Kafka from the jars of Maven Central. Each instance is a broker and a controller.
pub(super) struct Kafka;

impl System for Kafka {
    fn startup(&self, place: &InstancePlace<'_>) -> Result<Startup, String> {
        let classes = format!("{}/*", installed::kafka_jars()?);
        let properties = place.files.join("server.properties");
        let logging = place.files.join("log4j2.properties");
        let path = |path: &std::path::Path| path.display().to_string();
        let prepare = Line::new("java", ["-Xmx256m", "-cp", &classes, "kafka.tools.StorageTool", "format"]);
        let prepare = Line {
            arguments: [prepare.arguments, ["-t", CLUSTER_ID, "-c", &path(&properties)].map(String::from).into()]
                .concat(),
            ..prepare
        };
        // The shell makes room for the program, so that signals reach it; the heap is a variable, as in Kafka's scripts.
        let run = format!(
            "exec java ${{KAFKA_HEAP_OPTS:--Xms512m -Xmx512m}} -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:-UsePerfData \
             -Dlog4j2.configurationFile='{}' -cp '{classes}' kafka.Kafka '{}'",
            path(&logging),
            path(&properties)
        );
        Ok(Startup {
            files: vec![(properties, text(place)), (logging, LOGGING.to_owned())],
            prepare: vec![prepare],
            line: Line::shell(run),
            ready: ReadyWhen::Line("Kafka Server started".to_owned()),
        })
    }

    fn probe(&self, instances: &[&Instance], programs: &Programs) -> Option<Line> {
        Some(probe(instances, programs))
    }
}

/// The file server.properties: the settings for these instances, and the template's settings.
fn text(place: &InstancePlace<'_>) -> String {
    let InstancePlace { instance, all, listen, .. } = place;
    let peer = |instance: &Instance| instance.peer.clone().unwrap_or_default();
    let voters: Vec<_> = all.iter().map(|instance| format!("{}@{}", instance.number, peer(instance))).collect();
    let copies = all.len().min(3).to_string();
    let own = [
        ("process.roles", "broker,controller".to_owned()),
        ("node.id", instance.number.to_string()),
        ("controller.quorum.voters", voters.join(",")),
        (
            "listeners",
            format!("PLAINTEXT://{listen}:{},CONTROLLER://{listen}:{}", place.port(), super::port(&peer(instance))),
        ),
        ("advertised.listeners", format!("PLAINTEXT://{}", instance.door)),
        ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned()),
        ("controller.listener.names", "CONTROLLER".to_owned()),
        ("inter.broker.listener.name", "PLAINTEXT".to_owned()),
        ("log.dirs", place.data.join("kafka").display().to_string()),
        ("offsets.topic.replication.factor", copies.clone()),
        ("transaction.state.log.replication.factor", copies.clone()),
        ("transaction.state.log.min.isr", "1".to_owned()),
        ("share.coordinator.state.topic.replication.factor", copies),
        ("share.coordinator.state.topic.min.isr", "1".to_owned()),
        // A new group would wait three seconds for more members.
        ("group.initial.rebalance.delay.ms", "0".to_owned()),
        ("auto.create.topics.enable", "false".to_owned()),
    ];
    let mut settings: BTreeMap<&str, String> = own.into_iter().collect();
    settings.extend(instance.config.iter().map(|(key, value)| (key.as_str(), value.clone())));
    settings.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
}

/// Identity of the cluster: 16 bytes in base64.
const CLUSTER_ID: &str = "dGVuYmluLXZlcmlmeS0wMQ";

const LOGGING: &str = "rootLogger.level = INFO
rootLogger.appenderRef.out.ref = OUT
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
";
