//! Two labs, as on two hosts, whose machines form one network.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use tempfile::TempDir;
use tenbin_lab::{Lab, LinkCounters, Machine, Shape};

use super::{lab, probe, shell};

/// A lab with machine `one` and a lab with machine `two`, joined by a connection that can be cut.
struct Joined {
    labs: [Lab; 2],
    /// `one` and `two` as each lab knows them.
    machines: [[Machine; 2]; 2],
    cable: TcpStream,
    directories: [TempDir; 2],
}

fn joined() -> Option<Joined> {
    let ((first, one), (second, two)) = (lab()?, lab()?);
    let machines = [
        [first.machine("one", None).expect("a machine"), first.remote("two").expect("a machine")],
        [second.remote("one").expect("a machine"), second.machine("two", None).expect("a machine")],
    ];
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let cable = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (peer, _) = listener.accept().expect("a connection");
    first.trunk(&cable, &[&machines[0][1]]).expect("a trunk");
    second.trunk(&peer, &[&machines[1][0]]).expect("a trunk");
    Some(Joined { labs: [first, second], machines, cable, directories: [one, two] })
}

fn link(lab: &Lab, from: &str, to: &str) -> LinkCounters {
    let all = lab.counters().expect("counters");
    all.into_iter().find(|link| link.from == from && link.to == to).expect("a link")
}

#[test]
fn delay_acts_once_at_the_senders_lab() {
    let Some(Joined { labs, machines: [[one, far_two], [far_one, two]], directories: _files, cable: _cable }) =
        joined()
    else {
        return;
    };
    assert_eq!((one.address(), two.address()), (far_one.address(), far_two.address()));
    let _server = probe::echo(&two);
    let shape = Shape { delay: Duration::from_millis(30), ..Shape::default() };
    let delay = labs[0].impair(&[(&one, &far_two)], &shape, None).expect("a delay");
    let figures = probe::run(&one, "exchange two 100");
    assert_eq!(figures["received"], 100);
    // A second pass through a link would add 30 ms more.
    assert!(figures["there"] >= 30_000 && figures["there"] < figures["back"] + 50_000, "{figures:?}");
    assert!(figures["there"] >= figures["back"] + 20_000, "{figures:?}");
    labs[0].lift(delay).expect("no delay");
    let after = probe::run(&one, "exchange two 100");
    assert!(figures["there"] >= after["there"] + 20_000, "{figures:?} {after:?}");
    assert!(link(&labs[0], "one", "two").counters.packets > 100);
    assert_eq!(link(&labs[1], "one", "two").counters.packets, 0, "its link is the other lab's");
    assert!(machine_fails(&far_two), "a machine of the other lab has no processes here");
}

fn machine_fails(machine: &Machine) -> bool {
    machine.exec(&tenbin_lab::Command::new("true")).is_err()
}

#[test]
fn streams_pass_whole_through_a_trunk() {
    let Some(Joined { labs, machines: [[one, far_two], [_, two]], directories: _files, cable: _cable }) = joined()
    else {
        return;
    };
    for loss in [0.0, 0.02] {
        let shape = Shape { loss, ..Shape::default() };
        let fault = labs[0].impair(&[(&one, &far_two)], &shape, None).expect("a fault");
        let server = two.spawn(&probe::role("sink")).expect("a server");
        assert_eq!(probe::run(&one, "source two 4000000")["arrived"], 4_000_000);
        assert!(server.wait().expect("an end").success());
        labs[0].lift(fault).expect("no fault");
    }
}

#[test]
fn cut_trunk_passes_nothing_and_leaves_each_lab_alive() {
    let Some(Joined { labs, machines: [[one, _], [_, two]], directories: _files, cable }) = joined() else { return };
    let _server = probe::echo(&two);
    assert_eq!(probe::run(&one, "exchange two 10")["received"], 10);
    cable.shutdown(std::net::Shutdown::Both).expect("an end");
    let exchange = one.spawn(&probe::role("exchange two 1")).expect("a probe");
    super::eventually("the loss of a frame", || link(&labs[0], "one", "two").counters.overflowed > 0);
    assert_eq!(exchange.wait_for(Duration::from_millis(100)).expect("a lab"), None, "nothing is answered");
    assert_eq!(shell(&one, "echo here"), "here");
}
