//! The process that listens on a port, from `/proc`, for the error of a listener that cannot have it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Describes how an operator finds the process that listens on `address`; names the process if this one may see it.
pub(super) fn hint(address: SocketAddr) -> String {
    let port = address.port();
    match holder(port) {
        Some((pid, name)) => format!("process {pid} ({name}) has the port"),
        None => format!("`ss -ltnp 'sport = :{port}'` as root names the process that has the port"),
    }
}

/// Process ID and name of the process that listens on a TCP port; `None` if there are several sockets, or if this process
/// may not see whose the socket is.
fn holder(port: u16) -> Option<(u32, String)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let sockets: Vec<_> = tables.iter().flat_map(|table| listening_sockets(table, port)).collect();
    let [socket] = &sockets[..] else { return None };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pid: u32 = pids.find(|pid| has_descriptor(*pid, socket))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((pid, name.trim_end().to_owned()))
}

/// Targets of the descriptors of sockets that listen on `port`: `socket:[INODE]`.
fn listening_sockets(table: &str, port: u16) -> impl Iterator<Item = String> {
    // sl, local address, remote address, state (0A: LISTEN), queues, timer, retransmissions, user, timeout, inode
    table.lines().skip(1).filter_map(move |line| {
        let fields: Vec<_> = line.split_whitespace().take(10).collect();
        let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
        let is_wanted = *fields.get(3)? == "0A" && u16::from_str_radix(local_port, 16) == Ok(port);
        is_wanted.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]")))?
    })
}

/// Whether a process has a descriptor of the socket. Only root and its own user may look.
fn has_descriptor(pid: u32, socket: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut targets = descriptors.flatten().filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    targets.any(|target| target == Path::new(socket))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn own_listening_port_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hint = hint(address);
        assert!(hint.contains(&format!("process {} (", std::process::id())), "{hint}");
    }

    #[test]
    fn free_port_gets_a_command() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert!(hint(address).contains("ss -ltnp"), "{}", hint(address));
    }
}
