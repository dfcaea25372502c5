//! Disks of machines, and the loss of all data that has not reached them.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::machine::Machine;
use crate::disk::Disk;
use crate::error::Error;
use crate::program;
use crate::protocol::ToMachine;
use crate::signal::Signal;

/// Attempts to copy an image while the kernel still writes to it.
const ATTEMPTS: usize = 20;
/// Most time that killed processes keep a disk busy.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two attempts to unmount.
const PAUSE: Duration = Duration::from_millis(20);

/// Makes the machine's disk and mounts it at its data directory.
pub(super) fn mount_first(machine: &Machine, disk: Disk) -> Result<(), Error> {
    match disk {
        Disk::Memory { bytes } => {
            let options = format!("size={bytes},mode=0755");
            machine.run(&["mount", "-t", "tmpfs", "-o", &options, "tmpfs", &machine.data.display().to_string()], "")
        }
        Disk::Image { bytes } => make_image(machine, bytes),
    }
}

/// Makes a filesystem in a file beside the machine's data directory, and mounts it there.
fn make_image(machine: &Machine, bytes: u64) -> Result<(), Error> {
    let (path, shown) = image(machine);
    let file = File::create(&path).map_err(Error::io(format!("create {shown}")))?;
    file.set_len(bytes).map_err(Error::io(format!("resize {shown}")))?;
    // Everything is initialised now: else a kernel thread would write to the image later, while it is copied.
    program::run(
        &["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0", &shown],
        "",
    )?;
    mount(machine)
}

fn mount(machine: &Machine) -> Result<(), Error> {
    machine.run(&["mount", "-o", "loop", &image(machine).1, &machine.data.display().to_string()], "")
}

/// Cuts the power of machines at one instant.
pub(super) fn cut(machines: &[Arc<Machine>]) -> Result<(), Error> {
    if let Some(other) = machines.iter().find(|machine| !matches!(machine.disk, Some(Disk::Image { .. }))) {
        return Err(Error::Failed(format!("machine {} has no disk image, so its power cannot be cut", other.name)));
    }
    // The instant: no process of any of them acts between the first copy and the last.
    for machine in machines {
        machine.call::<()>(&ToMachine::SignalAll { signal: Signal::Stop })?;
    }
    let copies = machines.iter().map(|machine| copy(machine)).collect::<Result<Vec<_>, _>>();
    for machine in machines {
        machine.call::<()>(&ToMachine::SignalAll { signal: Signal::Kill })?;
    }
    for (machine, copy) in machines.iter().zip(copies?) {
        unmount(machine)?;
        fs::rename(&copy, image(machine).0).map_err(Error::io(format!("rename {}", copy.display())))?;
        mount(machine)?;
    }
    Ok(())
}

/// Unmounts a machine's data. Killed processes keep it busy until the kernel has taken their memory apart.
fn unmount(machine: &Machine) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match machine.run(&["umount", &machine.data.display().to_string()], "") {
            Err(_) if Instant::now() < deadline => thread::sleep(PAUSE),
            result => return result,
        }
    }
}

/// Copies the image as it is. The kernel may write older data back during the copy. No power cut leaves such a mix of old
/// and new parts, so the copy is made again if the image changed.
fn copy(machine: &Machine) -> Result<PathBuf, Error> {
    let (path, from) = image(machine);
    let copy = path.with_extension("cut");
    let to = copy.display().to_string();
    for _ in 0..ATTEMPTS {
        let before = changed(&path)?;
        program::run(&["cp", "--sparse=always", "--reflink=auto", &from, &to], "")?;
        if changed(&path)? == before {
            return Ok(copy);
        }
    }
    Err(Error::Failed(format!("{from} changed during each of {ATTEMPTS} attempts to copy it")))
}

/// When the file was written to last.
fn changed(path: &Path) -> Result<(i64, i64), Error> {
    let metadata = fs::metadata(path).map_err(Error::io(format!("examine {}", path.display())))?;
    Ok((metadata.mtime(), metadata.mtime_nsec()))
}

fn image(machine: &Machine) -> (PathBuf, String) {
    let path = machine.data.with_file_name("disk.img");
    let shown = path.display().to_string();
    (path, shown)
}
