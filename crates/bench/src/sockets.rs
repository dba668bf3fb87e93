//! Opening sockets: the file limit, source addresses, and the broker's address.
//!
//! Many connections to one loopback address run out of ephemeral ports, so large runs bind their sockets to several
//! source addresses of 127.0.0.0/8.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use mio::net::TcpStream;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::error::BenchError;

/// Connections per loopback source address, well within the usual range of 28,000 ephemeral ports.
const CONNECTIONS_PER_ADDRESS: u32 = 10_000;
/// Descriptors besides the connections: epoll, timers, /proc, standard streams.
const OTHER_DESCRIPTORS: u64 = 100;

/// Raises the limit of open files far enough for `connections`.
///
/// # Errors
/// If the limit cannot be raised that far.
pub(crate) fn raise_file_limit(connections: u32) -> Result<(), BenchError> {
    let needed = u64::from(connections) + OTHER_DESCRIPTORS;
    let mut limit = getrlimit(Resource::Nofile);
    let enough = |value: Option<u64>| value.is_none_or(|files| files >= needed);
    if enough(limit.current) {
        return Ok(());
    }
    if !enough(limit.maximum) {
        // Only a privileged process can raise the hard limit; try anyway.
        limit.maximum = Some(needed);
    }
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).map_err(|error| {
        BenchError::System(format!("{connections} connections need {needed} open files (ulimit -n): {error}"))
    })
}

/// Resolves the address of a broker.
///
/// # Errors
/// If the name does not resolve.
pub(crate) fn resolve(host: &str, port: u16) -> Result<SocketAddr, BenchError> {
    let unknown = |why: String| BenchError::Open(format!("cannot resolve {host}: {why}"));
    let mut addresses = (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    addresses.next().ok_or_else(|| unknown("no address".into()))
}

/// Starts connecting to `broker`, as connection number `index` of `total`.
///
/// More than [`CONNECTIONS_PER_ADDRESS`] connections to a loopback address spread over 127.0.0.1, 127.0.0.2 and
/// so on.
///
/// # Errors
/// Socket errors; most appear only when the socket becomes writable.
pub(crate) fn start_connect(broker: SocketAddr, index: u32, total: u32) -> io::Result<TcpStream> {
    let stream = match source_address(broker, index, total) {
        None => TcpStream::connect(broker)?,
        Some(source) => connect_from(source, broker)?,
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn source_address(broker: SocketAddr, index: u32, total: u32) -> Option<Ipv4Addr> {
    match broker.ip() {
        IpAddr::V4(ip) if ip.is_loopback() && total > CONNECTIONS_PER_ADDRESS => {
            let first = u32::from(Ipv4Addr::LOCALHOST);
            Some(Ipv4Addr::from(first + index / CONNECTIONS_PER_ADDRESS))
        }
        _ => None,
    }
}

fn connect_from(source: Ipv4Addr, broker: SocketAddr) -> io::Result<TcpStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((source, 0)))?;
    match rustix::net::connect(&socket, &broker) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from_std(socket.into())),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_many_loopback_connections_over_addresses() {
        let broker = "127.0.0.1:1883".parse().unwrap();
        assert_eq!(source_address(broker, 9_999, 10_000), None);
        assert_eq!(source_address(broker, 9_999, 20_000), Some(Ipv4Addr::LOCALHOST));
        assert_eq!(source_address(broker, 10_000, 20_000), Some(Ipv4Addr::new(127, 0, 0, 2)));
        assert_eq!(source_address("192.0.2.1:1883".parse().unwrap(), 0, 20_000), None);
    }

    #[test]
    fn bound_socket_connects_from_its_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = connect_from(Ipv4Addr::new(127, 0, 0, 5), listener.local_addr().unwrap()).unwrap();
        let (_, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), Ipv4Addr::new(127, 0, 0, 5));
        drop(stream);
    }
}
