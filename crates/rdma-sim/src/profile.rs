//! What is simulated: links, adapters, hosts, as data.

use std::time::Duration;

use serde::Deserialize;

/// Why a profile cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// There is none of that name.
    #[error("there is no profile {name:?}; there are: {}", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// Those that there are.
        known: Vec<&'static str>,
    },
    /// A field is missing, of the wrong kind, or not one that there is.
    #[error("the profile cannot be read: {0}")]
    Text(String),
    /// A value that no machine has.
    #[error("profile field {field} is {value}: it must be between {least} and {most}")]
    Absurd {
        /// The field, with its table.
        field: &'static str,
        /// What it is.
        value: String,
        /// The least that is taken.
        least: f64,
        /// The most that is taken.
        most: f64,
    },
}

/// Machines and the network between them. All hosts of a simulated world are alike.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What it imitates, in a sentence.
    pub about: String,
    /// The wires.
    pub link: Link,
    /// The adapters.
    pub adapter: Adapter,
    /// What it costs to let an adapter use memory.
    pub registration: Registration,
    /// The hosts.
    pub host: HostModel,
    /// Their TCP.
    pub tcp: TcpModel,
}

/// The way from one host to another.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Data rate, each direction, in 10^6 bytes per second: what is left of the signalling rate after line coding.
    pub mb_per_s: f64,
    /// Payload bytes of the largest packet.
    pub mtu_bytes: u32,
    /// Bytes that each packet has besides its payload.
    pub header_bytes: u32,
    /// Cable between two hosts, in miles.
    pub miles: f64,
    /// Nanoseconds that a mile takes: 7881 in fibre (group index 1.468), more where the cable makes detours.
    pub ns_per_mile: f64,
    /// Nanoseconds that switches between two hosts add, together.
    pub switch_ns: u64,
}

/// An RDMA adapter.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// The most payload that it moves between memory and the link, each direction, in 10^6 bytes per second (bus).
    pub dma_mb_per_s: f64,
    /// Nanoseconds for which a work request occupies it: the inverse of its message rate.
    pub work_request_ns: u64,
    /// Nanoseconds from there to the wire, during which it takes up others.
    pub transmit_ns: u64,
    /// Nanoseconds from the wire to memory.
    pub receive_ns: u64,
    /// RDMA Reads that it serves at once on a connection (IRD), and has in flight (ORD).
    pub outstanding_reads: u16,
    /// Nanoseconds that the responder of an RDMA Read needs before it sends; it begins the next one of the same
    /// connection when it has sent the last.
    pub read_response_ns: u64,
    /// Work requests of one connection that are not acknowledged yet.
    pub send_queue: u32,
    /// Receives of one connection that it holds. Software puts another in the place of one that was used when it has
    /// seen the completion; what comes until then waits.
    pub receive_queue: u32,
    /// The most bytes of one segment of exposed memory, for clients that name memory page by page: 4096. No two are
    /// neighbours for the peer then, as pages lie anywhere in memory. 0: a segment is as long as its region.
    pub segment_bytes: u32,
}

/// The cost of registrations: processor time of the host, and transactions of the adapter's translation table, which
/// it does one after another.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Nanoseconds of processor time for a registration.
    pub register_ns: u64,
    /// And for each page of it (pinning).
    pub register_page_ns: u64,
    /// Nanoseconds of processor time for a deregistration.
    pub deregister_ns: u64,
    /// And for each page of it.
    pub deregister_page_ns: u64,
    /// Nanoseconds of one transaction that changes the translation table: one for a registration, one for its end.
    pub table_ns: u64,
    /// Nanoseconds of processor time to bind a window that was allocated before (FMR, memory window).
    pub bind_ns: u64,
    /// And for each page of it.
    pub bind_page_ns: u64,
    /// Nanoseconds of processor time to invalidate one.
    pub unbind_ns: u64,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostModel {
    /// Cores.
    pub cores: u32,
    /// Nanoseconds of processor time to post a work request.
    pub post_ns: u64,
    /// Nanoseconds of processor time to take a completion.
    pub completion_ns: u64,
    /// Nanoseconds of processor time for the interrupt that comes before the first of a series of completions.
    pub interrupt_ns: u64,
    /// Nanoseconds of processor time for each message received: RPC, XDR, the call itself.
    pub message_ns: u64,
    /// Rate at which a core copies, in 10^6 bytes per second.
    pub copy_mb_per_s: f64,
    /// Rate at which memory is read or written, all together, in 10^6 bytes per second: cores that copy (each byte is
    /// read and written) and the adapter share it.
    pub memory_mb_per_s: f64,
}

/// TCP on the same link and adapter. (What an interrupt costs, and a copied byte, the host says.)
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpModel {
    /// Payload bytes of the largest segment that software handles: the MSS, or more where the adapter cuts segments
    /// and puts them together.
    pub segment_bytes: u32,
    /// Payload bytes of the largest packet on the wire.
    pub packet_bytes: u32,
    /// Bytes that each packet has besides its payload: TCP, IP, and all below.
    pub header_bytes: u32,
    /// The most bytes of a connection, each direction, that are written and not known to be read.
    pub window_bytes: u64,
    /// The most that are sent at first and not known to be read: slow start begins there.
    pub initial_window_bytes: u64,
    /// Nanoseconds of processor time for a call that reads or writes.
    pub call_ns: u64,
    /// Nanoseconds of processor time for each segment sent, its acknowledgement included.
    pub send_segment_ns: u64,
    /// Nanoseconds of processor time for each segment received, its acknowledgement included.
    pub receive_segment_ns: u64,
    /// How often a byte is copied on its way out.
    pub send_copies: u32,
    /// And on its way in.
    pub receive_copies: u32,
    /// Rate at which a core sums a segment, at each end, in 10^6 bytes per second; 0: the adapter does it.
    pub checksum_mb_per_s: f64,
    /// Nanoseconds for which the adapter waits for more before it interrupts. There is no other interrupt before all
    /// that has come is taken.
    pub coalesce_ns: u64,
    /// Queues of what has come, each emptied by one core at a time; a connection has one of them.
    pub receive_queues: u32,
}

const PROFILES: [(&str, &str); 10] = [
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
];

impl Profile {
    /// The names of those that come with the program.
    pub fn names() -> Vec<&'static str> {
        PROFILES.iter().map(|(name, _)| *name).collect()
    }

    /// One that comes with the program.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let found = PROFILES.iter().find(|(n, _)| *n == name);
        let unknown = || ProfileError::Unknown { name: name.to_owned(), known: Self::names() };
        Self::parse(found.ok_or_else(unknown)?.1)
    }

    /// Reads one.
    ///
    /// # Errors
    /// When a field is missing or unknown, or has a value that no machine has: it is named.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let profile: Self = toml::from_str(text).map_err(|e| ProfileError::Text(e.to_string()))?;
        profile.check()?;
        Ok(profile)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first one that no machine has.
    pub fn check(&self) -> Result<(), ProfileError> {
        let Self { link, adapter, registration, host, tcp, .. } = self;
        /// A second in nanoseconds: more than any single step takes.
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
            // A window that has no room for a segment would never open.
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
        ];
        for (field, value, least, most) in fields {
            // Written so that what is not a number is refused too.
            if !(least..=most).contains(&value) {
                return Err(ProfileError::Absurd { field, value: value.to_string(), least, most });
            }
        }
        Ok(())
    }

    /// The same machines with this much cable between two of them.
    ///
    /// # Errors
    /// More than there is on Earth, or less than none.
    pub fn at_distance(mut self, miles: f64) -> Result<Self, ProfileError> {
        self.link.miles = miles;
        self.check()?;
        Ok(self)
    }

    /// How long a bit travels from one host to another.
    pub fn one_way(&self) -> Duration {
        Duration::from_nanos((self.link.miles * self.link.ns_per_mile).round() as u64 + self.link.switch_ns)
    }

    /// Bytes on the wire of a message, headers of all its packets included. One without payload is a packet too.
    pub fn wire_bytes(&self, payload: u64) -> u64 {
        payload + payload.div_ceil(self.link.mtu_bytes.into()).max(1) * u64::from(self.link.header_bytes)
    }

    /// Picoseconds for which a part of a message occupies a port.
    pub(super) fn port_ps(&self, payload: u64) -> u64 {
        self.occupied_ps(self.wire_bytes(payload), payload)
    }

    /// Packets of a TCP segment.
    pub(super) fn segment_packets(&self, payload: u64) -> u64 {
        payload.div_ceil(self.tcp.packet_bytes.into()).max(1)
    }

    /// Picoseconds for which a TCP segment occupies a port.
    pub(super) fn segment_ps(&self, payload: u64) -> u64 {
        let headers = self.segment_packets(payload) * u64::from(self.tcp.header_bytes);
        self.occupied_ps(payload + headers, payload)
    }

    /// Nanoseconds of processor time to sum a TCP segment.
    pub(super) fn checksum_ns(&self, bytes: u64) -> u64 {
        match self.tcp.checksum_mb_per_s {
            0.0 => 0,
            rate => (bytes as f64 * 1e3 / rate).round() as u64,
        }
    }

    /// Link and bus work at the same time, and the slower one counts.
    fn occupied_ps(&self, wire_bytes: u64, payload: u64) -> u64 {
        let wire = wire_bytes as f64 * 1e6 / self.link.mb_per_s;
        let bus = payload as f64 * 1e6 / self.adapter.dma_mb_per_s;
        wire.max(bus).round() as u64
    }

    /// Nanoseconds of processor time to copy.
    pub(super) fn copy_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 * 1e3 / self.host.copy_mb_per_s).round() as u64
    }

    /// Picoseconds for which so much is read from memory, or written.
    pub(super) fn memory_ps(&self, bytes: u64) -> u64 {
        (bytes as f64 * 1e6 / self.host.memory_mb_per_s).round() as u64
    }

    /// Pages that memory of this length touches if it begins at a page.
    pub(super) fn pages(&self, bytes: usize) -> u64 {
        (bytes as u64).div_ceil(self.registration.page_bytes.into()).max(1)
    }
}
