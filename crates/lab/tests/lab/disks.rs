use std::path::Path;

use tenbin_lab::{Command, Disk, Signal};

use super::{eventually, lab, shell, skipped};

#[test]
fn disk_in_memory_is_full_at_its_size_and_outlives_processes() {
    let Some((lab, _directory)) = lab() else { return };
    let machine = lab.machine("one", Some(Disk::Memory { bytes: 1 << 20 })).expect("a machine");
    let data = machine.data().display().to_string();
    let full = machine.exec(&Command::new("dd").args(["if=/dev/zero", "bs=64k", &format!("of={data}/file")]));
    assert_eq!(full.expect("a command").exit.code, Some(1));
    assert_eq!(shell(&machine, &format!("stat -c %s {data}/file")), (1 << 20).to_string());
    assert!(!Path::new(&data).join("file").exists(), "the file is in the machine only");
}

#[test]
fn power_cut_keeps_synced_data_only() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        let must = std::env::var_os("CI").is_some() && std::env::var_os("TENBIN_NO_MOUNTS").is_none();
        assert!(!must, "no file system can be mounted here, and TENBIN_NO_MOUNTS is not set");
        skipped("a disk image needs root and loop devices");
        return;
    }
    let Some((lab, _directory)) = lab() else { return };
    let disk = Some(Disk::Image { bytes: 32 << 20 });
    let machines = ["one", "two"].map(|name| lab.machine(name, disk).expect("a machine with a disk image"));
    let mut processes = Vec::new();
    for machine in &machines {
        let script = "echo kept > kept && sync kept && echo gone > gone && echo ready && sleep 98764";
        let log = lab.directory().join(machine.name());
        let command = Command::new("sh").args(["-c", script]).directory(machine.data()).stdout(&log);
        processes.push(machine.spawn(&command).expect("a process"));
        eventually("both files", || std::fs::read_to_string(&log).is_ok_and(|text| text == "ready\n"));
    }
    lab.power_cut(&[&machines[0], &machines[1]]).expect("a power cut");
    for (machine, process) in machines.iter().zip(processes) {
        assert_eq!(process.wait().expect("an end").signal, Some(9));
        let data = machine.data().display();
        assert_eq!(shell(machine, &format!("cat {data}/kept")), "kept");
        // The name may have reached the journal with the first file's; the content has not.
        assert_eq!(shell(machine, &format!("cat {data}/gone 2>/dev/null; true")), "");
        let again = machine.spawn(&Command::new("sleep").arg("98764")).expect("a process after the cut");
        again.signal(Signal::Kill).expect("a signal");
    }
    let plain = lab.machine("three", None).expect("a machine");
    assert!(lab.power_cut(&[&plain]).is_err());
}
