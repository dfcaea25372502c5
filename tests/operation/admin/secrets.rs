//! Secrets stay out of everything that the broker writes.

use std::path::Path;

use base64ct::{Base64, Encoding as _};
use tenbin_broker::Config;
use tenbin_broker::auth::Secrets as PasswordHashes;
use tenbin_codec::{AuthProperties, Connect, ConnectProperties, ProtocolVersion, ReasonCode, Secret};
use tenbin_loadgen::run::ConnectionOptions;

use crate::admin::stage::Stage;
use crate::support::{ConfigFile, PATIENCE, RawClient, WebAnswer, WebServer, exchange, text};

/// Part of each secret.
const HIDDEN: &str = "hidden";

/// Options of clients, of logins and of runs, and the packets that carry their secrets.
#[test]
fn no_option_or_packet_shows_its_secret() {
    let hidden = || Secret::new(HIDDEN.to_owned());
    let files = tenbin_kit::tls::ClientFiles::default();
    let client = tenbin_admin::client::Client::new(None, Some(hidden()), Path::new("."), &files);
    let login = tenbin_sn_client::ClientOptions::new("gateway:1885", "c").credentials("user", HIDDEN);
    let run = ConnectionOptions { password: Some(hidden()), ..ConnectionOptions::new("run") };
    let hashes = PasswordHashes::new(HIDDEN.as_bytes(), true).expect("random numbers");
    let config = Config::parse(
        "[[auth]]\nname = \"service\"\nkind = \"http\"\nurl = \"http://user:hidden@127.0.0.1/hidden?key=hidden\"\n\
         [[webhook]]\nurl = \"https://user:hidden@example.org/hidden\"\nevents = [\"connected\"]\n",
    );
    let mut connect = Connect::new(ProtocolVersion::V5, text("c"));
    connect.password = Some(HIDDEN.into());
    connect.properties.authentication_data = Some(HIDDEN.into());
    let auth = AuthProperties { authentication_data: Some(HIDDEN.into()), ..AuthProperties::default() };
    for shown in [
        format!("{:?}", client.expect("an address")),
        format!("{login:?}"),
        format!("{run:?}"),
        serde_json::to_string(&run).expect("JSON"),
        format!("{hashes:?}"),
        format!("{:?}", config.expect("a configuration")),
        format!("{connect:?} {auth:?}"),
    ] {
        assert!(!shown.contains(HIDDEN) && !shown.contains("$argon2id$"), "{shown}");
    }
}

/// At the most detailed level, with failing services, right and wrong credentials over MQTT and HTTP.
#[test]
fn no_secret_is_in_log_metrics_api_or_arguments() {
    let server = WebServer::start(|_| WebAnswer::new(500, "hidden answer"));
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).expect("written");
        path
    };
    let signing = file("signing", "hidden signing key");
    let empty = file("passwords", "");
    let url = |place: &str| format!("http://user:hidden@{}/{place}?key=hidden", server.address());
    let config = ConfigFile::new(&format!(
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nauth = [\"service\", \"tokens\", \"staff\"]\n\
         [[listeners]]\nname = \"web\"\naddress = \"127.0.0.1:0\"\ntransport = \"http\"\nauth = [\"service\", \"tokens\", \"staff\"]\n\
         [[auth]]\nname = \"service\"\nkind = \"http\"\nurl = {:?}\non_failure = \"next\"\n\
         [[auth]]\nname = \"tokens\"\nkind = \"jwt\"\njwks = {:?}\n\
         [[auth]]\nname = \"staff\"\nkind = \"passwords\"\nfile = {empty:?}\n\
         [[webhook]]\nurl = {:?}\nevents = [\"connected\"]\nsecret_file = {signing:?}\n",
        url("login"),
        url("keys"),
        url("hidden"),
    ));
    let stage = Stage::start(&["--config", config.path(), "--log", "trace"]);
    let line = stage.broker.wait_for_start_line("HTTP ingest");
    let ingest =
        line.split_once("http://").and_then(|(_, rest)| rest.split('/').next()?.parse().ok()).expect("an address");
    let addresses = stage.broker.addresses();
    stage.broker.assert_serves(); // The first listener has no sources, and tells the webhook.

    let log_in = |properties: ConnectProperties, password: &str| {
        let mut connect = Connect::new(ProtocolVersion::V5, text("c"));
        connect.user_name = Some(text("alice"));
        connect.password = Some(password.into());
        connect.properties = properties;
        RawClient::try_connect(addresses[1], connect).1.reason
    };
    assert!(log_in(ConnectProperties::default(), "hidden password").is_error());
    // A token with a kid, so that its keys are fetched.
    let part = |json: &str| base64ct::Base64UrlUnpadded::encode_string(json.as_bytes());
    let token =
        format!("{}.{}.hiddenhi", part(r#"{"alg":"HS256","kid":"one"}"#), part(r#"{"sub":"alice","exp":9999999999}"#));
    assert!(log_in(ConnectProperties::default(), &token).is_error());
    let method = ConnectProperties {
        authentication_method: Some(text("JWT")),
        authentication_data: Some(token.as_str().into()),
        ..ConnectProperties::default()
    };
    assert!(log_in(method, "hidden too") != ReasonCode::Success);

    let basic = Base64::encode_string(b"alice:hidden password");
    let wrong = "tenbin-hidden";
    for (address, path, authorization) in [
        (ingest, "POST /topics/a", format!("Basic {basic}")),
        (ingest, "POST /topics/a", format!("Bearer {token}")),
        (stage.admin, "POST /api/v1/bans", format!("Bearer {wrong}")),
        (stage.admin, "GET /api/v1/status", format!("Bearer {}", stage.token)),
    ] {
        let head = format!("{path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {authorization}\r\n");
        exchange(address, format!("{head}content-length: 1\r\nconnection: close\r\n\r\nx").as_bytes())
            .expect("an answer");
    }
    for words in ["a login service failed", "cannot fetch the keys", "the webhook takes no events", "login refused"] {
        stage.broker.log().wait_for(&[words], PATIENCE);
    }

    let mut written = stage.broker.log().all();
    for path in ["/metrics", "/readyz?verbose", "/api/v1/config", "/api/v1/status", "/api/v1/clients", "/api/v1/bans"] {
        written.push(stage.get(path).body);
    }
    let arguments = std::fs::read(format!("/proc/{}/cmdline", stage.broker.pid())).unwrap_or_default();
    written.push(String::from_utf8_lossy(&arguments).into_owned());
    for secret in [HIDDEN, &stage.token, &basic, &token] {
        let shown = written.iter().find(|text| text.contains(secret));
        assert!(shown.is_none(), "{secret}: {shown:?}");
    }
}
