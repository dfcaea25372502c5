//! `tenbin explain`: by admin HTTP, or by MQTT with `--broker`.

use std::io;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tenbin_admin::client::{Client, ClientError};
use tenbin_explain::{ExplainError, Printer, Transport};
use tenbin_kit::digits::segment;
use tenbin_kit::tls::ClientFiles;

use crate::admin::{AdminError, Reach};
use crate::mqtt_tls;

#[derive(Debug, Args)]
pub(crate) struct ExplainCommand {
    #[command(flatten)]
    wanted: tenbin_explain::ExplainArgs,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) fn run(arguments: ExplainCommand) -> Result<(), String> {
    let ExplainCommand { wanted, reach } = arguments;
    if wanted.is_by_mqtt() {
        let transport = if wanted.is_over_tls() { tls(&wanted, &reach.tls_files())? } else { Transport::tcp() };
        return tenbin_explain::run(&wanted, transport).map_err(|error| error.to_string());
    }
    let client = reach.client().map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(explain(&client, &wanted))
}

/// TLS to the broker for MQTT.
fn tls(wanted: &tenbin_explain::ExplainArgs, files: &ClientFiles) -> Result<Transport, String> {
    let broker = wanted.address();
    let host = broker.rsplit_once(':').map_or(&*broker, |(host, _)| host).trim_matches(['[', ']']);
    mqtt_tls::transport(host, files, "--", &format!("--broker: {broker:?}"))
}

async fn explain(client: &Client, wanted: &tenbin_explain::ExplainArgs) -> Result<(), String> {
    let mut printer = Printer::new(wanted);
    loop {
        let documents = documents(client, wanted).await.map_err(|error| error.to_string())?;
        if documents.is_empty() {
            let group = format!("$share/{}/{}", wanted.group(), wanted.filter().unwrap_or("…"));
            return Err(ExplainError::NoSuchGroup { group }.to_string());
        }
        match printer.print(&documents) {
            // The reader has closed the pipe.
            Err(ExplainError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            printed => printed.map_err(|error| error.to_string())?,
        }
        if !wanted.follows() {
            return Ok(());
        }
        tokio::time::sleep(EACH).await;
    }
}

/// The reports on each group of the name, as `$SYS/share/` has them.
async fn documents(client: &Client, wanted: &tenbin_explain::ExplainArgs) -> Result<Vec<Value>, AdminError> {
    let filters = match wanted.filter() {
        Some(filter) => vec![filter.to_owned()],
        None => filters(client, wanted.group()).await?,
    };
    let mut documents = Vec::new();
    for filter in filters {
        let path = format!("/api/v1/groups/{}/{}", segment(wanted.group()), segment(&filter));
        let mut members = match get(client, &path).await {
            // It has just ended, or there is none.
            Err(AdminError::Client(ClientError::Refused(status, _))) if status.as_u16() == 404 => continue,
            members => members?,
        };
        if let Some(members) = members.as_object_mut() {
            for other in ["shadow", "scale", "summary"] {
                members.remove(other);
            }
        }
        let explained = get(client, &format!("{path}/explain")).await?;
        let Value::Object(mut explained) = explained else { continue };
        let [shadow, decisions] = ["shadow", "decisions"].map(|part| explained.remove(part).unwrap_or_default());
        documents.push(json!({ "members": members, "shadow": shadow, "decisions": decisions }));
    }
    Ok(documents)
}

/// Filters of the groups of a name, in order.
async fn filters(client: &Client, name: &str) -> Result<Vec<String>, AdminError> {
    let (mut filters, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(client, &format!("/api/v1/groups?limit=1000{cursor}")).await?;
        let groups = page["items"].as_array().into_iter().flatten();
        let own = groups.filter(|group| group["group"] == name);
        filters.extend(own.filter_map(|group| group["filter"].as_str().map(str::to_owned)));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={}", segment(next)),
            None => break,
        }
    }
    filters.sort();
    Ok(filters)
}

async fn get(client: &Client, path: &str) -> Result<Value, AdminError> {
    Ok(serde_json::from_str(&client.request("GET", path, None).await?)?)
}

/// Interval of new decisions, as of the topics below `$SYS/share/`.
const EACH: Duration = Duration::from_secs(1);
