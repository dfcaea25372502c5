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
pub(crate) const FLOORS: [Floors; 23] = [
    floors("src", "listeners logging service_manager admin cluster broker gateway passwd sessions store sn"),
    floors(
        "crates/admin/src",
        "client exposition trace views control dashboard problem stream events places tokens guard routes wire server",
    ),
    Floors {
        source: "crates/balancer/src",
        modules: "nanos acknowledged log2 speed estimate outstanding sync latency rng limit report dispatch rules load seats hot \
                  group_view chooser key_pins policy departed policy_state pick members reason shadow standing group explain \
                  fair_queue",
        upward: &[
            ("chooser", "members policy", "a chooser of the caller sees members and names a policy"),
            ("departed", "members", "MemberId"),
            ("dispatch", "key_pins", "a dispatch frees the pin of its key"),
            ("group_view", "policy", "a view has the policy of its snapshot"),
            ("key_pins", "members", "MemberId"),
            ("load", "hot policy", "a member's load is written for the scan of policies"),
            ("members", "explain shadow standing", "the group's handle: each part is a method of it"),
            ("policy", "group members pick reason", "a policy picks among members and tells its reason"),
            ("policy_state", "members", "MemberId"),
            ("reason", "explain", "a reason is a part of an explanation"),
            ("rules", "policy", "rules name a policy"),
            ("seats", "group_view", "a seat has the member's view"),
            ("shadow", "group", "a shadow is a second group"),
        ],
    },
    floors(
        BROKER,
        "values slices descriptors lease metrics trace config gateways hooks admission log_limiter connection_settings memory auth \
         webhooks threads durable backlog outbox router registry lifecycle tasks net control broker bench fuzzing",
    ),
    floors(
        "crates/client/src",
        "websocket byte_stream load_reporter reconnect options message error command shared events ticket task client",
    ),
    floors("crates/cluster/src", "node record settings event machine tests"),
    Floors {
        source: "crates/codec/src",
        modules: "packet_id qos write_buffer version error varint frame reason text reader property topic secret packet decoder \
                  load_report new_session",
        upward: &[
            ("error", "frame property reason", "an error names the packet type, the property and the reason code"),
            ("secret", "packet", "a test"),
        ],
    },
    floors("crates/explain/src", "args error reports listen table"),
    floors(
        "crates/http-ingest/src",
        "settings places answer body credentials upstream mqtt patience request connection server",
    ),
    floors("crates/kit/src", "cli files pem programs rng table units span"),
    floors(
        "crates/lab/src",
        "bin command descriptor disk error signal switch protocol procfs program helper journal guard shared process machine \
         lab",
    ),
    floors(
        "crates/loadgen/src",
        "error child_broker values utc interrupt progress number statistics target report run scenario sweep drivers",
    ),
    floors("crates/pending/src", ""),
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
        "config counters discovery limits route no_dtls dtls owners upstream peers state shared udp thread gateway",
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
