//! Which process listens on a port of this machine, by what Linux shows of sockets.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The process that listens where `host` and `port` lead to; `None` for another machine, for a process of another user
/// that is not shown to us, and where there is no `/proc`.
pub(crate) async fn process(host: &str, port: u16) -> Option<u32> {
    let mut addresses = tokio::net::lookup_host((host, port)).await.ok()?;
    if !addresses.all(|address| is_local(address.ip())) {
        return None;
    }
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| listening_sockets(&table, port))
        .collect();
    owner(&sockets)
}

/// Whether this machine has the address: no other can be bound to.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::from((address, 0))).is_ok()
}

/// The inodes of sockets that listen on `port`. A row has the local address, as `ADDRESS:PORT` in hexadecimal digits, in its
/// second column, the state in its fourth and the inode in its tenth.
fn listening_sockets(table: &str, port: u16) -> Vec<String> {
    let row = |line: &str| {
        let columns: Vec<_> = line.split_ascii_whitespace().collect();
        let (_, local_port) = columns.get(1)?.rsplit_once(':')?;
        let is_ours = u16::from_str_radix(local_port, 16) == Ok(port) && *columns.get(3)? == LISTEN;
        is_ours.then_some(*columns.get(9)?).map(str::to_owned)
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// The process with the lowest number that has one of these sockets: what it has forked has them too.
fn owner(sockets: &[String]) -> Option<u32> {
    let links: Vec<_> = sockets.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let mut processes: Vec<u32> =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    processes.sort_unstable();
    processes.into_iter().find(|process| {
        let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let links_of = files.filter_map(|file| fs::read_link(file.path()).ok());
        links_of.filter_map(|link| link.into_os_string().into_string().ok()).any(|link| links.contains(&link))
    })
}

/// TCP_LISTEN.
const LISTEN: &str = "0A";

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:075B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0\n   \
            1: 0100007F:075B 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4\n   \
            2: 0100007F:075C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0\n";
        assert_eq!(listening_sockets(table, 1883), ["4711"]);
        assert!(listening_sockets(table, 1885).is_empty() && listening_sockets("", 1883).is_empty());
    }

    #[tokio::test]
    async fn a_listener_of_this_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(process("127.0.0.1", port).await, Some(std::process::id()));
        drop(listener);
        assert_eq!(process("127.0.0.1", port).await, None);
        // An address for documentation: nobody has it.
        assert_eq!(process("192.0.2.1", port).await, None);
    }
}
