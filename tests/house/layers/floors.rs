//! The layers of each crate's modules, and the circles that are left.

/// Modules of a crate, in layers.
pub(crate) struct Floors {
    /// Directory of the sources.
    pub(crate) source: &'static str,
    /// The modules, the lowest first. A module imports those before it.
    pub(crate) modules: &'static str,
    /// Imports of higher modules that are left: the module, the higher ones, and the reason. Only removals are welcome.
    pub(crate) upward: &'static [(&'static str, &'static str, &'static str)],
}

const fn floors(source: &'static str, modules: &'static str) -> Floors {
    Floors { source, modules, upward: &[] }
}

/// All crates.
pub(crate) const FLOORS: [Floors; 24] = [
    floors(
        "src",
        "logging service_manager mqtt_tls bridge listeners admin explain cluster broker gateway mqtt passwd sessions store sn",
    ),
    floors(
        "crates/admin/src",
        "client exposition trace views control dashboard problem site stream events places tokens guard routes wire server",
    ),
    Floors {
        source: "crates/balancer/src",
        modules: "nanos standing acknowledged log2 speed estimate outstanding sync latency rng limit report dispatch rules \
                  availability hot load seats group_view chooser key_pins policy departed policy_state pick reason explain \
                  members shadow group fair_queue",
        upward: &[
            ("chooser", "policy", "a chooser of the caller is a policy with a number"),
            ("explain", "group", "a test"),
            ("group_view", "policy", "a view has the figures that `adaptive` compares"),
            ("load", "policy", "a load tells the limit of late binding"),
            ("members", "shadow", "the members' snapshot keeps the group's shadow"),
            ("policy", "group pick reason", "a policy picks from a table; tests of a policy have a group"),
            ("policy_state", "members", "the state is made for the seated members"),
            ("reason", "explain", "a reason is a part of an explanation"),
            ("rules", "policy", "rules name a policy"),
            ("seats", "group_view", "a test"),
            ("shadow", "group", "a test"),
        ],
    },
    floors("crates/bridge/src", "status rule settings error flow suspect link relay bridge"),
    floors(
        BROKER,
        "values slices descriptors lease metrics trace config event_queue telemetry gateways hooks admission log_limiter \
         connection_settings memory auth webhooks threads durable backlog outbox router registry lifecycle tasks net control \
         broker bench fuzzing",
    ),
    floors(
        "crates/client/src",
        "websocket byte_stream load_reporter reconnect options message error command shared events ticket task client",
    ),
    floors("crates/cluster/src", "node record settings event machine tests"),
    floors(
        "crates/codec/src",
        "packet_id packet_type property_id qos write_buffer version reason error varint frame text reader property topic secret \
         packet decoder load_report new_session",
    ),
    floors("crates/explain/src", "args error reports listen table"),
    floors("crates/http-ingest/src", "settings places answer body credentials upstream mqtt request connection server"),
    floors("crates/kit/src", "printable cli digits files pem tls programs rng table units within span"),
    floors(
        "crates/lab/src",
        "bin command descriptor disk error signal switch protocol procfs program helper journal guard shared process machine \
         lab",
    ),
    floors(
        "crates/loadgen/src",
        "error child_broker values utc interrupt progress number statistics target report run scenario sweep drivers",
    ),
    floors("crates/pending/src", "write_deadline"),
    floors(
        "crates/session/src",
        "violation aliases publication delivery outbound timers event limits withdrawn session_state connection handshake",
    ),
    floors(
        "crates/simulator/src",
        "distribution arrivals scenario error plan rules chooser family args events worker simulation central_queue \
         figures runs json table suite",
    ),
    floors(
        "crates/sn/src",
        "names predefined settings gateway held outbox output candidate message_ids client topic_ids client_state pace reason \
         peer wheel",
    ),
    floors(
        "crates/sn-client/src",
        "error shared topic message command no_dtls secured options link events task client search unconnected",
    ),
    floors("crates/sn-codec/src", "error frame forwarded reader v1_2"),
    floors("crates/sn-dtls/src", "error certificates keys sides session"),
    floors(
        "crates/sn-gateway/src",
        "config counters discovery limits route no_dtls dtls owners upstream peers relay state shared udp relay_socket thread gateway",
    ),
    floors("crates/store/src", "directory identity sync spool state mirror"),
    floors(
        "crates/verify/src",
        "units judge args burden library kind leader status rng template variables groups probe line error results restore plan docker \
         systems relay runtime configs dry_run files report recorded run command",
    ),
    floors("crates/websocket/src", "mask frame violation receiver incoming upgrade outgoing client"),
];

/// The sources of the broker, whose arrows `docs/ARCHITECTURE.md` lists.
pub(crate) const BROKER: &str = "crates/broker/src";
