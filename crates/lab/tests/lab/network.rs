use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tenbin_lab::{Counters, Lab, Machine, PortKind, Rate, Shape};

use super::{eventually, lab, lab_with, probe, shell, skipped};

fn counters(lab: &Lab, from: &Machine, to: &Machine) -> Counters {
    let all = lab.counters().expect("counters");
    let link = all.iter().find(|link| link.from == from.name() && link.to == to.name());
    link.expect("a link").counters
}

#[test]
fn machines_know_each_other_by_name() {
    let Some((lab, _directory)) = lab() else { return };
    let (one, two) = (lab.machine("one", None).expect("a machine"), lab.machine("two", None).expect("a machine"));
    for machine in [&one, &two] {
        assert_eq!(shell(machine, "cat /proc/sys/kernel/hostname"), machine.name());
        let hosts = shell(machine, "cat /etc/hosts");
        for other in [&one, &two] {
            assert!(hosts.lines().any(|line| line == format!("{} {}", other.address(), other.name())), "{hosts}");
        }
    }
    assert!(lab.machine("one", None).is_err());
    assert!(lab.machine("no host", None).is_err());
    let _server = probe::echo(&two);
    assert_eq!(probe::run(&one, "exchange two 200")["received"], 200);
}

#[test]
fn delay_acts_on_one_direction_of_one_pair() {
    let Some((lab, _directory)) = lab() else { return };
    let [one, two, three] = ["one", "two", "three"].map(|name| lab.machine(name, None).expect("a machine"));
    let _servers = [probe::echo(&two), probe::echo(&three)];
    let shape = Shape { delay: Duration::from_millis(10), ..Shape::default() };
    let delay = lab.impair(&[(&one, &two)], &shape, None).expect("a delay");
    let figures = probe::run(&one, "exchange two 200");
    assert!(figures["there"] >= 10_000, "{figures:?}");
    // A loaded machine adds to all of them alike.
    assert!(figures["there"] >= figures["back"] + 5_000, "{figures:?}");
    let other = probe::run(&one, "exchange three 200");
    assert!(figures["there"] >= other["there"] + 5_000, "{figures:?} {other:?}");
    lab.lift(delay).expect("no delay");
    let after = probe::run(&one, "exchange two 200");
    assert!(figures["there"] >= after["there"] + 5_000, "{figures:?} {after:?}");
}

#[test]
fn loss_duplicates_and_corruption_act_on_packets() {
    let Some((lab, _directory)) = lab() else { return };
    let (one, two) = (lab.machine("one", None).expect("a machine"), lab.machine("two", None).expect("a machine"));
    let _server = probe::echo(&two);
    let mut before = counters(&lab, &one, &two);
    for (loss, duplicate, corrupt) in [(0.1, 0.0, 0.0), (0.0, 0.1, 0.0), (0.0, 0.0, 0.1)] {
        let shape = Shape { loss, duplicate, corrupt, ..Shape::default() };
        let fault = lab.impair(&[(&one, &two)], &shape, None).expect("a fault");
        let figures = probe::run(&one, "exchange two 1000");
        lab.lift(fault).expect("no fault");
        let after = counters(&lab, &one, &two);
        let missing = after.lost - before.lost + after.corrupted - before.corrupted;
        let copies = after.duplicated - before.duplicated;
        // Repeated datagrams at the end of a burst meet the fault too.
        let between = |count: u64, seen: u64| seen <= count && count <= seen + figures["repeats"];
        assert!(between(missing, 1_000 - figures["received"]), "{shape:?} {figures:?} {after:?}");
        assert!(between(copies, figures["copies"]), "{shape:?} {figures:?} {after:?}");
        assert_eq!(missing > 0, duplicate == 0.0);
        assert_eq!(copies > 0, duplicate > 0.0);
        before = after;
    }
    let wrong = Shape { loss: 1.5, ..Shape::default() };
    assert!(lab.impair(&[(&one, &two)], &wrong, None).is_err());
}

#[test]
fn partition_passes_nothing_in_its_direction() {
    let Some((lab, _directory)) = lab() else { return };
    let (one, two) = (lab.machine("one", None).expect("a machine"), lab.machine("two", None).expect("a machine"));
    let _server = probe::echo(&two);
    let cut = Shape { partition: true, ..Shape::default() };
    for (there, back) in [(true, false), (false, true), (true, true)] {
        let before = [counters(&lab, &one, &two), counters(&lab, &two, &one)];
        let links = [(&one, &two), (&two, &one)];
        let links = links.into_iter().zip([there, back]).filter_map(|(link, is_cut)| is_cut.then_some(link));
        // The switch itself ends the fault, and then the exchange succeeds.
        lab.impair(&links.collect::<Vec<_>>(), &cut, Some(Duration::from_secs(2))).expect("a partition");
        assert_eq!(probe::run(&one, "exchange two 1")["copies"], 0);
        let after = [counters(&lab, &one, &two), counters(&lab, &two, &one)];
        let lost = [0, 1].map(|at| after[at].lost > before[at].lost);
        assert_eq!(lost, [there, back && !there], "{before:?} {after:?}");
    }
}

#[test]
fn rate_limits_a_stream() {
    let Some((lab, _directory)) = lab() else { return };
    let (one, two) = (lab.machine("one", None).expect("a machine"), lab.machine("two", None).expect("a machine"));
    let rate = Rate { bits_per_second: 40_000_000, queue_bytes: 100_000 };
    lab.impair(&[(&one, &two)], &Shape { rate: Some(rate), ..Shape::default() }, None).expect("a rate");
    let server = two.spawn(&probe::role("sink")).expect("a server");
    let started = std::time::Instant::now();
    assert_eq!(probe::run(&one, "source two 4000000")["arrived"], 4_000_000);
    // 4 MB at 40 Mbit/s, less the queue that may be full at once.
    assert!(started.elapsed() >= Duration::from_millis(780), "{:?}", started.elapsed());
    assert!(server.wait().expect("an end").success());
}

#[test]
fn streams_arrive_intact_through_every_port_and_fault() {
    let has_tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok();
    for port in [PortKind::Tap, PortKind::Veth] {
        if port == PortKind::Tap && !has_tun {
            skipped("/dev/net/tun does not open");
            continue;
        }
        let Some((lab, _directory)) = lab_with(port) else { return };
        let (one, two) = (lab.machine("one", None).expect("a machine"), lab.machine("two", None).expect("a machine"));
        let both = [(&one, &two), (&two, &one)];
        let faults = Shape { loss: 0.005, duplicate: 0.01, corrupt: 0.005, ..Shape::default() };
        let wide = Rate { bits_per_second: 1_000_000_000, queue_bytes: 1 << 20 };
        let shapes = [
            Shape::default(),
            Shape { delay: Duration::from_millis(1), ..Shape::default() },
            Shape { rate: Some(wide), ..Shape::default() },
            faults,
        ];
        for shape in shapes {
            let fault = lab.impair(&both, &shape, None).expect("a fault");
            let server = two.spawn(&probe::role("sink")).expect("a server");
            assert_eq!(probe::run(&one, "source two 3000000")["arrived"], 3_000_000, "{port:?} {shape:?}");
            assert!(server.wait().expect("an end").success(), "{port:?} {shape:?}");
            lab.lift(fault).expect("no fault");
        }
        let counters = counters(&lab, &one, &two);
        assert!(counters.lost > 0 && counters.corrupted > 0 && counters.duplicated > 0, "{port:?} {counters:?}");
        assert!(counters.bytes > 12_000_000, "{port:?} {counters:?}");
    }
}

/// A process in a network namespace that is no machine's, and the file of that namespace.
fn stranger(role: &str) -> (std::process::Child, PathBuf) {
    let probe = probe::role_as_child(role);
    let mut command = std::process::Command::new("unshare");
    command
        .arg("--net")
        .arg(probe.get_program())
        .args(probe.get_args())
        .envs(probe.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let child = command.stdout(Stdio::null()).spawn().expect("`unshare`");
    let namespace = PathBuf::from(format!("/proc/{}/ns/net", child.id()));
    let is_own =
        || fs::read_link(&namespace).is_ok_and(|link| link != fs::read_link("/proc/self/ns/net").expect("a namespace"));
    eventually("a network namespace", is_own);
    (child, namespace)
}

#[test]
fn guest_keeps_its_links_in_a_new_namespace() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root may enter network namespaces of other programs");
    }
    for port in [PortKind::Auto, PortKind::Veth] {
        let Some((lab, _directory)) = lab_with(port) else { return };
        let (guest, one) = (lab.guest("guest").expect("a guest"), lab.machine("one", None).expect("a machine"));
        assert!(fs::read_to_string(lab.hosts()).expect("names").contains(&format!("{} guest\n", guest.address())));
        let delay = Shape { delay: Duration::from_millis(10), ..Shape::default() };
        lab.impair(&[(&one, &guest)], &delay, None).expect("a delay");
        let mut strangers = Vec::new();
        for name in ["two", "three"] {
            let (child, namespace) = stranger("echo");
            strangers.push(child);
            guest.join(&File::open(&namespace).expect("a namespace")).expect("a network");
            let figures = probe::run(&one, "exchange guest 200");
            assert!(figures["there"] >= figures["back"] + 5_000, "{port:?} {figures:?}");
            let later = lab.machine(name, None).expect("a machine");
            assert_eq!(probe::run(&later, "exchange guest 200")["received"], 200, "{port:?}");
        }
        assert!(guest.spawn(&probe::role("echo")).is_err());
        let of = |name: &str| File::open(Path::new("/proc").join(name)).expect("a namespace");
        let error = guest.join(&of("self/ns/net")).expect_err("the network of this program");
        assert!(error.to_string().contains("this program"), "{error}");
        let pid = strangers[0].id();
        assert!(one.join(&of(&format!("{pid}/ns/net"))).is_err());
        assert!(guest.join(&of("self/ns/mnt")).is_err());
        for mut child in strangers {
            child.kill().expect("a signal");
            child.wait().expect("an end");
        }
    }
}
