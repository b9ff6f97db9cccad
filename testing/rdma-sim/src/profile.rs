//! Profiles: the parameters of simulated links, adapters and hosts.

use std::time::Duration;

use serde::Deserialize;

/// Why a profile is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// There is no profile with this name.
    #[error("unknown profile {name:?}; known profiles: {}", known.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// Names of all profiles.
        known: Vec<&'static str>,
    },
    /// A field is missing, has a wrong type, or is unknown.
    #[error("invalid profile: {0}")]
    Text(String),
    /// A value has no source.
    #[error(
        "invalid profile: line {line}: {field} has no source; name it in a comment, as in \"{field} = 1 # assumed\""
    )]
    NoSource {
        /// Name of the field.
        field: String,
        /// Line in the profile, from 1.
        line: usize,
    },
    /// A value is out of range.
    #[error("profile field {field}{} is {value}: it must be between {least} and {most}", on_line(*line))]
    OutOfRange {
        /// Line in the profile, from 1, or `None` if the value is not from a text.
        line: Option<usize>,
        /// Table and name of the field.
        field: &'static str,
        /// The value.
        value: String,
        /// Minimum.
        least: f64,
        /// Maximum.
        most: f64,
    },
}

/// Machines and the network between them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name.
    pub name: String,
    /// Description of the modelled machine, in one sentence.
    pub about: String,
    /// Links.
    pub link: Link,
    /// RDMA adapters.
    pub adapter: Adapter,
    /// Cost of memory registration.
    pub registration: Registration,
    /// Hosts.
    pub host: HostModel,
    /// TCP of the hosts.
    pub tcp: TcpModel,
    /// Work of the kernel that raw numbers do not define.
    #[serde(default)]
    pub kernel: Kernel,
}

/// Work of a host's kernel that raw measurements do not show; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kernel {
    /// Whether the host's registrations and bindings are executed one at a time, under the lock of
    /// [`World::locked`](crate::World::locked). Each holds it for its processor time and its transaction of the
    /// adapter's table.
    pub serial_registrations: bool,
    /// Whether deregistrations and invalidations are executed one at a time, under the same lock.
    pub serial_deregistrations: bool,
    /// Number of copies of each byte that an RDMA Read of the connecting end has fetched, before its owner receives the
    /// completion.
    pub read_copies: u32,
}

/// The path between two hosts.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Data rate of each direction, in 10^6 bytes per second, after line coding.
    pub mb_per_s: f64,
    /// Maximum payload of a packet in bytes.
    pub mtu_bytes: u32,
    /// Header bytes of each packet.
    pub header_bytes: u32,
    /// Cable length between two hosts, in miles.
    pub miles: f64,
    /// Delay per mile in nanoseconds: 7881 in fibre (group index 1.468), more if the cable makes detours.
    pub ns_per_mile: f64,
    /// Total delay of the switches between two hosts, in nanoseconds.
    pub switch_ns: u64,
}

/// An RDMA adapter.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Maximum payload rate between memory and link, each direction, in 10^6 bytes per second (bus).
    pub dma_mb_per_s: f64,
    /// Time for which a work request occupies the adapter, in nanoseconds: the inverse of the message rate.
    pub work_request_ns: u64,
    /// Delay from there to the wire, in nanoseconds, during which the adapter processes other work requests.
    pub transmit_ns: u64,
    /// Delay from the wire to memory, in nanoseconds.
    pub receive_ns: u64,
    /// Maximum number of RDMA Reads of a connection, served at a time (IRD) and in flight (ORD).
    pub outstanding_reads: u16,
    /// Delay before the responder of an RDMA Read sends, in nanoseconds; it starts the next Read of the
    /// connection after it has sent the response to the previous one.
    pub read_response_ns: u64,
    /// Maximum number of unacknowledged work requests of a connection.
    pub send_queue: u32,
    /// Maximum number of receives of a connection in the adapter. Software replaces a used receive after it
    /// has seen its completion; until then further messages wait.
    pub receive_queue: u32,
    /// Maximum segment size of exposed memory in bytes, for requesters that register page by page: 4096. The
    /// segments are then not adjacent for the peer, as physical pages are not consecutive. 0: one segment per
    /// region.
    pub segment_bytes: u32,
}

/// The cost of registrations: processor time of the host, and transactions of the adapter's translation
/// table, which are executed one after the other.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Page size in bytes.
    pub page_bytes: u32,
    /// Processor time of a registration, in nanoseconds.
    pub register_ns: u64,
    /// Additional processor time for each page (pinning), in nanoseconds.
    pub register_page_ns: u64,
    /// Processor time of a deregistration, in nanoseconds.
    pub deregister_ns: u64,
    /// Additional processor time for each page, in nanoseconds.
    pub deregister_page_ns: u64,
    /// Duration of a translation table transaction in nanoseconds; registration and deregistration need one
    /// each.
    pub table_ns: u64,
    /// Processor time to bind a previously allocated window (FMR, memory window), in nanoseconds.
    pub bind_ns: u64,
    /// Additional processor time for each page, in nanoseconds.
    pub bind_page_ns: u64,
    /// Processor time to invalidate a window, in nanoseconds.
    pub unbind_ns: u64,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostModel {
    /// Number of cores.
    pub cores: u32,
    /// Processor time to post a work request, in nanoseconds.
    pub post_ns: u64,
    /// Processor time to process a completion, in nanoseconds.
    pub completion_ns: u64,
    /// Processor time of the interrupt before the first of a series of completions, in nanoseconds.
    pub interrupt_ns: u64,
    /// Processor time for each received message, in nanoseconds: RPC, XDR, execution of the call.
    pub message_ns: u64,
    /// Copy rate of a core, in 10^6 bytes per second.
    pub copy_mb_per_s: f64,
    /// Memory bandwidth, reads and writes together, in 10^6 bytes per second. It is shared by copying cores
    /// (each byte is read and written) and the adapter.
    pub memory_mb_per_s: f64,
}

/// TCP on the same link and adapter. (The costs of interrupts and copies are those of the host.)
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpModel {
    /// Maximum payload of a segment that the software processes, in bytes: the MSS, or more with segmentation
    /// and receive offload.
    pub segment_bytes: u32,
    /// Maximum payload of a packet on the wire, in bytes.
    pub packet_bytes: u32,
    /// Header bytes of each packet: TCP, IP, and lower layers.
    pub header_bytes: u32,
    /// Maximum number of bytes in each direction of a connection that are written and not acknowledged as
    /// read.
    pub window_bytes: u64,
    /// Initial value of the same limit, from which slow start begins.
    pub initial_window_bytes: u64,
    /// Processor time of a read or write call, in nanoseconds.
    pub call_ns: u64,
    /// Processor time for each sent segment including its acknowledgement, in nanoseconds.
    pub send_segment_ns: u64,
    /// Processor time for each received segment including its acknowledgement, in nanoseconds.
    pub receive_segment_ns: u64,
    /// Number of copies of each byte on the sending side.
    pub send_copies: u32,
    /// Number of copies of each byte on the receiving side.
    pub receive_copies: u32,
    /// Rate at which a core computes checksums, on each side, in 10^6 bytes per second; 0: the adapter
    /// computes them.
    pub checksum_mb_per_s: f64,
    /// Delay of an interrupt to coalesce segments, in nanoseconds. The next interrupt follows only after all
    /// received segments have been processed.
    pub coalesce_ns: u64,
    /// Number of receive queues, each processed by one core at a time; each connection uses one of them.
    pub receive_queues: u32,
}

const PROFILES: [(&str, &str); 12] = [
    ("sdr-opensolaris", include_str!("profiles/sdr-opensolaris.toml")),
    ("ddr-linux-allphys", include_str!("profiles/ddr-linux-allphys.toml")),
    ("gige-2003", include_str!("profiles/gige-2003.toml")),
    ("ipoib-ud", include_str!("profiles/ipoib-ud.toml")),
    ("ipoib-cm", include_str!("profiles/ipoib-cm.toml")),
    ("wan-infinihost", include_str!("profiles/wan-infinihost.toml")),
    ("wan-connectx", include_str!("profiles/wan-connectx.toml")),
    ("wan-100g", include_str!("profiles/wan-100g.toml")),
    ("hdr-200g", include_str!("profiles/hdr-200g.toml")),
    ("ndr-400g", include_str!("profiles/ndr-400g.toml")),
    ("cx5-100g", include_str!("profiles/cx5-100g.toml")),
    ("cx7-400g", include_str!("profiles/cx7-400g.toml")),
];

/// The place of a value in an error.
fn on_line(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(" (line {line})"))
}

/// A field of a profile with a number or a Boolean value.
struct Field {
    /// Table and name: "link.miles".
    name: String,
    /// Number of the line, from 1.
    line: usize,
    /// Whether a comment follows the value.
    has_source: bool,
}

/// The fields of a valid profile that need a source.
fn fields(text: &str) -> impl Iterator<Item = Field> {
    let mut table = String::new();
    text.lines().zip(1..).filter_map(move |(content, line)| {
        if let Some(name) = content.trim().strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            name.clone_into(&mut table);
        }
        let (key, value) = content.split_once('=').filter(|(key, _)| !key.contains('#'))?;
        let (value, source) = value.split_once('#').unwrap_or((value, ""));
        let name = if table.is_empty() { key.trim().to_owned() } else { format!("{table}.{}", key.trim()) };
        let text = value.trim().starts_with(['"', '\'']);
        (!text).then(|| Field { name, line, has_source: !source.trim().is_empty() })
    })
}

impl Profile {
    /// Names of the built-in profiles.
    pub fn names() -> Vec<&'static str> {
        PROFILES.iter().map(|(name, _)| *name).collect()
    }

    /// Returns a built-in profile.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`].
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let found = PROFILES.iter().find(|(n, _)| *n == name);
        let unknown = || ProfileError::Unknown { name: name.to_owned(), known: Self::names() };
        Self::parse(found.ok_or_else(unknown)?.1)
    }

    /// Parses a profile in TOML. A comment beside each number and Boolean value states its source.
    ///
    /// # Errors
    /// A field is missing or unknown, or has a value out of range or without a source; the error names it and its
    /// line.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let profile: Self = toml::from_str(text).map_err(|e| ProfileError::Text(e.to_string()))?;
        profile.check().map_err(|e| match e {
            ProfileError::OutOfRange { field, value, least, most, .. } => {
                let line = fields(text).find(|f| f.name == field).map(|f| f.line);
                ProfileError::OutOfRange { line, field, value, least, most }
            }
            other => other,
        })?;
        match fields(text).find(|f| !f.has_source) {
            Some(f) => Err(ProfileError::NoSource { field: f.name, line: f.line }),
            None => Ok(profile),
        }
    }

    /// Validates all values.
    ///
    /// # Errors
    /// [`ProfileError`] for the first value out of range.
    pub fn check(&self) -> Result<(), ProfileError> {
        let Self { link, adapter, registration, host, tcp, kernel, .. } = self;
        /// A second in nanoseconds: the maximum of every single delay.
        const SECOND: f64 = 1e9;
        let ns = |n: u64| n as f64;
        let fields = [
            ("link.mb_per_s", link.mb_per_s, 0.001, 1e6),
            ("link.mtu_bytes", link.mtu_bytes.into(), 64.0, 1e6),
            ("link.header_bytes", link.header_bytes.into(), 0.0, 1000.0),
            ("link.miles", link.miles, 0.0, 25_000.0),
            ("link.ns_per_mile", link.ns_per_mile, 1000.0, 100_000.0),
            ("link.switch_ns", ns(link.switch_ns), 0.0, SECOND),
            ("adapter.dma_mb_per_s", adapter.dma_mb_per_s, 0.001, 1e6),
            ("adapter.work_request_ns", ns(adapter.work_request_ns), 0.0, SECOND),
            ("adapter.transmit_ns", ns(adapter.transmit_ns), 0.0, SECOND),
            ("adapter.receive_ns", ns(adapter.receive_ns), 0.0, SECOND),
            ("adapter.outstanding_reads", adapter.outstanding_reads.into(), 1.0, 1024.0),
            ("adapter.read_response_ns", ns(adapter.read_response_ns), 0.0, SECOND),
            ("adapter.send_queue", adapter.send_queue.into(), 1.0, 1e6),
            ("adapter.receive_queue", adapter.receive_queue.into(), 1.0, 1e6),
            ("adapter.segment_bytes", adapter.segment_bytes.into(), 0.0, f64::from(u32::MAX)),
            ("registration.page_bytes", registration.page_bytes.into(), 512.0, 1e9),
            ("registration.register_ns", ns(registration.register_ns), 0.0, SECOND),
            ("registration.register_page_ns", ns(registration.register_page_ns), 0.0, SECOND),
            ("registration.deregister_ns", ns(registration.deregister_ns), 0.0, SECOND),
            ("registration.deregister_page_ns", ns(registration.deregister_page_ns), 0.0, SECOND),
            ("registration.table_ns", ns(registration.table_ns), 0.0, SECOND),
            ("registration.bind_ns", ns(registration.bind_ns), 0.0, SECOND),
            ("registration.bind_page_ns", ns(registration.bind_page_ns), 0.0, SECOND),
            ("registration.unbind_ns", ns(registration.unbind_ns), 0.0, SECOND),
            ("host.cores", host.cores.into(), 1.0, 4096.0),
            ("host.post_ns", ns(host.post_ns), 0.0, SECOND),
            ("host.completion_ns", ns(host.completion_ns), 0.0, SECOND),
            ("host.interrupt_ns", ns(host.interrupt_ns), 0.0, SECOND),
            ("host.message_ns", ns(host.message_ns), 0.0, SECOND),
            ("host.copy_mb_per_s", host.copy_mb_per_s, 0.001, 1e6),
            ("host.memory_mb_per_s", host.memory_mb_per_s, 0.001, 1e7),
            ("tcp.segment_bytes", tcp.segment_bytes.into(), 64.0, 1e6),
            ("tcp.packet_bytes", tcp.packet_bytes.into(), 64.0, tcp.segment_bytes.into()),
            ("tcp.header_bytes", tcp.header_bytes.into(), 0.0, 1000.0),
            // A window smaller than a segment would never open.
            ("tcp.window_bytes", tcp.window_bytes as f64, tcp.segment_bytes.into(), 1e12),
            (
                "tcp.initial_window_bytes",
                tcp.initial_window_bytes as f64,
                tcp.segment_bytes.into(),
                tcp.window_bytes as f64,
            ),
            ("tcp.call_ns", ns(tcp.call_ns), 0.0, SECOND),
            ("tcp.send_segment_ns", ns(tcp.send_segment_ns), 0.0, SECOND),
            ("tcp.receive_segment_ns", ns(tcp.receive_segment_ns), 0.0, SECOND),
            ("tcp.send_copies", tcp.send_copies.into(), 0.0, 10.0),
            ("tcp.receive_copies", tcp.receive_copies.into(), 0.0, 10.0),
            ("tcp.checksum_mb_per_s", tcp.checksum_mb_per_s, 0.0, 1e6),
            ("tcp.coalesce_ns", ns(tcp.coalesce_ns), 0.0, SECOND),
            ("tcp.receive_queues", tcp.receive_queues.into(), 1.0, 4096.0),
            ("kernel.read_copies", kernel.read_copies.into(), 0.0, 10.0),
        ];
        for (field, value, least, most) in fields {
            // In this form, the condition also rejects NaN.
            if !(least..=most).contains(&value) {
                let value = value.to_string();
                return Err(ProfileError::OutOfRange { line: None, field, value, least, most });
            }
        }
        Ok(())
    }

    /// The same profile with a different cable length between two hosts.
    ///
    /// # Errors
    /// The length is out of range (0 to 25,000 miles).
    pub fn at_distance(mut self, miles: f64) -> Result<Self, ProfileError> {
        self.link.miles = miles;
        self.check()?;
        Ok(self)
    }

    /// Propagation delay from one host to another.
    pub fn one_way(&self) -> Duration {
        Duration::from_nanos((self.link.miles * self.link.ns_per_mile).round() as u64 + self.link.switch_ns)
    }

    /// Size of a message on the wire in bytes, including the headers of its packets. A message without
    /// payload is one packet.
    pub fn wire_bytes(&self, payload: u64) -> u64 {
        payload + payload.div_ceil(self.link.mtu_bytes.into()).max(1) * u64::from(self.link.header_bytes)
    }

    /// Time in picoseconds for which a part of a message occupies a port.
    pub(super) fn port_ps(&self, payload: u64) -> u64 {
        self.occupied_ps(self.wire_bytes(payload), payload)
    }

    /// Number of packets of a TCP segment.
    pub(super) fn segment_packets(&self, payload: u64) -> u64 {
        payload.div_ceil(self.tcp.packet_bytes.into()).max(1)
    }

    /// Time in picoseconds for which a TCP segment occupies a port.
    pub(super) fn segment_ps(&self, payload: u64) -> u64 {
        self.occupied_ps(self.segment_wire_bytes(payload), payload)
    }

    /// Size of a TCP segment on the wire in bytes, including the headers of its packets.
    pub(super) fn segment_wire_bytes(&self, payload: u64) -> u64 {
        payload + self.segment_packets(payload) * u64::from(self.tcp.header_bytes)
    }

    /// Processor time to compute the checksum of a TCP segment, in nanoseconds.
    pub(super) fn checksum_ns(&self, bytes: u64) -> u64 {
        match self.tcp.checksum_mb_per_s {
            0.0 => 0,
            rate => (bytes as f64 * 1e3 / rate).round() as u64,
        }
    }

    /// Link and bus work concurrently, so the slower one determines the time.
    fn occupied_ps(&self, wire_bytes: u64, payload: u64) -> u64 {
        let wire = wire_bytes as f64 * 1e6 / self.link.mb_per_s;
        let bus = payload as f64 * 1e6 / self.adapter.dma_mb_per_s;
        wire.max(bus).round() as u64
    }

    /// Processor time to copy, in nanoseconds.
    pub(super) fn copy_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 * 1e3 / self.host.copy_mb_per_s).round() as u64
    }

    /// Time in picoseconds to read or write `bytes` bytes of memory.
    pub(super) fn memory_ps(&self, bytes: u64) -> u64 {
        (bytes as f64 * 1e6 / self.host.memory_mb_per_s).round() as u64
    }

    /// Number of pages of memory of this length that begins at a page boundary.
    pub(super) fn pages(&self, bytes: usize) -> u64 {
        (bytes as u64).div_ceil(self.registration.page_bytes.into()).max(1)
    }
}
