//! `openapi.json` describes every route, and every answer is as it says.

use std::collections::BTreeSet;

use serde_json::{Value, json as value};
use tenbin_codec::QoS;

use crate::admin::stage::{Stage, json};
use crate::support::{ConfigFile, DataDirectory, share};

/// A request to a described route, and its expected status.
struct Request {
    method: &'static str,
    /// As in the description.
    route: &'static str,
    path: &'static str,
    /// Media type and text.
    body: Option<(&'static str, &'static str)>,
    status: u16,
}

fn get(route: &'static str, path: &'static str) -> Request {
    Request { method: "get", route, path, body: None, status: 200 }
}

fn post(route: &'static str, path: &'static str, body: &'static str, status: u16) -> Request {
    Request { method: "post", route, path, body: Some(("application/json", body)), status }
}

fn delete(route: &'static str, path: &'static str, status: u16) -> Request {
    Request { method: "delete", route, path, body: None, status }
}

/// Each route once with success, and mistakes of all kinds.
fn requests() -> Vec<Request> {
    const GROUP: &str = "/api/v1/groups/{name}/{filter}";
    vec![
        get("/healthz", "/healthz"),
        get("/readyz", "/readyz?verbose"),
        get("/leaderz", "/leaderz"),
        Request { status: 404, ..get("/cluster", "/cluster") },
        get("/metrics", "/metrics"),
        get("/api/v1/openapi.json", "/api/v1/openapi.json"),
        get("/api/v1/status", "/api/v1/status"),
        get("/api/v1/findings", "/api/v1/findings"),
        get("/api/v1/past", "/api/v1/past"),
        get("/api/v1/config", "/api/v1/config"),
        Request {
            body: Some(("application/toml", "policy = \"random\"\n[queue]\nmessages_maximum = 0\n")),
            ..post("/api/v1/config/check", "/api/v1/config/check", "", 200)
        },
        post("/api/v1/config/reload", "/api/v1/config/reload", "", 200),
        post("/api/v1/log", "/api/v1/log", r#"{"level": "info"}"#, 204),
        post("/api/v1/log", "/api/v1/log", r#"{"level": "loud"}"#, 400),
        get("/api/v1/bridges", "/api/v1/bridges"),
        get("/api/v1/bans", "/api/v1/bans"),
        post("/api/v1/bans", "/api/v1/bans", r#"{"client": "worm", "until": 4000000000}"#, 201),
        post("/api/v1/bans", "/api/v1/bans", "{}", 400),
        post("/api/v1/bans", "/api/v1/bans", r#"{"network": "10.0.0.0/99"}"#, 400),
        get("/api/v1/bans", "/api/v1/bans"),
        delete("/api/v1/bans/{number}", "/api/v1/bans/1", 204),
        delete("/api/v1/bans/{number}", "/api/v1/bans/1", 404),
        delete("/api/v1/bans/{number}", "/api/v1/bans/one", 400),
        get("/api/v1/clients", "/api/v1/clients?limit=2"),
        get("/api/v1/clients", "/api/v1/clients?client=w&state=connected&slow=false&user=&address=127.0.0.1"),
        Request { status: 400, ..get("/api/v1/clients", "/api/v1/clients?limit=1001") },
        Request { status: 400, ..get("/api/v1/clients", "/api/v1/clients?cursor=x") },
        Request { status: 400, ..get("/api/v1/clients", "/api/v1/clients?colour=red") },
        get("/api/v1/clients/{id}", "/api/v1/clients/worker%2F1"),
        Request { status: 404, ..get("/api/v1/clients/{id}", "/api/v1/clients/nobody") },
        get("/api/v1/clients/{id}/subscriptions", "/api/v1/clients/worker%2F1/subscriptions"),
        get("/api/v1/subscriptions", "/api/v1/subscriptions?topic=jobs/1"),
        Request { status: 400, ..get("/api/v1/subscriptions", "/api/v1/subscriptions") },
        Request { status: 400, ..get("/api/v1/subscriptions", "/api/v1/subscriptions?topic=%23") },
        post(
            "/api/v1/publish",
            "/api/v1/publish",
            r#"{"topic": "kept/1", "payload": "x", "qos": 1, "retain": true}"#,
            200,
        ),
        post("/api/v1/publish", "/api/v1/publish", r#"{"topic": "jobs/1", "payload": "x", "qos": 1}"#, 200),
        post("/api/v1/publish", "/api/v1/publish", r#"{"topic": "$SYS/x"}"#, 400),
        post("/api/v1/publish", "/api/v1/publish", r#"{"topic": "a", "qos": 3}"#, 400),
        post("/api/v1/publish", "/api/v1/publish", r#"{"topic": "a", "payload_base64": "?"}"#, 400),
        post("/api/v1/publish", "/api/v1/publish", "{", 400),
        Request { body: Some(("text/plain", "{}")), ..post("/api/v1/publish", "/api/v1/publish", "", 415) },
        get("/api/v1/retained", "/api/v1/retained?filter=kept/%23&limit=1"),
        Request { status: 400, ..get("/api/v1/retained", "/api/v1/retained?filter=%23/a") },
        delete("/api/v1/retained", "/api/v1/retained?filter=kept/1", 200),
        delete("/api/v1/retained", "/api/v1/retained", 400),
        get("/api/v1/groups", "/api/v1/groups"),
        get(GROUP, "/api/v1/groups/pool/jobs%2F%23"),
        Request { status: 404, ..get(GROUP, "/api/v1/groups/pool/other") },
        get("/api/v1/groups/{name}/{filter}/explain", "/api/v1/groups/pool/jobs%2F%23/explain"),
        get("/api/v1/groups/{name}/{filter}/scale", "/api/v1/groups/pool/jobs%2F%23/scale"),
        post(
            "/api/v1/groups/{name}/{filter}/members/{client}/drain",
            "/api/v1/groups/pool/jobs%2F%23/members/worker%2F1/drain",
            "",
            200,
        ),
        delete(
            "/api/v1/groups/{name}/{filter}/members/{client}/drain",
            "/api/v1/groups/pool/jobs%2F%23/members/worker%2F1/drain",
            200,
        ),
        post(
            "/api/v1/groups/{name}/{filter}/members/{client}/drain",
            "/api/v1/groups/pool/jobs%2F%23/members/nobody/drain",
            "",
            404,
        ),
        get("/api/v1/dead-letters/{name}", "/api/v1/dead-letters/billing?limit=5"),
        Request { status: 404, ..get("/api/v1/dead-letters/{name}", "/api/v1/dead-letters/nobody") },
        delete("/api/v1/dead-letters/{name}", "/api/v1/dead-letters/billing", 200),
        post("/api/v1/dead-letters/{name}/replay", "/api/v1/dead-letters/billing/replay", "", 200),
        Request { status: 400, ..get("/api/v1/trace", "/api/v1/trace") },
        Request { status: 400, ..get("/api/v1/trace", "/api/v1/trace?topic=%23/a") },
        delete("/api/v1/clients/{id}", "/api/v1/clients/worker%2F1?session=true&reason=137", 200),
        delete("/api/v1/clients/{id}", "/api/v1/clients/other?reason=1", 400),
        post("/api/v1/drain", "/api/v1/drain", r#"{"listener": "nowhere"}"#, 404),
        delete("/api/v1/drain", "/api/v1/drain", 404),
        post("/api/v1/drain", "/api/v1/drain", r#"{"seconds": 0, "server_reference": "other:1883"}"#, 200),
        delete("/api/v1/drain", "/api/v1/drain", 204),
    ]
}

#[test]
fn every_route_answers_as_openapi_describes() {
    let bridge = "[[bridge]]\nname = \"b\"\nremote = \"mqtt://127.0.0.1:1\"\n\
                  [[bridge.topics]]\ndirection = \"out\"\nfilter = \"#\"\n";
    let queue = "[[share]]\ngroup = \"billing\"\non_reject = \"dead_letter\"\ndead_letter = \"dead/%t\"\n\
                 [[share]]\ngroup = \"dead\"\nfilter = \"dead/#\"\nkeep_seconds = 9000\n";
    let file = ConfigFile::new(&format!("[explain]\npause_ms = 0\n{queue}{bridge}"));
    let data = DataDirectory::new();
    let stage = Stage::start(&["--config", file.path(), "--data", data.path_text()]);
    let mut worker = stage.broker.v5("worker/1");
    worker.subscribe(&share("pool", "jobs/#"), QoS::AtLeastOnce);
    worker.publish("jobs/1", "x", QoS::AtLeastOnce);
    worker.receive_message();
    let _other = stage.broker.v5("other");

    let described = stage.get_json("/api/v1/openapi.json");
    let mut asked = BTreeSet::new();
    for Request { method, route, path, body, status } in requests() {
        let headers = body.map(|(media_type, _)| [("content-type", media_type)]);
        let text = body.map_or("", |(_, text)| text);
        let answer = stage.send(&method.to_uppercase(), path, headers.as_ref().map_or(&[], |headers| headers), text);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        let operation = &described["paths"][route][method];
        let response = &operation["responses"][status.to_string()];
        assert!(response.is_object(), "{method} {route} describes no status {status}");
        match &response["content"] {
            Value::Object(content) => {
                let media_type = answer.header("content-type").expect("a media type");
                let media_type = media_type.split(';').next().unwrap_or_default();
                let described_as = content.get(media_type).unwrap_or_else(|| panic!("{method} {route}: {media_type}"));
                if media_type.ends_with("json") {
                    let value = json(&answer);
                    check(&value, &described_as["schema"], &described, &format!("{method} {path}"));
                }
            }
            _ => assert_eq!(answer.body, "", "{method} {path}"),
        }
        asked.insert(format!("{method} {route}"));
    }
    let paths = described["paths"].as_object().expect("paths");
    let all = paths.iter().flat_map(|(path, operations)| {
        operations.as_object().expect("operations").keys().map(move |method| format!("{method} {path}"))
    });
    // These never end: `events.rs` and `trace.rs` read them.
    asked.insert("get /api/v1/trace".to_owned());
    asked.insert("get /api/v1/events".to_owned());
    let unasked: Vec<_> = all.filter(|operation| !asked.contains(operation)).collect();
    assert_eq!(unasked, Vec::<String>::new(), "no request asks them");
    // The other way round: the server has no undocumented routes.
    let source = include_str!("../../../crates/admin/src/routes/mod.rs");
    let routes = source.split(".route(").skip(1).filter_map(|rest| rest.split('"').nth(1));
    for route in routes {
        let is_described = paths.contains_key(route) || paths.contains_key(&format!("/api/v1{route}"));
        assert!(is_described, "{route} is not in openapi.json");
    }
}

/// Checks a value against a schema of `root`.
fn check(value: &Value, schema: &Value, root: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.trim_start_matches('#');
        return check(value, root.pointer(pointer).unwrap_or_else(|| panic!("{name} is missing")), root, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let is_null = |choice: &&Value| choice["type"] == "null";
        let choice = choices.iter().find(|choice| is_null(choice) == value.is_null());
        return check(value, choice.unwrap_or_else(|| panic!("{at}: {value} is none of them")), root, at);
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_kind = |wanted: &Value| wanted == kind || wanted == "number" && kind == "integer";
    let is_wanted = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(is_kind),
        wanted => is_kind(wanted),
    };
    assert!(is_wanted, "{at}: {value} is no {}", schema["type"]);
    if let Some(values) = schema["enum"].as_array() {
        assert!(values.contains(value), "{at}: {value} is none of {values:?}");
    }
    if let (Some(items), Some(list)) = (schema.get("items"), value.as_array()) {
        list.iter().for_each(|item| check(item, items, root, &format!("{at}[]")));
    }
    if let (Some(properties), Some(object)) = (schema["properties"].as_object(), value.as_object()) {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            assert!(object.contains_key(name), "{at}: {name} is missing in {value}");
        }
        for (name, value) in object {
            let schema = properties.get(name).unwrap_or_else(|| panic!("{at}: {name} is not described"));
            check(value, schema, root, &format!("{at}.{name}"));
        }
    }
}

#[test]
#[should_panic(expected = "is no")]
fn wrong_types_are_found() {
    check(
        &value!({ "a": "1" }),
        &value!({ "type": "object", "properties": { "a": { "type": "integer" } } }),
        &value!({}),
        "x",
    );
}
