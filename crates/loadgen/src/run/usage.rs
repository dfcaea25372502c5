//! Resource usage of processes, and the search for the process that listens at an address.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// Processor time and memory of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// User and system time of all threads, in seconds, in steps of 10 ms.
    pub cpu_seconds: f64,
    /// Resident memory, in KiB.
    pub resident_kib: u64,
    /// Peak resident memory, in KiB.
    pub resident_peak_kib: u64,
    /// Bytes written to disks, in blocks; 0 if the system hides them, as it does with other users' processes.
    pub written_bytes: u64,
}

impl Usage {
    /// Usage of process `pid`; `None` if there is no such process, or no `/proc`.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let resident_kib = kib(&status, "VmRSS:")?;
        let resident_peak_kib = kib(&status, "VmHWM:").unwrap_or(resident_kib);
        let cpu_seconds = cpu_ticks(&stat)? as f64 / TICKS_PER_SECOND;
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let written_bytes = io.lines().find_map(|line| line.strip_prefix("write_bytes:")?.trim().parse().ok());
        Some(Self { cpu_seconds, resident_kib, resident_peak_kib, written_bytes: written_bytes.unwrap_or(0) })
    }
}

/// The process of this machine that listens at one of `addresses`.
///
/// `None` if the addresses belong to another machine, if no process listens, or if the system hides the process, as it
/// does with other users' processes.
pub fn listener_at(addresses: &[SocketAddr]) -> Option<u32> {
    let local: Vec<_> = addresses.iter().filter(|address| is_local(address.ip())).collect();
    let ports: HashSet<u16> = local.iter().map(|address| address.port()).collect();
    let sockets: HashSet<u64> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .flat_map(|table| table.lines().filter_map(listening_socket).collect::<Vec<_>>())
        .filter_map(|(port, socket)| ports.contains(&port).then_some(socket))
        .collect();
    if sockets.is_empty() { None } else { owner_of(&sockets) }
}

/// Whether an address belongs to this machine, which only then lets a socket bind to it.
///
/// Some systems allow any address. Then a remote broker may seem local, but no listening socket is found.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || TcpListener::bind((ip, 0)).is_ok()
}

/// Port and inode of a listening socket, from a line of `/proc/net/tcp`.
///
/// `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …`
fn listening_socket(line: &str) -> Option<(u16, u64)> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let (_, port) = fields.get(1)?.rsplit_once(':')?;
    if *fields.get(3)? != LISTEN {
        return None;
    }
    Some((u16::from_str_radix(port, 16).ok()?, fields.get(9)?.parse().ok()?))
}

/// The first process that has one of these sockets open.
fn owner_of(sockets: &HashSet<u64>) -> Option<u32> {
    let mut pids: Vec<u32> =
        fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // A process and its children may share sockets; the parent usually has the lower id.
    pids.sort_unstable();
    pids.into_iter().find(|pid| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.filter_map(|file| fs::read_link(file.ok()?.path()).ok()).any(|target| {
            let socket =
                target.to_str().and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            socket.is_some_and(|socket: u64| sockets.contains(&socket))
        })
    })
}

/// utime + stime, fields 14 and 15. The program's name, field 2, is in parentheses and may contain any characters.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// A value of `/proc/PID/status`.
fn kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// USER_HZ, which Linux reports to programs as 100 for any kernel timer frequency.
const TICKS_PER_SECOND: f64 = 100.0;

/// TCP_LISTEN, in hexadecimal.
const LISTEN: &str = "0A";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_the_sum_of_fields_14_and_15() {
        let stat =
            "42 (a b) c) S 1 42 42 0 -1 4194560 900 0 3 0 150 25 0 0 20 0 3 0 12345 1000000 250 18446744073709551615";
        assert_eq!(cpu_ticks(stat), Some(175));
        assert_eq!(cpu_ticks("42 (a) S 1"), None);
    }

    #[test]
    fn resident_memory_is_in_kib() {
        let status = "Name:\ta\nVmHWM:\t 9999 kB\nVmRSS:\t    5120 kB\n";
        assert_eq!((kib(status, "VmRSS:"), kib(status, "VmHWM:")), (Some(5120), Some(9999)));
        assert_eq!(kib("Name:\ta\n", "VmRSS:"), None);
    }

    #[test]
    fn this_process_uses_something() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.resident_kib > 0 && usage.resident_peak_kib >= usage.resident_kib && usage.cpu_seconds >= 0.0);
        assert_eq!(Usage::of(u32::MAX), None);
    }

    #[test]
    fn process_listening_at_a_port_is_found() {
        for host in ["127.0.0.1", "0.0.0.0", "::1"] {
            // Some machines have no IPv6.
            let Ok(listener) = TcpListener::bind((host, 0)) else { continue };
            let address = listener.local_addr().unwrap();
            assert_eq!(listener_at(&[address]), Some(std::process::id()), "{address}");
            let elsewhere = SocketAddr::from(([192, 0, 2, 1], address.port()));
            assert_eq!(listener_at(&[elsewhere]), None, "an address for documentation is nobody's");
            drop(listener);
            assert_eq!(listener_at(&[address]), None, "nobody listens there any more");
        }
    }

    #[test]
    fn only_a_socket_that_listens_counts() {
        let line = "   1: 0100007F:075B 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 424242 1 0 100 0";
        assert_eq!(listening_socket(line), Some((1883, 424_242)));
        assert_eq!(listening_socket(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listening_socket("  sl  local_address rem_address   st tx_queue rx_queue"), None);
    }
}
