//! Against a stand-in for the API, which fails on demand; and against a real API, where one is given.

#[path = "../../../../tests/support/kubernetes_api.rs"]
mod kubernetes_api;

use kubernetes_api::{Fault, KubernetesApi, Rule};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;

const DEADLINE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

fn record(epoch: u64, leader: &str) -> StoredRecord {
    let follower = Some("b".to_owned());
    StoredRecord {
        epoch,
        leader: leader.to_owned(),
        follower,
        joiner: None,
        nonce: epoch << 40 | 7,
        leader_directory: 1 << 63,
        copy_directory: 0,
    }
}

/// An API with the account of a client.
struct Served {
    api: KubernetesApi,
    account: TempDir,
}

impl Served {
    fn start() -> Self {
        let (api, account) = (KubernetesApi::start(None), tempfile::tempdir().expect("a directory"));
        KubernetesApi::write_account(account.path(), "first\n", "");
        Self { api, account }
    }

    fn client(&self) -> Kubernetes {
        self.client_within(PATIENCE)
    }

    fn client_within(&self, deadline: Duration) -> Kubernetes {
        Kubernetes::open(Some(&self.api.url()), self.account.path(), "shop", deadline).expect("legal settings")
    }
}

/// The rules that any engine has to keep: for the stand-in and for a real API, which has no record of `name`.
async fn keeps_the_contract(make: impl Fn() -> Kubernetes) {
    let (client, other) = (make(), make());
    assert_eq!(client.read().await, Read::Absent);
    assert_eq!(client.swap(4, &record(5, "a")).await, Swapped::Refused);
    assert_eq!(client.swap(0, &record(1, "a")).await, Swapped::Done);
    assert_eq!(other.swap(0, &record(1, "b")).await, Swapped::Refused);
    assert_eq!(other.read().await, Read::Record(record(1, "a")));
    // The other client has changed the record that this client knows.
    assert_eq!(other.swap(1, &record(2, "b")).await, Swapped::Done);
    assert_eq!(client.swap(1, &record(2, "a")).await, Swapped::Refused);
    assert_eq!(client.swap(10, &record(11, "a")).await, Swapped::Refused);
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let client = make();
        tasks.spawn(async move {
            let mut won = Vec::new();
            for epoch in 2..EPOCHS {
                match client.swap(epoch, &record(epoch + 1, &format!("node-{task}"))).await {
                    Swapped::Done => won.push(epoch + 1),
                    Swapped::Refused => {}
                    Swapped::Unknown(error) => panic!("{error}"),
                }
                // Losers go on when the epoch is there, so that all of them try the next one.
                while !matches!(client.read().await, Read::Record(record) if record.epoch > epoch) {}
            }
            won
        });
    }
    let mut won: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    won.sort_unstable();
    assert_eq!(won, (3..=EPOCHS).collect::<Vec<_>>());
    let largest =
        StoredRecord { nonce: u64::MAX, follower: None, joiner: Some("c \"ü\"".to_owned()), ..record(u64::MAX, "a") };
    assert_eq!(client.swap(EPOCHS, &largest).await, Swapped::Done);
    assert_eq!(other.read().await, Read::Record(largest));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swaps_happen_from_the_expected_epoch_alone() {
    let served = Served::start();
    keeps_the_contract(|| served.client()).await;
    let map = served.api.map("shop-record").expect("a ConfigMap");
    assert_eq!(map["metadata"]["labels"]["app.kubernetes.io/managed-by"], "tenbin", "labels stay");
}

/// deploy/kubernetes_api/check starts a real API, and tells it by these variables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_api_keeps_the_contract() {
    let (Ok(url), Ok(account)) = (std::env::var("TENBIN_KUBERNETES_URL"), std::env::var("TENBIN_KUBERNETES_ACCOUNT"))
    else {
        return;
    };
    let name = std::env::var("TENBIN_KUBERNETES_NAME").expect("the name of a cluster without a record");
    let make = || Kubernetes::open(Some(&url), Path::new(&account), &name, PATIENCE).expect("legal settings");
    keeps_the_contract(make).await;
    // The Role of the account permits the record alone.
    let other = Kubernetes::open(Some(&url), Path::new(&account), "other", PATIENCE).expect("legal settings");
    assert!(matches!(other.read().await, Read::Unreachable(error) if error.contains("status 403")));
}

#[tokio::test]
async fn unknown_outcomes_are_told_as_such() {
    let served = Served::start();
    let client = served.client_within(DEADLINE);
    assert_eq!(client.swap(0, &record(1, "a")).await, Swapped::Done);
    let mut epoch = 1;
    for (fault, happens) in [
        (Fault::Status(500), false),
        (Fault::Status(503), false),
        (Fault::Status(429), false),
        (Fault::DoneBut(504), true),
        (Fault::Lost, false),
        (Fault::AnswerLost, true),
    ] {
        served.api.fault("PUT", fault);
        let swapped = client.swap(epoch, &record(epoch + 1, "a")).await;
        assert!(matches!(swapped, Swapped::Unknown(_)), "{fault:?}: {swapped:?}");
        epoch += u64::from(happens);
        assert_eq!(client.read().await, Read::Record(record(epoch, "a")), "{fault:?}");
        // The same swap again has a certain outcome.
        let again = client.swap(epoch, &record(epoch + 1, "b")).await;
        assert_eq!(again, Swapped::Done, "{fault:?}");
        epoch += 1;
        assert_eq!(client.swap(epoch, &record(epoch + 1, "a")).await, Swapped::Done);
        epoch += 1;
    }
}

#[tokio::test]
async fn creation_with_an_unknown_outcome_happens_once() {
    for fault in [Fault::AnswerLost, Fault::DoneBut(500)] {
        let served = Served::start();
        served.api.fault("POST", fault);
        assert!(matches!(served.client().swap(0, &record(1, "a")).await, Swapped::Unknown(_)));
        assert_eq!(served.client().swap(0, &record(1, "b")).await, Swapped::Refused);
        // By the nonce the first one's change is its own.
        assert_eq!(served.client().swap(0, &record(1, "a")).await, Swapped::Done);
    }
}

#[tokio::test]
async fn conflict_after_a_repeated_request_is_no_refusal() {
    let served = Served::start();
    let client = served.client();
    served.api.fault("POST", Fault::Repeated);
    assert_eq!(client.swap(0, &record(1, "a")).await, Swapped::Done);
    served.api.fault("PUT", Fault::Repeated);
    assert_eq!(client.swap(1, &record(2, "a")).await, Swapped::Done);
    // Another change of the ConfigMap than of the record keeps no swap from happening.
    served.api.fault("PUT", Fault::Labelled);
    assert_eq!(client.swap(2, &record(3, "a")).await, Swapped::Done);
    let map = served.api.map("shop-record").expect("a ConfigMap");
    assert_eq!(map["metadata"]["labels"]["somebody"], "else", "and is kept");
}

#[tokio::test]
async fn late_swap_loses_against_a_further_one() {
    let served = Served::start();
    let client = served.client_within(DEADLINE);
    assert_eq!(client.swap(0, &record(1, "a")).await, Swapped::Done);
    let late = DEADLINE + DEADLINE / 2;
    served.api.fault("PUT", Fault::Late(late));
    assert!(matches!(client.swap(1, &record(2, "a")).await, Swapped::Unknown(_)));
    assert_eq!(client.swap(1, &record(2, "b")).await, Swapped::Done);
    let puts = served.api.requests("PUT");
    sleep(late).await;
    assert_eq!(client.read().await, Read::Record(record(2, "b")));
    assert_eq!(served.api.requests("PUT"), puts, "nothing is sent again");
}

#[tokio::test]
async fn swap_right_after_a_read_is_one_request() {
    let served = Served::start();
    let client = served.client();
    assert_eq!(client.swap(0, &record(1, "a")).await, Swapped::Done);
    assert_eq!(client.read().await, Read::Record(record(1, "a")));
    let reads = served.api.requests("GET");
    assert_eq!(client.swap(1, &record(2, "a")).await, Swapped::Done);
    assert_eq!(served.api.requests("GET"), reads);
    // A record that an operator has put back is older than the known one.
    served.api.set_map("shop-record", Some(json!({ "record": serde_json::to_string(&record(1, "a")).expect("JSON") })));
    assert_eq!(client.swap(1, &record(2, "b")).await, Swapped::Done);
    served.api.set_map("shop-record", None);
    assert_eq!(client.swap(2, &record(3, "b")).await, Swapped::Refused);
    assert_eq!(client.read().await, Read::Absent);
}

#[tokio::test]
async fn token_is_read_again_and_rules_hold() {
    let served = Served::start();
    let client = served.client();
    let may = |verbs: &[&str], names: &[&str]| {
        let [verbs, names] = [verbs, names].map(|texts| texts.iter().map(|&text| text.to_owned()).collect());
        Rule { verbs, names }
    };
    served.api.set_rules(vec![may(&["create"], &[]), may(&["get", "update"], &["shop-record"])]);
    assert_eq!(client.swap(0, &record(1, "a")).await, Swapped::Done);
    assert_eq!(client.swap(1, &record(2, "a")).await, Swapped::Done);
    served.api.set_token("second");
    assert!(matches!(client.read().await, Read::Unreachable(error) if error.contains("status 401: Unauthorized")));
    KubernetesApi::write_account(served.account.path(), "second", "");
    assert_eq!(client.read().await, Read::Record(record(2, "a")));
    served.api.set_rules(vec![may(&["get"], &["other"])]);
    assert!(matches!(client.read().await, Read::Unreachable(error) if error.contains("status 403: configmaps")));
    assert!(matches!(client.swap(2, &record(3, "a")).await, Swapped::Unknown(_)));
}

#[tokio::test]
async fn strange_answers_are_no_records() {
    let served = Served::start();
    for data in [json!({}), json!({ "record": "{}" }), json!({ "record": 7 }), json!({ "record": "x" })] {
        served.api.set_map("shop-record", Some(data.clone()));
        let read = served.client().read().await;
        assert!(
            matches!(&read, Read::Unreachable(error) if error.contains("shop-record: its key record")),
            "{data}: {read:?}"
        );
        assert!(matches!(served.client().swap(0, &record(1, "a")).await, Swapped::Unknown(_)));
    }
    // Another server answers 404 too: only an answer of Kubernetes says that there is no record.
    KubernetesApi::write_account(served.account.path(), "first", "");
    std::fs::write(served.account.path().join("namespace"), "de/fault").expect("ours to write");
    let read = served.client().read().await;
    assert!(
        matches!(&read, Read::Unreachable(error) if error.contains("the answer is not from Kubernetes")),
        "{read:?}"
    );
}

#[tokio::test]
async fn api_is_verified_by_its_authorities() {
    use tokio_rustls::rustls::ServerConfig;
    let make = || {
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(tls::provider()).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_no_client_auth();
        let config = config.with_single_cert(vec![own.cert.der().clone()], key).expect("they belong together");
        (Arc::new(config), own.cert.pem())
    };
    let ((config, ca), (_, other)) = (make(), make());
    let (api, account) = (KubernetesApi::start(Some(config)), tempfile::tempdir().expect("a directory"));
    let open = || Kubernetes::open(Some(&api.url()), account.path(), "shop", PATIENCE);
    KubernetesApi::write_account(account.path(), "first", &ca);
    assert_eq!(open().expect("legal settings").read().await, Read::Absent);
    KubernetesApi::write_account(account.path(), "first", &other);
    let client = open().expect("legal settings");
    let read = client.read().await;
    assert!(matches!(&read, Read::Unreachable(error) if error.contains("certificate")), "{read:?}");
    // As after a change of the API's authority: the file follows.
    KubernetesApi::write_account(account.path(), "first", &ca);
    assert_eq!(client.read().await, Read::Absent);
    KubernetesApi::write_account(account.path(), "first", "no certificate");
    assert!(open().expect_err("no authorities").contains("cluster: kubernetes_directory: "));
}

const EPOCHS: u64 = 20;
