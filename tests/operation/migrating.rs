//! The configurations in `docs/MIGRATING.md`.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::support::{Certificates, Lines, PATIENCE};
use tenbin_broker::Config;

const PAGE: &str = include_str!("../../docs/MIGRATING.md");

/// Keys of mosquitto.conf(5), of Mosquitto 2.0.11 and 2.1.
const MOSQUITTO_KEYS: &str = "accept_protocol_versions acl_file address addresses allow_anonymous allow_duplicate_messages \
    allow_zero_length_clientid auth_plugin auth_plugin_deny_special_chars auto_id_prefix autosave_interval \
    autosave_on_changes bind_address bind_interface bridge_alpn bridge_attempt_unsubscribe bridge_bind_address \
    bridge_cafile bridge_capath bridge_certfile bridge_ciphers bridge_ciphers_tls1.3 bridge_identity \
    bridge_insecure bridge_keyfile bridge_max_packet_size bridge_max_topic_alias bridge_outgoing_retain \
    bridge_protocol_version bridge_psk bridge_receive_maximum bridge_reload_type bridge_require_ocsp \
    bridge_session_expiry_interval bridge_tcp_keepalive bridge_tcp_user_timeout bridge_tls_use_os_certs \
    bridge_tls_version cafile capath certfile check_retain_source ciphers ciphers_tls1.3 cleansession \
    clientid_prefixes connection connection_messages crlfile dhparamfile disable_client_cert_date_checks \
    enable_control_api enable_proxy_protocol global_max_clients global_max_connections global_plugin http_dir \
    idle_timeout include_dir keepalive_interval keyfile listener listener_allow_anonymous \
    listener_auto_id_prefix local_cleansession local_clientid local_password local_username log_dest \
    log_facility log_timestamp log_timestamp_format log_type max_connections max_inflight_bytes \
    max_inflight_messages max_keepalive max_packet_size max_qos max_queued_bytes max_queued_messages \
    max_topic_alias max_topic_alias_broker memory_limit message_size_limit mount_point notification_topic \
    notifications notifications_local_only packet_buffer_size password_file per_listener_settings persistence \
    persistence_file persistence_location persistent_client_expiration pid_file plugin plugin_load plugin_use \
    port protocol proxy_protocol_v2_require_tls psk_file psk_hint queue_qos0_messages remote_clientid \
    remote_password remote_username require_certificate restart_timeout retain_available retain_expiry_interval \
    round_robin set_tcp_nodelay socket_domain start_type sys_interval threshold tls_engine tls_engine_kpass_sha1 \
    tls_keyform tls_version topic try_private upgrade_outgoing_qos use_identity_as_username \
    use_subject_as_username use_username_as_clientid user websockets_headers_size websockets_log_level \
    websockets_origin";

#[test]
fn configurations_for_tenbin_are_valid() {
    let all = blocks("toml").map(|text| Config::parse(text).unwrap_or_else(|error| panic!("{error}:\n{text}")));
    let counts: Vec<_> = all.map(|config| (config.listeners.len(), config.bridge.len())).collect();
    assert_eq!(counts, [(0, 1), (2, 0), (2, 0)]);
}

#[test]
fn each_key_of_mosquitto_has_a_row() {
    let part = PAGE.split_once("\n## Mosquitto\n").expect("a part for Mosquitto").1;
    let part = part.split_once("\n## EMQX").expect("a part for EMQX behind it").0;
    // A key in the first column, in a code span that may go on with a value.
    let named: Vec<&str> = part
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .flat_map(|span| span.split(' ').next())
        .collect();
    let missing: Vec<&str> = MOSQUITTO_KEYS.split(' ').filter(|key| !named.contains(key)).collect();
    assert_eq!(missing, [""; 0], "without a row in docs/MIGRATING.md");
}

#[test]
fn mosquitto_accepts_its_example() {
    if Command::new("mosquitto").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return;
    }
    // Another program may have taken a port that was free.
    assert!((0..5).any(|_| is_accepted_at([free_port(), free_port()])), "its ports are taken");
}

/// Whether Mosquitto runs with the example. False if a port is not free any more.
fn is_accepted_at(ports: [String; 2]) -> bool {
    let certificates = Certificates::new();
    let example = only("conf")
        .replace("listener 1883", &format!("listener {}", ports[0]))
        .replace("listener 8883", &format!("listener {}", ports[1]));
    // Paths are relative to Mosquitto's directory. Started by root, it would take another user's rights.
    certificates.write("mosquitto.conf", &format!("user root\n{}", example.replace("certs/", "")));
    certificates.write("acl", only("acl"));
    certificates.write("passwords", "");
    fs::create_dir(certificates.path("data")).expect("ours to write");
    let mut mosquitto = Command::new("mosquitto");
    mosquitto.args(["-c", "mosquitto.conf"]).current_dir(certificates.path(""));
    let mut mosquitto = Ended(mosquitto.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("installed"));
    let said = Lines::collect(mosquitto.0.stderr.take().expect("piped"));
    let until = Instant::now() + PATIENCE;
    for port in ports {
        while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
            let ended = mosquitto.0.try_wait().expect("our own child");
            if ended.is_some() && said.all().iter().any(|line| line.contains("Address already in use")) {
                return false;
            }
            assert!(ended.is_none() && Instant::now() < until, "{ended:?}:\n{}", said.all().join("\n"));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    true
}

/// A child process, killed when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Texts of the page's code blocks of this language.
fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    let begin = format!("```{language}\n");
    PAGE.match_indices("```")
        .filter_map(move |(at, _)| PAGE[at..].strip_prefix(&begin)?.split_once("```").map(|block| block.0))
}

fn only(language: &str) -> &'static str {
    let mut blocks = blocks(language);
    let block = blocks.next().expect("the page has one");
    assert!(blocks.next().is_none(), "the page has one");
    block
}

fn free_port() -> String {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("bound").port().to_string()
}
