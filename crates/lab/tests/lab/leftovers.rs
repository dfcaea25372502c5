use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use tenbin_lab::journal::{Journal, Undo, left_over, restore};
use tenbin_lab::{Command, Error, Helper, Lab};

use super::{eventually, helper, lab, probe};

/// Starts a program of `probe` and returns when it is ready.
fn started(role: &str) -> Child {
    let mut child = probe::role_as_child(role).stdout(Stdio::piped()).spawn().expect("a program");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with("ready")), "{role}");
    child
}

/// Identifiers and command lines of processes whose last argument is `mark`.
fn marked(mark: &str) -> Vec<(i32, Vec<u8>)> {
    let end = format!("\0{mark}\0").into_bytes();
    processes().filter(|(_, line)| line.ends_with(&end)).collect()
}

/// Identifiers and command lines of all processes.
fn processes() -> impl Iterator<Item = (i32, Vec<u8>)> {
    let numbers = fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(|pid: i32| Some((pid, fs::read(format!("/proc/{pid}/cmdline")).ok()?)))
}

/// Mounts and interfaces of the host.
fn host() -> (String, String) {
    let links = std::process::Command::new("ip").args(["-o", "-br", "link"]).output().expect("`ip`");
    (fs::read_to_string("/proc/self/mountinfo").expect("mounts"), String::from_utf8_lossy(&links.stdout).into_owned())
}

#[test]
fn killed_program_leaves_no_process_mount_or_interface() {
    if lab().is_none() {
        return;
    }
    let before = host();
    let directory = tempfile::tempdir().expect("a directory");
    let mark = format!("9{}", std::process::id());
    let mut program = started(&format!("lab {} {mark}", directory.path().display()));
    eventually("all processes", || marked(&mark).len() == 6);
    program.kill().expect("a signal");
    assert_eq!(program.wait().expect("an end").signal(), Some(9));
    eventually("the end of all processes", || marked(&mark).is_empty());
    // Other programs may have temporary mounts.
    eventually("the former state of the host", || host() == before);
}

#[test]
fn program_killed_at_any_moment_leaves_nothing() {
    if lab().is_none() {
        return;
    }
    let rounds = std::env::var("TENBIN_ROUNDS").map_or(5, |rounds| rounds.parse().expect("a number"));
    let before = host();
    for round in 0..rounds {
        let directory = tempfile::tempdir().expect("a directory");
        let (name, mark) = (directory.path().display().to_string(), format!("7{}{round}", std::process::id()));
        let mut command = probe::role_as_child(&format!("lab {name} {mark}"));
        let mut program = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a program");
        // The moment is all that differs between rounds; every one of them must do.
        std::thread::sleep(Duration::from_millis(round * 67 % 600));
        program.kill().expect("a signal");
        program.wait().expect("an end");
        let has_name = |line: &[u8]| line.windows(name.len()).any(|part| part == name.as_bytes());
        eventually("the end of the lab", || marked(&mark).is_empty() && !processes().any(|(_, line)| has_name(&line)));
    }
    // Other programs may have temporary mounts.
    eventually("the former state of the host", || host() == before);
}

#[test]
fn missing_helper_is_no_missing_right() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = Lab::builder(Helper::new("/no/such/helper", &[]), directory.path()).start().expect_err("no helper");
    assert!(!matches!(error, Error::Namespaces(_)) || error.to_string().contains("permitted"), "{error}");
}

#[test]
fn killed_guard_ends_its_lab_with_all_processes() {
    let Some((lab, _directory)) = lab() else { return };
    let machine = lab.machine("one", None).expect("a machine");
    let mark = format!("8{}", std::process::id());
    let process = machine.spawn(&Command::new("sleep").arg(&mark)).expect("a process");
    eventually("the process", || marked(&mark).len() == 1);
    // The guard is the parent of all others: the first process whose arguments name this lab.
    let name = lab.directory().display().to_string();
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let line = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let guards = pids.filter(|pid| line(pid).contains(&name) && !line(pid).starts_with("unshare")).collect::<Vec<_>>();
    let [guard] = guards[..] else { panic!("guards {guards:?}") };
    let guard = rustix::process::Pid::from_raw(guard).expect("a number");
    rustix::process::kill_process(guard, rustix::process::Signal::KILL).expect("a signal");
    assert!(process.wait().is_err());
    eventually("the end of all processes", || marked(&mark).is_empty());
    assert!(machine.spawn(&Command::new("true")).is_err());
}

/// A file with the content `before` in a temporary directory.
fn file() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, "before").expect("a file");
    (directory, file)
}

fn is_restored(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text == "before") && !file.with_extension("added").exists()
}

#[test]
fn second_guard_restores_files_of_a_killed_program() {
    let (directory, file) = file();
    let mut program = started(&format!("journal {} {}", directory.path().display(), file.display()));
    assert!(!is_restored(&file));
    assert!(restore(directory.path()).is_err(), "the owner is alive");
    assert_eq!(left_over(directory.path()).expect("a journal"), 0);
    program.kill().expect("a signal");
    program.wait().expect("an end");
    eventually("the restoration", || is_restored(&file));
    eventually("the guard's end", || restore(directory.path()).is_ok_and(|failures| failures.is_empty()));
}

#[test]
fn restore_undoes_changes_after_the_end_of_both() {
    let (directory, file) = file();
    let mut program = started(&format!("journal {} {}", directory.path().display(), file.display()));
    // The kernel lists children by the thread that started them.
    let tasks = fs::read_dir(format!("/proc/{}/task", program.id())).expect("threads").flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let guards = lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let guards = guards.filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>();
    let [guard] = guards[..] else { panic!("guards {guards:?}") };
    rustix::process::kill_process(guard, rustix::process::Signal::KILL).expect("a signal");
    program.kill().expect("a signal");
    program.wait().expect("an end");
    assert_eq!(left_over(directory.path()).expect("a journal"), 2);
    assert!(Journal::open(&helper(), directory.path()).is_err(), "undos are open");
    assert!(restore(directory.path()).expect("a journal").is_empty());
    assert!(is_restored(&file));
    assert_eq!(left_over(directory.path()).expect("a journal"), 0);
}

#[test]
fn journal_undoes_in_reverse_order_and_keeps_failures() {
    let (directory, file) = file();
    let journal = Journal::open(&helper(), directory.path()).expect("a journal");
    let write = |content: &str| Undo::Write { path: file.clone(), content: content.to_owned() };
    let run = |line: &[&str]| Undo::Run { line: line.iter().map(|&part| part.to_owned()).collect() };
    journal.record(write("first")).expect("a record");
    let second = journal.record(write("second")).expect("a record");
    journal.record(run(&["false"])).expect("a record");
    journal.record(write("fourth")).expect("a record");
    journal.undo(second).expect("an undo");
    assert_eq!(fs::read_to_string(&file).expect("a file"), "second");
    let failures = journal.undo_all();
    assert_eq!(failures.into_iter().map(|failure| failure.undo).collect::<Vec<_>>(), [run(&["false"])]);
    assert_eq!(fs::read_to_string(&file).expect("a file"), "first");
    drop(journal);
    // A line that a power cut has cut off.
    let path = directory.path().join("undo.jsonl");
    let torn = [fs::read(&path).expect("a journal"), b"{\"Undo\":{\"id\":9".to_vec()].concat();
    fs::write(&path, torn).expect("a journal");
    assert_eq!(left_over(directory.path()).expect("a journal"), 1);
    assert_eq!(restore(directory.path()).expect("a journal").len(), 1);
    fs::write(&file, "later").expect("a file");
    assert_eq!(restore(directory.path()).expect("a journal").len(), 1, "the failed step alone");
    assert_eq!(fs::read_to_string(&file).expect("a file"), "later");
}

#[test]
fn undo_of_a_group_waits_until_it_is_empty() {
    let directory = tempfile::tempdir().expect("a directory");
    let journal = Journal::open(&helper(), directory.path()).expect("a journal");
    let group = directory.path().join("group");
    let inner = group.join("inner");
    fs::create_dir_all(&inner).expect("a directory");
    journal.record(Undo::RemoveGroup { path: group.clone() }).expect("a record");
    let write = Undo::Write { path: directory.path().join("absent/file"), content: String::new() };
    journal.record(write).expect("a record");
    std::thread::scope(|scope| {
        let undone = scope.spawn(|| journal.undo_all());
        // It has looked at the full group before.
        std::thread::sleep(Duration::from_millis(50));
        fs::remove_dir(&inner).expect("an empty directory");
        assert!(undone.join().expect("an end").is_empty());
    });
    assert!(!group.exists());
    let again = journal.record(Undo::RemoveGroup { path: group }).expect("a record");
    journal.undo(again).expect("nothing is left to undo");
}
