//! Addresses that overlap: the system opens a socket at one of them alone.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::{Config, ConfigError, ListenAddress, Listener, Transport};

/// Addresses of a name; others need no look-up.
type LookUp<'a> = &'a dyn Fn(&ListenAddress) -> Vec<SocketAddr>;

impl ListenAddress {
    /// Whether the system refuses a socket at one of the addresses while the other has one. A name has none: look it up.
    ///
    /// Equal addresses overlap. So do `0.0.0.0` and each address of IPv4, and `[::]` and each address. Port 0 is a free one.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip(one), Self::Ip(other)) => one.port() != 0 && one.port() == other.port() && meet(*one, *other),
            (Self::Unix(one), Self::Unix(other)) => file_of(one) == file_of(other),
            _ => false,
        }
    }

    /// Addresses at which a listener opens sockets: all of a name, and one of several else.
    fn sockets(&self, look_up: LookUp<'_>) -> Vec<Self> {
        match self {
            Self::Name { .. } => look_up(self).into_iter().map(Self::Ip).collect(),
            &Self::Port(port) => [([0_u16; 8], port).into(), ([0_u8; 4], port).into()].map(Self::Ip).to_vec(),
            address => vec![address.clone()],
        }
    }
}

/// Whether two addresses of one port overlap.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    let [ip, other_ip] = [one, other].map(|address| address.ip().to_canonical());
    let includes = |wide: IpAddr, narrow: IpAddr| wide.is_unspecified() && (wide.is_ipv6() || narrow.is_ipv4());
    let [link, other_link] = [one, other].map(|address| match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    });
    includes(ip, other_ip) || includes(other_ip, ip) || (ip == other_ip && link == other_link)
}

/// Path of a unix socket; two paths of one file are equal if its directory exists.
fn file_of(path: &Path) -> PathBuf {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = directory.canonicalize().ok().zip(path.file_name());
    found.map_or_else(|| path.to_owned(), |(directory, name)| directory.join(name))
}

impl Config {
    /// Errors of listeners whose addresses overlap those of listeners before them.
    pub(crate) fn overlaps(&self, look_up: LookUp<'_>) -> Vec<ConfigError> {
        let listeners: Vec<_> = self.all_listeners().collect();
        let is_udp = |listener: &Listener| listener.transport == Transport::MqttSn;
        let overlap = |one: &Listener, other: &Listener| {
            let sockets = other.address.sockets(look_up);
            let meets = |socket: &ListenAddress| sockets.iter().any(|other| socket.overlaps(other));
            is_udp(one) == is_udp(other) && one.address.sockets(look_up).iter().any(meets)
        };
        let error = |(at, listener): (usize, &Listener)| {
            let other = listeners[..at].iter().position(|other| overlap(listener, other))?;
            Some(self.overlap((&self.key_of(at), &listener.address), (&self.key_of(other), &listeners[other].address)))
        };
        listeners.iter().enumerate().filter_map(error).collect()
    }

    /// Errors of the cluster port, whose address overlaps that of a listener or all of admin HTTP's.
    pub(crate) fn cluster_overlaps(&self, look_up: LookUp<'_>) -> Vec<ConfigError> {
        if !self.cluster.is_on() {
            return Vec::new();
        }
        let own = ListenAddress::Ip(self.cluster.listen);
        let meets = |address: &ListenAddress| address.sockets(look_up).iter().any(|socket| own.overlaps(socket));
        let error = |key: &str, other: &ListenAddress| self.overlap(("cluster: listen", &own), (key, other));
        let listeners = self.all_listeners().enumerate();
        let tcp = listeners.filter(|(_, listener)| listener.transport != Transport::MqttSn);
        let found = tcp.filter(|(_, listener)| meets(&listener.address));
        let errors = found.map(|(at, listener)| error(&self.key_of(at), &listener.address));
        let errors = errors.chain(self.admin.address().and_then(|address| {
            // It opens the first free one.
            let is_taken = address.sockets(look_up).iter().all(|socket| own.overlaps(socket));
            is_taken.then(|| error("admin.address", &address))
        }));
        errors.collect()
    }

    /// Error of admin HTTP if each of its addresses overlaps an address of a listener: it opens the first free one.
    ///
    /// The broker starts without admin HTTP if another has its default address.
    pub(crate) fn admin_overlap(&self, look_up: LookUp<'_>) -> Option<ConfigError> {
        let address = self.admin.address().filter(|_| self.admin.address != super::Admin::ADDRESS)?;
        let listeners: Vec<_> = self.all_listeners().collect();
        let is_at = |listener: &Listener, socket: &ListenAddress| {
            let is_tcp = listener.transport != Transport::MqttSn;
            is_tcp && listener.address.sockets(look_up).iter().any(|other| socket.overlaps(other))
        };
        let holder = |socket: &ListenAddress| listeners.iter().position(|listener| is_at(listener, socket));
        let holders: Option<Vec<_>> = address.sockets(look_up).iter().map(holder).collect();
        let other = *holders?.first()?;
        Some(self.overlap(("admin.address", &address), (&self.key_of(other), &listeners[other].address)))
    }

    /// Key of an address in [`Config::all_listeners`].
    fn key_of(&self, at: usize) -> String {
        let listener = at.checked_sub(self.listen.len()).map(|at| &self.listeners[at]);
        listener.map_or_else(|| "listen".to_owned(), |listener| format!("listeners: {}: address", listener.name()))
    }

    fn overlap(&self, (key, address): (&str, &ListenAddress), other: (&str, &ListenAddress)) -> ConfigError {
        self.source.placed(ConfigError::overlap((key, address), other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> ListenAddress {
        text.parse().unwrap()
    }

    /// Opens sockets at pairs of addresses, as the start does.
    #[test]
    #[cfg(target_os = "linux")]
    fn addresses_overlap_as_the_system_says() {
        use std::net::{TcpListener, UdpSocket};
        let ips = ["127.0.0.1", "127.0.0.2", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:0.0.0.0]"];
        let at = |ip: &str, port: u16| format!("{ip}:{port}");
        let pairs = ips.iter().flat_map(|one| ips.iter().map(move |other| (one, other)));
        // Without IPv6 there are fewer.
        for (one, other) in
            pairs.filter(|(one, other)| [one, other].iter().all(|ip| TcpListener::bind(at(ip, 0)).is_ok()))
        {
            let are_both_open = || {
                let first = TcpListener::bind(at(one, 0)).unwrap();
                let port = first.local_addr().unwrap().port();
                let datagrams = UdpSocket::bind(at(one, port));
                let second = (TcpListener::bind(at(other, port)), UdpSocket::bind(at(other, port)));
                datagrams.is_ok().then_some((second.0.is_ok(), second.1.is_ok()))
            };
            let overlap = address(&at(one, 1)).overlaps(&address(&at(other, 1)));
            // Another process may have the port at the other address.
            let is_as_told = |_| are_both_open() == Some((!overlap, !overlap));
            assert!((0..20).any(is_as_told), "{one} {other}: {overlap}");
            assert!(!address(&at(one, 1)).overlaps(&address(&at(other, 2))));
            assert!(!address(&at(one, 0)).overlaps(&address(&at(other, 0))));
        }
        assert!(!address("[fe80::1%1]:1").overlaps(&address("[fe80::1%2]:1")), "on two links");
    }

    #[test]
    fn unix_sockets_of_one_file_overlap() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(directory.path(), directory.path().join("link")).unwrap();
        let path = |name: &str| ListenAddress::Unix(directory.path().join(name));
        for (name, is_same) in [("a", true), ("link/a", true), ("link/../a", false), ("b", false), ("./a", true)] {
            assert_eq!(path("a").overlaps(&path(name)), is_same, "{name}");
        }
        assert!(path("missing/a").overlaps(&path("missing/a")));
    }

    #[test]
    fn overlaps_name_both_keys() {
        let listener = |name: &str, keys: &str| format!("[[listeners]]\nname = {name:?}\n{keys}\n");
        let tcp = |address: &str| format!("address = {address:?}");
        let udp = |address: &str| format!("address = {address:?}\ntransport = \"mqtt-sn\"");
        let look_up = |_: &ListenAddress| vec![([0, 0, 0, 0, 0, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 1).into()];
        let errors = |text: &str| -> Vec<String> {
            Config::parse(text).unwrap().overlaps(&look_up).iter().map(ToString::to_string).collect()
        };
        let listen = "listen = [\"127.0.0.1:1\"]\n";
        for (text, expected) in [
            (
                format!("{listen}{}", listener("b", &tcp(":1"))),
                "listeners: b: address: :1 overlaps 127.0.0.1:1 (listen)",
            ),
            (
                format!("{listen}{}", listener("b", &tcp("localhost:1"))),
                "listeners: b: address: localhost:1 overlaps 127.0.0.1:1 (listen)",
            ),
            (
                [listener("a", &udp("0.0.0.0:1")), listener("b", &udp("127.0.0.1:1"))].concat(),
                "listeners: b: address: 127.0.0.1:1 overlaps 0.0.0.0:1 (listeners: a: address)",
            ),
            ("listen = [\"127.0.0.1:1\", \"0.0.0.0:1\"]".to_owned(), "listen: 0.0.0.0:1 overlaps 127.0.0.1:1 (listen)"),
        ] {
            assert_eq!(errors(&text), [format!("configuration: {expected}")]);
        }
        let apart = [listener("a", &tcp("127.0.0.1:1")), listener("b", &udp("127.0.0.1:1"))].concat();
        assert!(errors(&apart).is_empty(), "UDP has ports of its own");
        assert!(errors("listen = [\":0\", \"0.0.0.0:0\", \"127.0.0.1:0\"]").is_empty());
    }

    #[test]
    fn cluster_port_needs_an_address_for_itself() {
        let look_up = |_: &ListenAddress| vec![([0, 0, 0, 0, 0, 0, 0, 1], 7883).into(), ([127, 0, 0, 1], 7883).into()];
        let cluster = |listen: &str| {
            format!("[cluster]\nname = \"c\"\nnode = \"a\"\nnodes = [\"a:7883\", \"b:7883\"]\nlisten = {listen:?}\n")
        };
        let errors = |text: &str| -> Vec<String> {
            let config = Config::parse_read(Path::new("f"), text.to_owned(), std::iter::empty()).unwrap();
            config.cluster_overlaps(&look_up).iter().map(ToString::to_string).collect()
        };
        let (listen, port) = ("127.0.0.1:1883", "127.0.0.1:7883");
        for (address, own, is_refused) in [
            (port, port, true),
            ("0.0.0.0:7883", port, true),
            (port, "0.0.0.0:7883", true),
            (port, "[::]:7883", true),
            ("[::]:7883", port, true),
            (":7883", "10.0.0.1:7883", true),
            ("localhost:7883", port, true),
            ("10.0.0.2:7883", "10.0.0.1:7883", false),
            (listen, port, false),
        ] {
            let found = errors(&format!("listen = [{address:?}]\n{}", cluster(own)));
            let expected = format!("configuration f, line 6: cluster: listen: {own} overlaps {address} (listen)");
            assert_eq!(found, if is_refused { vec![expected] } else { vec![] });
        }
        let udp = "[[listeners]]\nname = \"sn\"\naddress = \"127.0.0.1:7883\"\ntransport = \"mqtt-sn\"\n";
        assert_eq!(errors(&format!("{udp}{}", cluster(port))), Vec::<String>::new(), "UDP has ports of its own");
        let http = "[[listeners]]\nname = \"in\"\naddress = \"0.0.0.0:7883\"\ntransport = \"http\"\n";
        assert!(errors(&format!("{http}{}", cluster(port)))[0].ends_with("(listeners: in: address)"));
        let alone = "listen = [\"127.0.0.1:7883\"]\n";
        assert_eq!(errors(alone), Vec::<String>::new(), "there is no cluster");
        for (admin, is_refused) in [(port, true), ("0.0.0.0:7883", true), ("localhost:7883", false)] {
            let found = errors(&format!("[admin]\naddress = {admin:?}\n{}", cluster(port)));
            let expected = format!("configuration f, line 7: cluster: listen: {port} overlaps {admin} (admin.address)");
            assert_eq!(found, if is_refused { vec![expected] } else { vec![] });
        }
    }

    #[test]
    fn admin_http_takes_the_first_free_address() {
        let look_up = |_: &ListenAddress| vec![([0, 0, 0, 0, 0, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 1).into()];
        for (admin, listen, is_refused) in [
            ("127.0.0.1:1", "127.0.0.1:1", true),
            ("localhost:1", "127.0.0.1:1", false),
            ("localhost:1", "[::]:1", true),
            (":1", "[::1]:1", false),
            (":1", "127.0.0.1:1", true),
            (crate::config::Admin::ADDRESS, crate::config::Admin::ADDRESS, false),
        ] {
            let config = Config::parse(&format!("listen = [{listen:?}]\n[admin]\naddress = {admin:?}")).unwrap();
            let error = config.admin_overlap(&look_up).map(|error| error.to_string());
            let expected = format!("configuration: admin.address: {admin} overlaps {listen} (listen)");
            assert_eq!(error, is_refused.then_some(expected));
        }
    }
}
