//! `tenbin cluster dev`.

mod child;
mod plan;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::agreement::{Etcd, Read};
use super::control;
use super::etcd_server::{self, EtcdServer};
use super::status::{NodeStatus, Role};
use child::{Program, print};
use plan::NodePlan;

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Number of nodes: 2 or 3.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=3))]
    nodes: u8,
    /// Directory for the data of etcd and of the nodes, and for the configuration files. A further start goes on with it.
    #[arg(long, value_name = "DIR", default_value = "tenbin-cluster")]
    directory: PathBuf,
    /// Port of the first node for MQTT clients; the other nodes have the next ports.
    #[arg(long, value_name = "PORT", default_value_t = 1883)]
    port: u16,
    /// Time after which all of it ends, in seconds; by default it runs until it is interrupted.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Does not start killed nodes again.
    #[arg(long)]
    no_restart: bool,
}

/// Runs the cluster until a signal, or until its time is over.
///
/// # Errors
/// etcd is not installed, a port is in use, or a program fails at its start.
pub(super) async fn run(arguments: &DevArgs) -> Result<(), String> {
    let etcd = etcd_server::find_program()?;
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let handler = |kind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
    let (mut interrupt, mut terminate) = (handler(SignalKind::interrupt())?, handler(SignalKind::terminate())?);
    let stop = async {
        tokio::select! {
            () = received(&mut interrupt) => {}
            () = received(&mut terminate) => {}
            () = over(arguments.seconds) => {}
        }
    };
    let cluster = Cluster::plan(arguments, &etcd, &program)?;
    tokio::select! {
        result = cluster.run(stop) => result,
        // A second signal kills the children.
        () = second(SignalKind::interrupt()) => Err("killed the nodes: they had not ended yet".to_owned()),
    }
}

/// Waits for the second signal of a kind.
async fn second(kind: SignalKind) {
    match signal(kind) {
        Ok(mut signal) => {
            received(&mut signal).await;
            received(&mut signal).await;
        }
        Err(_) => std::future::pending().await,
    }
}

async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

async fn over(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

/// The programs of a cluster.
struct Cluster {
    etcd: Program,
    endpoint: String,
    nodes: Vec<(NodePlan, Program)>,
}

impl Cluster {
    /// Selects ports, and writes the configuration files.
    fn plan(arguments: &DevArgs, etcd: &Path, program: &Path) -> Result<Self, String> {
        let DevArgs { nodes, directory, port, no_restart, .. } = arguments;
        let failed = |error| format!("{}: {error}", directory.display());
        fs::create_dir_all(directory).map_err(failed)?;
        let server = EtcdServer::on_free_ports("etcd", &directory.join("etcd")).map_err(failed)?;
        let plans = plan::nodes(directory, *nodes, *port)?;
        plan::write(&plans, &server.endpoint()).map_err(failed)?;
        let node = |plan: NodePlan| {
            let program = Program {
                name: plan.name.clone(),
                path: program.to_owned(),
                arguments: vec!["broker".into(), "--config".into(), plan.config.clone().into()],
                again_after: (!no_restart).then_some(AGAIN_AFTER),
            };
            (plan, program)
        };
        Ok(Self {
            etcd: Program {
                name: "etcd".to_owned(),
                path: etcd.to_owned(),
                arguments: server.arguments(std::slice::from_ref(&server)),
                again_after: Some(AGAIN_AFTER),
            },
            endpoint: server.endpoint(),
            nodes: plans.into_iter().map(node).collect(),
        })
    }

    /// Runs all programs until `stop` is ready; ends the nodes, and then etcd.
    async fn run(self, stop: impl Future<Output = ()>) -> Result<(), String> {
        let (mut nodes, mut engine) = (JoinSet::new(), JoinSet::new());
        let (stop_nodes, stop_engine) = (watch::Sender::new(false), watch::Sender::new(false));
        engine.spawn(self.etcd.supervise(stop_engine.subscribe(), watch::Sender::new(None)));
        let mut stop = pin!(stop);
        let mut result = tokio::select! {
            answered = answers(&self.endpoint) => answered,
            failed = failure(&mut engine) => Err(failed),
            () = &mut stop => return finish(&stop_engine, engine).await,
        };
        if result.is_ok() {
            print("cluster", &format!("etcd answers at {}", self.endpoint));
            let mut watched = Vec::new();
            for (plan, program) in self.nodes {
                let pid = watch::Sender::new(None);
                watched.push(Watched { pid: pid.subscribe(), plan });
                nodes.spawn(program.supervise(stop_nodes.subscribe(), pid));
            }
            for Watched { plan, .. } in &watched {
                let (NodePlan { name, port, admin, config, .. }, file) = (plan, plan.config.display());
                debug_assert!(config.is_file(), "it is written");
                let text = format!("{name}: MQTT at 127.0.0.1:{port}, admin HTTP at http://127.0.0.1:{admin}, {file}");
                print("cluster", &text);
            }
            result = tokio::select! {
                () = &mut stop => Ok(()),
                failed = failure(&mut nodes) => Err(failed),
                failed = failure(&mut engine) => Err(failed),
                never = show_leaders(&watched) => match never {},
            };
        }
        let nodes = finish(&stop_nodes, nodes).await;
        let engine = finish(&stop_engine, engine).await;
        result.and(nodes).and(engine)
    }
}

/// Waits until the server has answered.
async fn answers(endpoint: &str) -> Result<(), String> {
    let etcd =
        Etcd::new(&[endpoint.to_owned()], None, "dev", Duration::from_secs(1)).map_err(|error| error.to_string())?;
    let until = Instant::now() + ENGINE_WITHIN;
    loop {
        match etcd.read().await {
            Read::Unreachable(error) if Instant::now() > until => return Err(format!("etcd does not answer: {error}")),
            Read::Unreachable(_) => sleep(POLL_EVERY).await,
            Read::Record(_) | Read::Absent => return Ok(()),
        }
    }
}

/// Waits for the error of a program.
async fn failure(programs: &mut JoinSet<Result<(), String>>) -> String {
    loop {
        match programs.join_next().await {
            Some(Ok(Err(error))) => return error,
            Some(Ok(Ok(()))) => {}
            Some(Err(error)) => return error.to_string(),
            // All have ended, and none starts again: there is nothing left to show.
            None => return "all nodes have ended".to_owned(),
        }
    }
}

async fn finish(stop: &watch::Sender<bool>, mut programs: JoinSet<Result<(), String>>) -> Result<(), String> {
    stop.send_replace(true);
    let mut result = Ok(());
    while let Some(ended) = programs.join_next().await {
        result = result.and(ended.unwrap_or_else(|error| Err(error.to_string())));
    }
    result
}

/// A node that may run.
struct Watched {
    plan: NodePlan,
    pid: watch::Receiver<Option<u32>>,
}

/// Prints the leader whenever it or its follower changes.
async fn show_leaders(nodes: &[Watched]) -> std::convert::Infallible {
    let mut shown = String::new();
    loop {
        for node in nodes {
            let Some(pid) = *node.pid.borrow() else { continue };
            let status = control::ask_status(&node.plan.directory, Duration::from_secs(1)).await;
            let Some(text) = status.ok().and_then(|status| leader(&status, pid)) else { continue };
            if text != shown {
                print("cluster", &text);
                shown = text;
            }
        }
        sleep(POLL_EVERY).await;
    }
}

/// A line about a node that leads.
fn leader(status: &NodeStatus, pid: u32) -> Option<String> {
    let record = status.record.as_ref().filter(|_| status.role == Role::Leader)?;
    let copies = match (&record.follower, &record.joiner) {
        (Some(follower), _) => format!("{follower} follows, and takes over after: kill -9 {pid}"),
        (None, Some(joiner)) => format!("{joiner} is being copied to"),
        (None, None) => "no other node has a copy".to_owned(),
    };
    Some(format!("{} leads in epoch {}; {copies}", status.node, record.epoch))
}

/// Wait before a killed program starts again.
const AGAIN_AFTER: Duration = Duration::from_secs(3);
/// Time for etcd to answer after its start.
const ENGINE_WITHIN: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(100);
