//! The RDMA devices of this machine, their capabilities, and reasons why the provider is unavailable.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    path::Path,
};

use super::{
    cm::CmId,
    context::{DeviceList, ListedDevice, OpenDevice, text},
    ffi::{self, Libraries, LoadError, verbs::*},
};

/// Maximum number of GIDs to query from a device: the kernel's interface returns less than 64 KiB, and an
/// entry has 32 bytes.
const MAX_GIDS: usize = 2000;

/// Why the provider is unavailable on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// rdma-core is missing or too old.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// The kernel interface is missing, or not accessible to this process.
    #[error(
        "{0} does not exist: load the kernel's RDMA modules (modprobe -a ib_uverbs rdma_ucm), or give this container the \
         device nodes"
    )]
    NoKernelInterface(&'static str),
    /// The machine has no RDMA device.
    #[error(
        "this machine has no RDMA device (`rdma link` lists them); create a software device on an Ethernet \
         interface with: rdma link add rxe0 type rxe netdev INTERFACE"
    )]
    NoDevices,
    /// The list of devices cannot be queried.
    #[error("cannot list RDMA devices: {0}")]
    List(String),
}

/// Transport protocol of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand packets: over InfiniBand links, or over Ethernet (RoCE).
    InfiniBand,
    /// iWARP, over TCP.
    Iwarp,
    /// Another transport, which is not supported.
    Other,
}

/// An RDMA device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Device {
    /// The kernel's name of the device, such as `mlx5_0`.
    pub name: String,
    /// Transport protocol.
    pub transport: Transport,
    /// Node type: `CA` (adapter), `RNIC` (iWARP adapter), or another name of rdma-core.
    pub node_type: &'static str,
    /// Attributes, or the reason why they cannot be queried (usually a missing permission).
    pub details: Result<Details, String>,
}

/// Attributes of an open device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Details {
    /// Firmware version; empty for software devices.
    pub firmware: String,
    /// Node GUID.
    pub guid: u64,
    /// Limits.
    pub limits: Limits,
    /// Supported features.
    pub features: Features,
    /// Ports, in the order of their numbers from 1.
    pub ports: Vec<Port>,
}

/// Limits of a device, as reported by its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of work requests in a queue.
    pub max_qp_wr: u32,
    /// Maximum number of pieces of a work request.
    pub max_sge: u32,
    /// Maximum number of pieces of an RDMA Read's sink (smaller on iWARP).
    pub max_sge_rd: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of entries of a completion queue.
    pub max_cqe: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum size of a memory region in bytes.
    pub max_mr_size: u64,
    /// Supported page sizes as a mask: bit 12 represents 4 KiB.
    pub page_size_cap: u64,
    /// Maximum number of memory windows.
    pub max_mw: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of work requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum number of inbound RDMA Reads of a queue pair (IRD).
    pub max_qp_rd_atom: u32,
    /// Maximum number of outbound RDMA Reads of a queue pair (ORD).
    pub max_qp_init_rd_atom: u32,
    /// Maximum number of inbound RDMA Reads of all queue pairs.
    pub max_res_rd_atom: u32,
}

/// Features of a device, as reported by its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// Type 2 memory windows, bound to a queue pair by a work request.
    pub memory_windows: bool,
    /// Send with Invalidate.
    pub send_with_invalidate: bool,
    /// Shared receive queues.
    pub shared_receive_queue: bool,
    /// Registered memory without pinned pages.
    pub on_demand_paging: bool,
    /// On-demand paging of the whole address space with one region.
    pub implicit_on_demand_paging: bool,
}

/// A port of a device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Port {
    /// Number, from 1.
    pub number: u8,
    /// State as named by rdma-core; only `ACTIVE` ports transfer data.
    pub state: &'static str,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: &'static str,
    /// Current path MTU in bytes. (The value of iWARP devices has no meaning.)
    pub active_mtu: u32,
    /// Maximum path MTU in bytes.
    pub max_mtu: u32,
    /// Maximum length of a message in bytes.
    pub max_message: u32,
    /// Addresses.
    pub gids: Vec<Gid>,
}

/// An address of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// Index in the port's table.
    pub index: u32,
    /// 128 bits in the form of an IPv6 address; RoCE version 2 over IPv4 uses IPv4-mapped addresses.
    pub address: Ipv6Addr,
    /// `IB`, `RoCE v1` or `RoCE v2`.
    pub kind: &'static str,
}

/// Lists the RDMA devices of this machine; the list is never empty.
///
/// # Errors
/// [`VerbsError`]: what is missing, and how to install it.
pub fn devices() -> Result<Vec<Device>, VerbsError> {
    let libraries = ffi::libraries()?;
    let list = DeviceList::new(libraries).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSYS) => no_interface().unwrap_or(VerbsError::NoDevices),
        _ => VerbsError::List(e.to_string()),
    })?;
    let devices: Vec<Device> = list.iter().map(|d| describe(&d)).collect();
    match devices.is_empty() {
        true => Err(no_interface().unwrap_or(VerbsError::NoDevices)),
        false => Ok(devices),
    }
}

/// The name of the RDMA device with the local address `local`; `None` if no device has it, or it is
/// unspecified.
///
/// # Errors
/// Those of [`devices`].
pub fn device_of(local: IpAddr) -> Result<Option<String>, VerbsError> {
    let libraries = usable()?;
    let id = CmId::new(libraries).map_err(|e| match e.raw_os_error() {
        Some(libc::ENODEV) => VerbsError::NoDevices,
        _ => VerbsError::List(e.to_string()),
    })?;
    // Binding fails for addresses of other machines and of interfaces without a device.
    Ok(id.bind(SocketAddr::new(local, 0)).ok().and_then(|()| id.device_name()))
}

/// The libraries, if the kernel provides the required interfaces.
pub(super) fn usable() -> Result<&'static Libraries, VerbsError> {
    let libraries = ffi::libraries()?;
    no_interface().map_or(Ok(libraries), Err)
}

/// The error for the first device node that is missing, of those that rdma-core opens.
fn no_interface() -> Option<VerbsError> {
    ["/dev/infiniband", "/dev/infiniband/rdma_cm"]
        .into_iter()
        .find(|path| !Path::new(path).exists())
        .map(VerbsError::NoKernelInterface)
}

fn describe(device: &ListedDevice<'_>) -> Device {
    Device {
        name: device.name(),
        transport: match device.transport_type() {
            IBV_TRANSPORT_IB => Transport::InfiniBand,
            IBV_TRANSPORT_IWARP => Transport::Iwarp,
            _ => Transport::Other,
        },
        node_type: match device.node_type() {
            1 => "CA",
            2 => "switch",
            3 => "router",
            4 => "RNIC",
            5 => "usNIC",
            6 => "usNIC UDP",
            _ => "unspecified",
        },
        details: device.open().and_then(|d| details(&d)).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => {
                "permission denied: this user may not open the device's node in /dev/infiniband".into()
            }
            _ => e.to_string(),
        }),
    }
}

fn details(device: &OpenDevice) -> io::Result<Details> {
    let attr = device.attributes()?;
    let gids = device.gids(MAX_GIDS)?;
    let ports =
        (1..=attr.orig_attr.phys_port_cnt).map(|n| port(device, n, &gids)).collect::<io::Result<_>>()?;
    Ok(Details {
        firmware: text(&attr.orig_attr.fw_ver),
        guid: u64::from_be_bytes(attr.orig_attr.node_guid),
        limits: Limits::from(&attr.orig_attr),
        features: Features::from(&attr),
        ports,
    })
}

/// Converts a count of rdma-core, which is signed.
fn count(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

impl From<&ibv_device_attr> for Limits {
    fn from(a: &ibv_device_attr) -> Self {
        Self {
            max_qp: count(a.max_qp),
            max_qp_wr: count(a.max_qp_wr),
            max_sge: count(a.max_sge),
            max_sge_rd: count(a.max_sge_rd),
            max_cq: count(a.max_cq),
            max_cqe: count(a.max_cqe),
            max_mr: count(a.max_mr),
            max_mr_size: a.max_mr_size,
            page_size_cap: a.page_size_cap,
            max_mw: count(a.max_mw),
            max_srq: count(a.max_srq),
            max_srq_wr: count(a.max_srq_wr),
            max_qp_rd_atom: count(a.max_qp_rd_atom),
            max_qp_init_rd_atom: count(a.max_qp_init_rd_atom),
            max_res_rd_atom: count(a.max_res_rd_atom),
        }
    }
}

impl From<&ibv_device_attr_ex> for Features {
    fn from(a: &ibv_device_attr_ex) -> Self {
        let flags = a.orig_attr.device_cap_flags;
        let odp = a.odp_caps.general_caps;
        Self {
            memory_windows: flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0
                && a.orig_attr.max_mw > 0,
            send_with_invalidate: flags & IBV_DEVICE_MEM_MGT_EXTENSIONS != 0,
            shared_receive_queue: a.orig_attr.max_srq > 0,
            on_demand_paging: odp & IBV_ODP_SUPPORT != 0,
            implicit_on_demand_paging: odp & IBV_ODP_SUPPORT_IMPLICIT != 0,
        }
    }
}

/// Size of an `ibv_mtu` in bytes; 0 if invalid.
const fn mtu_bytes(mtu: u32) -> u32 {
    match mtu {
        1..=5 => 128 << mtu,
        _ => 0,
    }
}

fn port(device: &OpenDevice, number: u8, gids: &[ibv_gid_entry]) -> io::Result<Port> {
    let attr = device.port(number)?;
    Ok(Port {
        number,
        state: match attr.state {
            1 => "DOWN",
            2 => "INIT",
            3 => "ARMED",
            4 => "ACTIVE",
            5 => "ACTIVE_DEFER",
            _ => "NOP",
        },
        link_layer: match attr.link_layer {
            1 => "InfiniBand",
            2 => "Ethernet",
            _ => "unspecified",
        },
        active_mtu: mtu_bytes(attr.active_mtu),
        max_mtu: mtu_bytes(attr.max_mtu),
        max_message: attr.max_msg_sz,
        gids: gids.iter().filter(|g| g.port_num == u32::from(number)).map(gid).collect(),
    })
}

fn gid(entry: &ibv_gid_entry) -> Gid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&entry.gid[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&entry.gid[1].to_ne_bytes());
    Gid {
        index: entry.gid_index,
        address: Ipv6Addr::from(bytes),
        kind: match entry.gid_type {
            0 => "IB",
            1 => "RoCE v1",
            _ => "RoCE v2",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtus_are_converted_to_bytes() {
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(mtu_bytes), [0, 256, 512, 1024, 2048, 4096, 0]);
    }

    #[test]
    fn a_gid_is_represented_as_an_ipv6_address() {
        let address: Ipv6Addr = "::ffff:10.99.0.1".parse().unwrap();
        let bytes = address.octets();
        let half = |i: usize| u64::from_ne_bytes(bytes[i..i + 8].try_into().unwrap());
        let entry = ibv_gid_entry {
            gid: [half(0), half(8)],
            gid_index: 1,
            port_num: 1,
            gid_type: 2,
            ndev_ifindex: 3,
        };
        assert_eq!(gid(&entry), Gid { index: 1, address, kind: "RoCE v2" });
    }

    /// Without devices the error names what is missing; with devices they are described.
    #[test]
    fn the_error_without_devices_names_what_is_missing() {
        match devices() {
            Ok(devices) => assert!(!devices.is_empty() && devices.iter().all(|d| !d.name.is_empty())),
            Err(why) => {
                let text = why.to_string();
                assert!(
                    text.contains("install") || text.contains("modprobe") || text.contains("rdma link"),
                    "{text}"
                );
            }
        }
    }
}
