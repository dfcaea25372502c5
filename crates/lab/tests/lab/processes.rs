use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use tenbin_lab::{Command, Exit, Machine, Process, Signal};

use super::{eventually, lab, probe, shell, skipped};

/// Starts a shell with a descendant in a new session. The descendant's parents have ended.
fn family(machine: &Machine, seconds: &str) -> Process {
    let script = format!("(setsid sh -c 'sleep {seconds} & sleep {seconds}' &) ; sleep {seconds}");
    let process = machine.spawn(&Command::new("sh").args(["-c", &script])).expect("a process");
    eventually("three processes", || states(machine, seconds).len() == 3);
    process
}

/// States of the processes `sleep SECONDS` in the machine.
fn states(machine: &Machine, seconds: &str) -> Vec<String> {
    let script = format!(
        "for p in /proc/[0-9]*; do [ \"$(tr '\\0' ' ' < $p/cmdline)\" = 'sleep {seconds} ' ] \
         && sed 's/.*) \\(.\\).*/\\1/' $p/stat; done 2>/dev/null; true"
    );
    shell(machine, &script).lines().map(str::to_owned).collect()
}

#[test]
fn kill_ends_descendants_with_sessions_of_their_own() {
    let Some((lab, _directory)) = lab() else { return };
    let machine = lab.machine("one", None).expect("a machine");
    let (first, second) = (family(&machine, "98761"), family(&machine, "98762"));
    first.signal(Signal::Kill).expect("a signal");
    assert_eq!(states(&machine, "98761"), [""; 0]);
    assert_eq!(states(&machine, "98762").len(), 3, "the other tree is alive");
    assert_eq!(first.wait().expect("an end"), Exit { code: None, signal: Some(9) });
    assert_eq!(second.wait_for(Duration::ZERO).expect("a state"), None);
    first.signal(Signal::Kill).expect("a second signal is no error");
}

#[test]
fn stop_holds_the_whole_tree_and_the_machine_continues_it() {
    let Some((lab, _directory)) = lab() else { return };
    let machine = lab.machine("one", None).expect("a machine");
    let process = family(&machine, "98763");
    let all = |state| states(&machine, "98763").iter().all(|found| found == state);
    process.signal(Signal::Stop).expect("a signal");
    eventually("a stop", || all("T"));
    process.signal(Signal::Continue).expect("a signal");
    eventually("a continuation", || all("S"));
    process.stop_for(Duration::from_millis(500)).expect("a signal");
    eventually("a stop or its end", || all("T") || all("S"));
    eventually("the end of the stop", || all("S"));
}

#[test]
fn terminate_lets_a_process_end_by_itself() {
    let Some((lab, _directory)) = lab() else { return };
    let machine = lab.machine("one", None).expect("a machine");
    let script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    let log = lab.directory().join("log");
    let process = machine.spawn(&Command::new("sh").args(["-c", script]).stdout(&log)).expect("a process");
    eventually("the trap", || std::fs::read_to_string(&log).is_ok_and(|text| text == "ready\n"));
    process.signal(Signal::Terminate).expect("a signal");
    assert_eq!(process.wait().expect("an end"), Exit { code: Some(7), signal: None });
    assert!(process.pid() > 1);
}

#[test]
fn ordinary_user_needs_no_root() {
    if !rustix::process::geteuid().is_root() {
        // All other tests show it.
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("permissions");
    let mut command = probe::role_as_child(&format!("user {}", directory.path().display()));
    match command.current_dir("/").uid(65_534).gid(65_534).output() {
        Ok(output) => {
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && out.contains("ready"), "{out} {err}");
        }
        Err(error) => skipped(format!("another user cannot run this program: {error}")),
    }
}

#[test]
fn commands_get_environment_directory_and_stream() {
    let Some((lab, _directory)) = lab() else { return };
    let machine = lab.machine("one", None).expect("a machine");
    let command = Command::new("sh").args(["-c", "echo $VALUE; pwd; echo wrong >&2; exit 3"]);
    let output = machine.exec(&command.env("VALUE", "a b").directory("/proc")).expect("a command");
    assert_eq!(output.exit, Exit { code: Some(3), signal: None });
    assert_eq!((output.stdout, output.stderr), (b"a b\n/proc\n".to_vec(), b"wrong\n".to_vec()));
    let (process, mut stream) = machine.spawn_with_stream(&Command::new("cat")).expect("a process");
    stream.write_all(b"to and fro\n").expect("room");
    let mut line = String::new();
    BufReader::new(stream.try_clone().expect("a stream")).read_line(&mut line).expect("a line");
    assert_eq!(line, "to and fro\n");
    stream.shutdown(std::net::Shutdown::Write).expect("an end");
    assert!(process.wait().expect("an end").success());
    let error = machine.spawn(&Command::new("/no/such/program")).expect_err("no program");
    assert!(error.to_string().contains("/no/such/program"), "{error}");
}

#[test]
fn usage_is_that_of_the_whole_tree() {
    let Some((lab, _directory)) = lab() else { return };
    let machine = lab.machine("one", None).expect("a machine");
    // A descendant in a new session does the work, and inherits the processor time of ended children.
    let script = "setsid sh -c 'while :; do head -c 1000000 /dev/zero >/dev/null; done' & sleep 98767";
    let busy = machine.spawn(&Command::new("sh").args(["-c", script])).expect("a process");
    let idle = machine.spawn(&Command::new("sleep").arg("98767")).expect("a process");
    let usage = |process: &Process| process.usage().expect("a lab");
    eventually("processor time", || usage(&busy).is_some_and(|usage| usage.processor >= Duration::from_millis(300)));
    let quiet = usage(&idle).expect("a tree");
    assert!(quiet.processor < Duration::from_millis(300) && quiet.resident_bytes > 10_000, "{quiet:?}");
    busy.signal(Signal::Kill).expect("a signal");
    eventually("the end of the tree", || usage(&busy).is_none());
}
