//! The local port of an outgoing connection.

use std::ops::RangeInclusive;

/// Choice of the local port of an outgoing connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LocalPort {
    /// An ephemeral port.
    #[default]
    Any,
    /// A port below 1024 if the process may bind one and one is free, otherwise an ephemeral port. NFS
    /// servers can require a port below 1024, which only root can bind; Linux does so for exports without the
    /// option `insecure`.
    Reserved,
}

/// The range from which Linux's NFS client takes reserved ports (`sunrpc.min_resvport`,
/// `sunrpc.max_resvport`).
const RESERVED_PORTS: RangeInclusive<u16> = 665..=1023;

/// The ports to try for [`LocalPort::Reserved`]: 665 to 1023 in ascending order, starting at a random one and
/// wrapping around.
pub fn reserved_ports() -> impl Iterator<Item = u16> {
    let mut start = [0; 2];
    // If the system has no random numbers yet, start with the first port.
    let _ = rustix::rand::getrandom(&mut start[..], rustix::rand::GetRandomFlags::empty());
    let start = usize::from(u16::from_ne_bytes(start)) % RESERVED_PORTS.len();
    RESERVED_PORTS.cycle().skip(start).take(RESERVED_PORTS.len())
}
