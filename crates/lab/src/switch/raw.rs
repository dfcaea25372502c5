//! System calls without a safe wrapper: two requests of TAP devices, and packet sockets of one interface.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Opens the device that makes TAP interfaces. It fails where the user may not open `/dev/net/tun`.
pub(crate) fn open_tun() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")
}

/// Makes a TAP interface in the thread's network namespace. Each frame carries a header with its offloads
/// (`virtio_net_hdr`, 10 bytes); the interface takes frames of up to 64 KiB.
pub(crate) fn tap(name: &str) -> io::Result<OwnedFd> {
    let file = open_tun()?;
    // SAFETY: `ifreq` is a C struct of integers and unions of them; all of its bit patterns are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives through the call.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    checked(made)?;
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) };
    checked(set)?;
    Ok(file.into())
}

/// Opens a packet socket that reads and writes whole frames of the interface `index`, each with a `virtio_net_hdr`.
pub(crate) fn packet_socket(index: u32) -> io::Result<OwnedFd> {
    // No protocol before the bind: else the socket would receive frames of all interfaces until then.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    set_packet_option(&socket, libc::PACKET_VNET_HDR)?;
    set_packet_option(&socket, libc::PACKET_IGNORE_OUTGOING)?;
    // The system cuts the size to its limit; more needs a capability outside of the lab's namespaces.
    set_socket_recv_buffer_size(&socket, 64 << 20)?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index as c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address lives through the call, and `size` is the size of its type.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    checked(bound)?;
    Ok(socket)
}

/// Switches an option of packet sockets on.
fn set_packet_option(socket: &OwnedFd, option: c_int) -> io::Result<()> {
    let (value, size): (c_int, _) = (1, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the value is an integer that lives through the call, and `size` is its size.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, (&raw const value).cast(), size) };
    checked(set).map(|_| ())
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
