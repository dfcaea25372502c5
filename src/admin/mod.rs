//! `tenbin admin`.

mod dead_letters;
mod table;
mod top;
mod trace;

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use tenbin_admin::client::{Client, ClientError};
use tenbin_admin::{Role, Secret, add_token};
use tenbin_kit::printable::printable;
use tenbin_kit::{cli, digits::segment, files, tls::ClientFiles};

/// Shows and changes a running broker over its admin HTTP.
///
/// Changes need an operator's token: --token-file, --token, TENBIN_TOKEN, or the local operator's, which the broker keeps
/// in its data directory while it runs. The last one goes only to a loopback address or a unix socket.
#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    #[command(flatten)]
    reach: Reach,
    /// Form of the output.
    #[arg(long, value_name = "FORM", default_value = "table", global = true)]
    format: OutputFormat,
    #[command(subcommand)]
    command: AdminCommand,
}

/// The admin HTTP of a broker, and the token for it.
#[derive(Debug, Args)]
pub(crate) struct Reach {
    /// Address of the admin HTTP, http://HOST:PORT, https://HOST:PORT or unix:PATH; else TENBIN_URL, else the address that the
    /// broker has written to its data directory, else http://127.0.0.1:9883.
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
    /// Token; else TENBIN_TOKEN, else the local operator's, for a loopback address or a unix socket. Other users of
    /// this machine see arguments, but not TENBIN_TOKEN.
    #[arg(long, value_name = "TOKEN", global = true, conflicts_with = "token_file")]
    token: Option<Secret<String>>,
    /// File whose first line is the token.
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Data directory of the broker, with the local operator's token and the address; else TENBIN_DATA, else ./tenbin-data.
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    /// PEM file with the authorities of the server's certificate, for https://. Without it, the system's authorities count;
    /// at the address of a data directory, the server's certificate alone.
    #[arg(long, value_name = "FILE", global = true)]
    ca: Option<PathBuf>,
    /// PEM file with a client certificate, if the server asks for one.
    #[arg(long, value_name = "FILE", global = true, requires = "key")]
    certificate: Option<PathBuf>,
    /// PEM file with the private key of the client certificate.
    #[arg(long, value_name = "FILE", global = true, requires = "certificate")]
    key: Option<PathBuf>,
}

impl Reach {
    /// A client with these settings, and those of the environment.
    pub(crate) fn client(self) -> Result<Client, AdminError> {
        let files = self.tls_files();
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let url = self.url.or_else(|| variable("TENBIN_URL"));
        let of_environment = || std::env::var_os("TENBIN_DATA").filter(|value| !value.is_empty()).map(PathBuf::from);
        let data = self.data.or_else(of_environment).unwrap_or_else(|| "tenbin-data".into());
        let of_file = self.token_file.map(|path| first_line(&path)).transpose()?;
        let token = of_file.or(self.token).or_else(|| variable("TENBIN_TOKEN").map(Secret::new));
        Ok(Client::new(url.as_deref(), token, &data, &files)?)
    }

    /// Files of the client's TLS.
    pub(crate) fn tls_files(&self) -> ClientFiles {
        let Self { ca, certificate, key, .. } = self;
        ClientFiles { ca: ca.clone(), certificate: certificate.clone(), key: key.clone() }
    }
}

/// The token in a file.
fn first_line(path: &Path) -> Result<Secret<String>, AdminError> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let text = files::read_text_or_pipe(path).map_err(named)?;
    Ok(Secret::new(text.lines().next().unwrap_or_default().trim().to_owned()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
enum AdminCommand {
    /// Shows the broker as a whole.
    Status,
    /// Lists sessions.
    Clients {
        /// Text within the Client Identifier.
        #[arg(long)]
        client: Option<String>,
        /// User; "" = anonymous clients.
        #[arg(long)]
        user: Option<String>,
        /// Address without a port.
        #[arg(long)]
        address: Option<String>,
        /// connected, offline, ready, blocked, slow or spilling.
        #[arg(long)]
        state: Option<String>,
        /// Shows all columns and whole names; without it, lines have at most 100 characters.
        #[arg(long)]
        wide: bool,
    },
    /// Shows a session, with its subscriptions.
    Client {
        /// Client Identifier.
        id: String,
    },
    /// Ends a connection.
    Kick {
        /// Client Identifier.
        id: String,
        /// Ends the session too.
        #[arg(long)]
        session: bool,
        /// Reason Code of DISCONNECT: 128 to 255. 152 is Administrative action.
        #[arg(long, default_value_t = 152)]
        reason: u8,
    },
    /// Lists share groups.
    Groups,
    /// Shows a share group with its members.
    Group {
        /// Share name.
        name: String,
        /// Topic Filter.
        filter: String,
    },
    /// Lists, replays or removes the dead letters of a share group's messages, which wait in a standing group.
    DeadLetters {
        /// Share name of the group whose members did not process the messages.
        group: String,
        #[command(subcommand)]
        action: dead_letters::Action,
    },
    /// Ends connections at an even rate, and accepts no more; or drains one member of a share group.
    Drain {
        /// Listener that loses its clients; without it, all listeners.
        #[arg(long)]
        listener: Option<String>,
        /// Seconds in which the clients go.
        #[arg(long, default_value_t = 30)]
        seconds: u32,
        /// Server Reference for MQTT 5.0 clients.
        #[arg(long)]
        server_reference: Option<String>,
        /// Share name, Topic Filter and Client Identifier of a member, which gets no more messages.
        #[arg(long, num_args = 3, value_names = ["NAME", "FILTER", "CLIENT"], conflicts_with_all = ["listener", "server_reference"])]
        member: Option<Vec<String>>,
        /// Ends the drain of the member.
        #[arg(long, requires = "member")]
        end: bool,
        /// Ends the drain: clients that are still there stay, and the listeners open again.
        #[arg(long, conflicts_with_all = ["listener", "server_reference", "member", "seconds"])]
        cancel: bool,
    },
    /// Lists retained messages, or removes them.
    Retained {
        /// Topic Filter.
        #[arg(default_value = "#")]
        filter: String,
        /// Removes them.
        #[arg(long)]
        remove: bool,
    },
    /// Publishes a message.
    Publish {
        /// Topic Name.
        topic: String,
        /// Payload.
        #[arg(default_value = "")]
        payload: String,
        /// QoS.
        #[arg(long, default_value_t = 0)]
        qos: u8,
        /// Retains the message.
        #[arg(long)]
        retain: bool,
    },
    /// Reads the configuration again, as SIGHUP does.
    Reload,
    /// Lists bans, makes one, or ends one.
    Ban {
        /// Client Identifier.
        #[arg(long)]
        client: Option<String>,
        /// Authenticated user.
        #[arg(long)]
        user: Option<String>,
        /// Network, or one address.
        #[arg(long)]
        network: Option<String>,
        /// Number of a ban to end.
        #[arg(long, conflicts_with_all = ["client", "user", "network"])]
        remove: Option<u64>,
    },
    /// Makes a token, prints it, and adds its hash to a file: `tokens` of `[admin]`. Needs no broker.
    Token {
        /// The file; created if missing.
        file: PathBuf,
        /// viewer (reads) or operator (changes too).
        #[arg(long)]
        role: Role,
    },
    /// Exit code 0 if the broker is alive and ready. For containers without a shell.
    Health,
    /// Shows packets as they come and go, without payloads, until it is interrupted.
    #[command(group(clap::ArgGroup::new("wanted").required(true)))]
    Trace {
        /// Client Identifier: all packets of the client.
        #[arg(long, group = "wanted")]
        client: Option<String>,
        /// Topic Filter: PUBLISH packets of all clients.
        #[arg(long, value_name = "FILTER", group = "wanted")]
        topic: Option<String>,
    },
    /// Shows rates, share groups and slow clients each second, until it is interrupted.
    Top,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum AdminError {
    Client(ClientError),
    Io(io::Error),
    /// The answer is no JSON.
    Answer(serde_json::Error),
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(error @ ClientError::Refused(status, _)) if status.as_u16() == 401 => write!(
                f,
                "{error}. --token-file names a file with a token, --data the data directory of a broker on this machine, \
                 which has one"
            ),
            Self::Client(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::Answer(error) => write!(f, "the answer cannot be read: {error}"),
        }
    }
}

impl From<ClientError> for AdminError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<io::Error> for AdminError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<serde_json::Error> for AdminError {
    fn from(error: serde_json::Error) -> Self {
        Self::Answer(error)
    }
}

pub(crate) fn run(arguments: AdminArgs) -> Result<(), AdminError> {
    let AdminArgs { reach, format, command } = arguments;
    if let AdminCommand::Token { file, role } = &command {
        return Ok(writeln!(io::stdout(), "{}", add_token(file, *role)?)?);
    }
    let client = reach.client()?;
    let session = Session { client, format };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(session.run(command))
}

/// A client and the form of its output.
struct Session {
    client: Client,
    format: OutputFormat,
}

impl Session {
    async fn run(&self, command: AdminCommand) -> Result<(), AdminError> {
        match command {
            AdminCommand::Status => self.show(self.get("status").await?),
            AdminCommand::Clients { client, user, address, state, wide } => {
                let wanted = [("client", client), ("user", user), ("address", address), ("state", state)];
                let found = self.all("clients", &wanted).await?;
                match (self.format, &found) {
                    (OutputFormat::Table, Value::Array(items)) if !wide => {
                        Ok(cli::out().write_all(table::fitted(items, &CLIENT_COLUMNS).as_bytes())?)
                    }
                    _ => self.show(found),
                }
            }
            AdminCommand::Client { id } => {
                let path = format!("clients/{}", segment(&id));
                let mut shown = self.get(&path).await?;
                shown["subscriptions"] = self.all(&format!("{path}/subscriptions"), &[]).await?;
                self.show(shown)
            }
            AdminCommand::Kick { id, session, reason } => {
                let path = format!("clients/{}?session={session}&reason={reason}", segment(&id));
                self.show(self.change("DELETE", &path, None).await?)
            }
            AdminCommand::Groups => self.show(self.all("groups", &[]).await?),
            AdminCommand::Group { name, filter } => {
                self.show(self.get(&format!("groups/{}/{}", segment(&name), segment(&filter))).await?)
            }
            AdminCommand::DeadLetters { group, action } => action.run(self, &group).await,
            AdminCommand::Drain { member: Some(member), end, .. } => {
                let path = member.iter().map(|part| segment(part)).collect::<Vec<_>>();
                let path = format!("groups/{}/{}/members/{}/drain", path[0], path[1], path[2]);
                self.show(self.change(if end { "DELETE" } else { "POST" }, &path, None).await?)
            }
            AdminCommand::Drain { cancel: true, .. } => self.change("DELETE", "drain", None).await.map(|_| ()),
            AdminCommand::Drain { listener, seconds, server_reference, .. } => {
                let body = json!({ "listener": listener, "seconds": seconds, "server_reference": server_reference });
                self.show(self.change("POST", "drain", Some(body)).await?)
            }
            AdminCommand::Retained { filter, remove: false } => {
                self.show(self.all("retained", &[("filter", Some(filter))]).await?)
            }
            AdminCommand::Retained { filter, remove: true } => {
                self.repeat("DELETE", &format!("retained?filter={}", segment(&filter)), "removed", u64::MAX).await
            }
            AdminCommand::Publish { topic, payload, qos, retain } => {
                let body = json!({ "topic": topic, "payload": payload, "qos": qos, "retain": retain });
                self.show(self.change("POST", "publish", Some(body)).await?)
            }
            AdminCommand::Reload => {
                let done = self.change("POST", "config/reload", None).await?;
                match self.format {
                    OutputFormat::Table => Ok(cli::out().write_all(reloaded(&done).as_bytes())?),
                    OutputFormat::Json => self.show(done),
                }
            }
            AdminCommand::Ban { remove: Some(number), .. } => {
                self.change("DELETE", &format!("bans/{number}"), None).await.map(|_| ())
            }
            AdminCommand::Ban { client: None, user: None, network: None, .. } => {
                self.show(self.all("bans", &[]).await?)
            }
            AdminCommand::Ban { client, user, network, .. } => {
                let body = json!({ "client": client, "user": user, "network": network });
                self.show(self.change("POST", "bans", Some(body)).await?)
            }
            AdminCommand::Health => {
                for path in ["/healthz", "/readyz"] {
                    self.client.request("GET", path, None).await?;
                }
                Ok(writeln!(io::stdout(), "ok")?)
            }
            AdminCommand::Top => top::run(&self.client).await,
            AdminCommand::Trace { client, topic } => {
                let is_json = self.format == OutputFormat::Json;
                trace::run(&self.client, client.as_deref(), topic.as_deref(), is_json).await
            }
            AdminCommand::Token { .. } => Ok(()), // needs no broker
        }
    }

    /// Repeats a change of up to 1,000 messages until `most` are `done`, or no more are left.
    async fn repeat(&self, method: &str, path: &str, done: &str, most: u64) -> Result<(), AdminError> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let (mut sum, mut before) = (0, String::new());
        loop {
            let path = format!("{path}{separator}limit={}{before}", most.saturating_sub(sum).clamp(1, 1000));
            let mut answer = self.change(method, &path, None).await?;
            let Value::Object(figures) = &mut answer else { return self.show(answer) };
            let has_more = figures.remove("more") == Some(Value::Bool(true));
            // Messages that have failed again since the first request stay.
            if let Some(time) = figures.remove("before_ms") {
                before = format!("&before_ms={time}");
            }
            sum += figures[done].as_u64().unwrap_or_default();
            let is_refused = figures.get("refused").and_then(Value::as_u64).is_some_and(|refused| refused > 0);
            if !has_more || sum >= most || is_refused {
                figures[done] = sum.into();
                return self.show(answer);
            }
        }
    }

    async fn get(&self, path: &str) -> Result<Value, AdminError> {
        Ok(serde_json::from_str(&self.client.request("GET", &format!("/api/v1/{path}"), None).await?)?)
    }

    async fn change(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value, AdminError> {
        let body = body.map(|body| ("application/json", body.to_string()));
        let answer = self.client.request(method, &format!("/api/v1/{path}"), body).await?;
        if answer.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(&answer)?) }
    }

    /// All pages of a list.
    async fn all(&self, path: &str, wanted: &[(&str, Option<String>)]) -> Result<Value, AdminError> {
        self.items(path, wanted, u64::MAX).await
    }

    /// The first items of a list, at most `most`.
    async fn items(&self, path: &str, wanted: &[(&str, Option<String>)], most: u64) -> Result<Value, AdminError> {
        let wanted = wanted.iter().filter_map(|(key, value)| Some(format!("&{key}={}", segment(value.as_ref()?))));
        let wanted = wanted.collect::<String>();
        let (mut items, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let after = cursor.map(|cursor| format!("&cursor={}", segment(&cursor))).unwrap_or_default();
            let limit = most.saturating_sub(items.len() as u64).min(1000);
            let query = format!("limit={limit}{wanted}{after}");
            let is_short = path == "bans"; // one page, without parameters
            let mut page = self.get(&if is_short { path.to_owned() } else { format!("{path}?{query}") }).await?;
            items.extend(page["items"].as_array_mut().map(std::mem::take).unwrap_or_default());
            cursor = page["cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || items.len() as u64 >= most {
                return Ok(Value::Array(items));
            }
        }
    }

    fn show(&self, value: Value) -> Result<(), AdminError> {
        let text = match (self.format, &value) {
            (_, Value::Null) => return Ok(()),
            (OutputFormat::Json, value) => format!("{value:#}\n"),
            (OutputFormat::Table, Value::Array(items)) => table::rows(items),
            (OutputFormat::Table, Value::Object(object)) => shown(object),
            (OutputFormat::Table, other) => format!("{other}\n"),
        };
        Ok(cli::out().write_all(text.as_bytes())?)
    }
}

/// The result of a reload, a line for each key.
fn reloaded(done: &Value) -> String {
    let lines = |list: &str, prefix: &str, before: &str| {
        let line = |found: &Value| {
            let [key, old, new] = ["key", "old", "new"].map(|part| printable(found[part].as_str().unwrap_or_default()));
            format!("{prefix}: {key} = {new} ({before}: {old})\n")
        };
        done[list].as_array().into_iter().flatten().map(line).collect::<String>()
    };
    let taken = match lines("taken", "taken", "before") {
        none if none.is_empty() => "no key that a reload takes has changed\n".to_owned(),
        taken => taken,
    };
    let not_taken = lines("not_taken", "not taken, needs a restart", "in effect");
    format!("{taken}{not_taken}files of logins, rules and TLS were read again\n")
}

/// Columns of a list of clients that fits a terminal: paths in the JSON of a client.
const CLIENT_COLUMNS: [&str; 7] =
    ["client", "state", "user", "connection.peer", "queued_messages", "disk_messages", "groups"];

/// Keys and values, and lists of objects as tables below.
fn shown(object: &Map<String, Value>) -> String {
    let is_list = |value: &Value| value.as_array().is_some_and(|items| items.iter().any(Value::is_object));
    let mut text = table::pairs(object.iter().filter(|(_, value)| !is_list(value)));
    for (name, value) in object.iter().filter(|(_, value)| is_list(value)) {
        text += &format!("\n{name}:\n{}", table::rows(value.as_array().map_or(&[], Vec::as_slice)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_tells_what_was_taken() {
        let list = |key| json!([{ "key": key, "old": "1", "new": "2\u{1b}" }]);
        let text = reloaded(&json!({ "taken": list("policy"), "not_taken": list("queue.bytes_maximum") }));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "taken: policy = 2\\u001b (before: 1)");
        assert_eq!(lines[1], "not taken, needs a restart: queue.bytes_maximum = 2\\u001b (in effect: 1)");
        let text = reloaded(&json!({ "taken": [], "not_taken": [] }));
        assert!(text.starts_with("no key that a reload takes has changed\n"), "{text}");
    }
}
