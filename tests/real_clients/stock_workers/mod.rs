//! Workers of a share group, each written as the users of its library write it: how long messages wait until a worker
//! begins with them.
//!
//! Continuous integration plays a short form and asserts only facts that hold on a busy machine. `.ci/long stock` prints a
//! table of waiting times, beside an ideal central queue with the same arrivals and works.

mod acknowledgements;
mod central_queue;
mod kind;
mod proxy;
mod run;
mod table;
mod worker;

use std::time::Duration;

use kind::Kind;
use run::{Path, Setup};

/// Three workers, and one that takes three times as long.
const FACTORS: &[u32] = &[1, 1, 1, 3];

/// Plays a short run, and asserts that no message is lost, that all workers get some, and that messages do not wait out of
/// all proportion.
fn plays_a_short_run(kind: &Kind, told: &'static [&'static str], path: Option<Path>) {
    if !kind.is_installed() {
        return;
    }
    let work = Duration::from_millis(10);
    let setup = Setup { kind, told, policy: "adaptive", factors: FACTORS, work, load: 0.6, messages: 300, path };
    let outcome = setup.run(1);
    let name = kind.name;
    assert!(outcome.worked.iter().all(|&messages| messages > 0), "{name}: a worker was idle: {:?}", outcome.worked);
    if kind.name == kind::MOSQUITTO_SUB.name {
        return; // it acknowledges messages when they are in its pipe, so the broker cannot know how many messages wait there
    }
    let (mean, ideal) = (outcome.waits.mean(), outcome.ideal.mean());
    assert!(mean < 10.0 * ideal + 500.0, "{name}: {mean} ms, ideal {ideal} ms; {:?}", outcome.worked);
}

#[test]
fn paho_for_python_workers_in_loop_forever_share_messages() {
    plays_a_short_run(&kind::PAHO_PYTHON_FOREVER, &[], None);
}

#[test]
fn paho_for_python_workers_in_loop_start_share_messages() {
    plays_a_short_run(&kind::PAHO_PYTHON_START, &[], None);
}

#[test]
fn paho_for_python_workers_that_tell_concurrency_share_messages() {
    plays_a_short_run(&kind::PAHO_PYTHON_START, &["concurrency=1"], None);
}

#[test]
fn paho_for_python_workers_behind_a_proxy_share_messages() {
    let path = Path { delay: Duration::from_millis(10), jitter: Duration::from_millis(2) };
    plays_a_short_run(&kind::PAHO_PYTHON_START, &[], Some(path));
}

#[test]
fn mqtt_js_workers_with_handle_message_share_messages() {
    plays_a_short_run(&kind::MQTT_JS_HANDLE_MESSAGE, &[], None);
}

#[test]
fn mqtt_js_workers_with_on_message_share_messages() {
    plays_a_short_run(&kind::MQTT_JS_ON_MESSAGE, &[], None);
}

#[test]
fn mqtt_js_workers_with_on_message_and_reports_share_messages() {
    plays_a_short_run(&kind::MQTT_JS_ON_MESSAGE_REPORTS, &[], None);
}

#[test]
fn hivemq_workers_with_blocking_callback_share_messages() {
    plays_a_short_run(&kind::HIVEMQ_BLOCKING, &[], None);
}

#[test]
fn hivemq_workers_with_manual_acknowledgement_share_messages() {
    plays_a_short_run(&kind::HIVEMQ_MANUAL, &[], None);
}

#[test]
fn paho_for_go_workers_share_messages() {
    plays_a_short_run(&kind::PAHO_GO, &[], None);
}

#[test]
fn mosquitto_sub_workers_in_a_pipe_share_messages() {
    plays_a_short_run(&kind::MOSQUITTO_SUB, &[], None);
}
