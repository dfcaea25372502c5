//! The dashboard, in headless Chromium.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenbin_codec::QoS;

use crate::admin::stage::Stage;
use crate::support::share;

#[test]
fn files_are_for_anybody_and_load_nothing_from_elsewhere() {
    let stage = Stage::start(&[]);
    let page = stage.send_bare("GET", "/", &[("sec-fetch-site", "cross-site")], "");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'self'"), "{policy}");
    for path in ["/dashboard.js", "/dashboard.css", "/dashboard.svg"] {
        assert!(page.body.contains(&path[1..]), "{path}");
        assert_eq!(stage.send_bare("GET", path, &[], "").status, 200, "{path}");
    }
    assert_eq!(stage.send_bare("GET", "/", &[("host", "rebound.example")], "").status, 403);
    assert_eq!(stage.send_bare("POST", "/", &[], "").status, 401);
}

/// Client Identifiers that differ only at their end.
const ANNA: &str = "plant-7-press-line-worker-11";
const CLEO: &str = "plant-7-press-line-worker-12";

#[test]
fn longest_bar_is_the_slow_worker_in_every_size_of_window() {
    let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    if !is_installed("Node.js", "node") || !is_installed("Chromium", &chromium) {
        return;
    }
    // Each member in turn, so that the slow one keeps getting messages.
    let environment = [("TENBIN_EXPLAIN__PAUSE_MS", "0".into()), ("TENBIN_POLICY", "round_robin".into())];
    let stage = Stage::start_in(&environment, &[]);
    let [mut anna, mut bob, mut cleo] = [ANNA, "<b>bob</b>", CLEO].map(|name| stage.broker.v5(name));
    for member in [&mut anna, &mut bob, &mut cleo] {
        member.subscribe(&share("orders", "orders/#"), QoS::AtLeastOnce);
    }
    let mut publisher = stage.broker.v5("publisher");
    let is_over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                publisher.publish(&format!("orders/{number}"), "x", QoS::AtLeastOnce);
                for worker in [&mut anna, &mut bob] {
                    worker.drain();
                }
                number += 1;
                // At first many, then a few for decisions to go on.
                if number > 90 {
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        });
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/operation/admin/dashboard.mjs");
        let url = format!("http://{}", stage.admin);
        let mut command = Command::new("node");
        command
            .args([script, &url, "orders", "orders/#", CLEO, &stage.token])
            .args(std::env::var_os("TENBIN_DASHBOARD_SHOTS"));
        let output = command.stdin(Stdio::null()).output();
        is_over.store(true, Ordering::Relaxed);
        output.expect("installed")
    });
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let longest = format!("bar of {CLEO} is the longest");
    for step in [
        longest.as_str(),
        "findings, groups and the past are on the first page",
        "long names look different",
        "a change asks for the token",
        "a trace shows packets",
        "views are readable",
    ] {
        assert!(said.contains(step), "{step}: {said}");
    }
}

/// Returns whether a program is there; without it, the test is skipped, except in CI.
fn is_installed(what: &str, program: &str) -> bool {
    let mut probe = Command::new(program);
    probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let is_there = probe.status().is_ok_and(|status| status.success());
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "{what} is not installed");
        // Past the test harness, which would capture the line.
        let _ = writeln!(std::io::stderr(), "skipped: {what} is not installed");
    }
    is_there
}
