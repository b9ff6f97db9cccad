//! The supposed causes.

use millrace_iscsi::negotiation::Settings;
use millrace_rdma_sim::Profile;
use millrace_simlab::{LockedWork, Machines, Storage};

use super::Cause;
use crate::Modification;

/// Bytes of a segment above which TCP is that of IPoIB-CM.
const CONNECTED: u32 = 10_000;

/// The largest window of TCP without window scaling (RFC 7323), and a segment of IPoIB-CM.
const WINDOW: u64 = 65_536;

const C2: &[&str] = &["READ at 1 thread, Read-Write over Read-Read"];
const C3: &[&str] = &[
    "client CPU at 8 threads, Read-Read over Read-Write",
    "client CPU of Read-Read, 8 threads over 1",
    "client CPU of Read-Write, 8 threads over 1",
];
const C4: &[&str] =
    &["share of server registration at 8 threads, %", "share of server deregistration at 8 threads, %"];
const C6: &[&str] = &["peak with records of 16 KiB, cache over zero-copy"];
const C7: &[&str] = &["READ with any number of threads, all-physical over FMR, least"];
const C10: &[&str] = &[
    "untar, time with linear lookup over hashed, RDMA, most",
    "PostMark, time with linear lookup over hashed, RDMA, most",
];
const C11: &[&str] = &["tile WRITE with 6 processes, RDMA over IPoIB"];
const C12: &[&str] = &["WRITE of 16 KiB at 16 threads, 8 RDMA Reads over 4"];
const C15_SHORT: &[&str] = &["WRITE at 0.2 mile, RDMA over IPoIB-UD, least"];
const C15_SEGMENTS: &[&str] =
    &["READ at 0.2 mile, IPoIB-CM over IPoIB-UD, least", "WRITE at 0.2 mile, IPoIB-CM over IPoIB-UD, least"];
const C15_FAR: &[&str] = &[
    "READ at 1400 miles, bytes from which RDMA is above IPoIB-CM",
    "READ at 1400 miles, bytes from which RDMA is above IPoIB-UD",
    "WRITE at 1400 miles, bytes from which RDMA is above IPoIB-CM",
    "WRITE at 1400 miles, bytes from which RDMA is above IPoIB-UD",
    "READ of 256 KiB at 1400 miles, RDMA over IPoIB-CM",
    "READ of 256 KiB at 1400 miles, RDMA over IPoIB-UD",
    "WRITE of 256 KiB at 1400 miles, RDMA over IPoIB-CM",
    "WRITE of 256 KiB at 1400 miles, RDMA over IPoIB-UD",
    "RDMA at 1400 miles, READ over WRITE, most",
    "IPoIB-CM at 1400 miles, READ over WRITE, most",
    "IPoIB-UD at 1400 miles, READ over WRITE, most",
    "READ of 512 KiB at 1400 miles, RDMA, MB/s",
];

const fn machines(
    claim: &'static str,
    rules: &'static [&'static str],
    cause: &'static str,
    experiment: &'static str,
    modify: fn(&mut Machines),
) -> Cause {
    Cause { claim, rules, cause, experiment, modification: Modification::Machines(modify) }
}

/// All causes, in the order of the claims.
pub const CAUSES: &[Cause] = &[
    machines(
        "C2",
        C2,
        "the work of tmpfs takes the same additional time with both designs",
        "tmpfs only copies, under the lock",
        without_work,
    ),
    machines("C2", C2, "the Read-Read client of the paper copied more than once", "two copies", |m| {
        m.profile.kernel.read_copies = 2
    }),
    machines(
        "C3",
        C3,
        "the lock of the server's kernel limits the rate, and with it the client's work",
        "no lock, and tmpfs only copies",
        without_lock,
    ),
    machines("C3", C3, "the Read-Read client of the paper copied more than once", "two copies", |m| {
        m.profile.kernel.read_copies = 2
    }),
    machines("C3", C3, "both", "no lock, tmpfs only copies, and two copies at the client", |m| {
        without_lock(m);
        m.profile.kernel.read_copies = 2;
    }),
    machines("C4", C4, "a deregistration waits for the lock", "deregistrations take no lock", |m| {
        m.profile.kernel.serial_deregistrations = false
    }),
    machines(
        "C4",
        C4,
        "threads share a connection, whose software registers one buffer at a time, so that only tmpfs makes a \
         registration wait",
        "a connection for each of 8 threads",
        |m| connections(m, 8),
    ),
    machines("C4", C4, "both", "deregistrations take no lock, and a connection for each of 8 threads", |m| {
        m.profile.kernel.serial_deregistrations = false;
        connections(m, 8);
    }),
    machines(
        "C6",
        C6,
        "the lock of the server's kernel limits the rate with and without the client's cache",
        "no lock, and tmpfs only copies",
        without_lock,
    ),
    machines(
        "C6",
        C6,
        "the client's registrations have no transaction of the adapter's table, since calibration sets it to 0",
        "transactions of 20 us, as with raw numbers only",
        |m| m.profile.registration.table_ns = 20_000,
    ),
    machines(
        "C7",
        C7,
        "pages need more packets on the bus, which is full",
        "packets of 4096 bytes instead of 2048",
        |m| m.profile.link.mtu_bytes = 4096,
    ),
    machines("C7", C7, "the bus limits both", "a bus and a link with twice the rate", |m| {
        m.profile.adapter.dma_mb_per_s *= 2.0;
        m.profile.link.mb_per_s *= 2.0;
    }),
    machines(
        "C7",
        C7,
        "each page is a work request, and an entry of the chunk list in the call and in the reply",
        "the memory of all-physical is one segment",
        |m| m.profile.adapter.segment_bytes = 0,
    ),
    machines("C10", C10, "the time of a lookup for each node is assumed, 70 ns", "140 ns", |m| node(m, 140)),
    machines("C10", C10, "the time of a lookup for each node is assumed, 70 ns", "20 ns", |m| node(m, 20)),
    machines(
        "C11",
        C11,
        "NFS over TCP takes more time for a segment than the figure of IOzone has",
        "twice the time for each segment",
        |m| {
            m.profile.tcp.send_segment_ns *= 2;
            m.profile.tcp.receive_segment_ns *= 2;
        },
    ),
    machines(
        "C11",
        C11,
        "registrations, whose costs are assumed, add time to each row",
        "registrations take no time",
        free_registrations,
    ),
    machines(
        "C12",
        C12,
        "registrations of the connection's software take longer than an RDMA Read",
        "registrations take no time",
        free_registrations,
    ),
    machines(
        "C12",
        C12,
        "the lock of the server's kernel limits the rate",
        "no lock, and tmpfs only copies",
        without_lock,
    ),
    machines("C12", C12, "both", "registrations take no time, no lock, and tmpfs only copies", |m| {
        free_registrations(m);
        without_lock(m);
    }),
    machines(
        "C12",
        C12,
        "both, and the latency of an RDMA Read",
        "the same, and 50 us more for each message",
        |m| {
            free_registrations(m);
            without_lock(m);
            m.profile.link.switch_ns += 50_000;
        },
    ),
    machines(
        "C15",
        C15_SHORT,
        "the latency of the RDMA Read of a short WRITE",
        "windows and the responder of an RDMA Read take no time",
        |m| {
            let r = &mut m.profile.registration;
            (r.bind_ns, r.bind_page_ns, r.unbind_ns) = (0, 0, 0);
            m.profile.adapter.read_response_ns = 0;
        },
    ),
    Cause {
        claim: "C15",
        rules: C15_SHORT,
        cause: "the data of a short WRITE over IPoIB is in the command, so that it needs one message fewer",
        experiment: "ImmediateData=No over IPoIB",
        modification: Modification::Session(|s: &mut Settings| s.immediate_data = false),
    },
    machines(
        "C15",
        C15_SEGMENTS,
        "a segment of IPoIB-CM has the same assumed cost at any length",
        "a segment of IPoIB-CM takes 2 us to send and 2.1 us to receive, the raw numbers of IPoIB-UD",
        datagram_segments,
    ),
    Cause {
        claim: "C15",
        rules: C15_FAR,
        cause: "an R2T for all but 8 KiB makes a WRITE over IPoIB take as many round trips as over RDMA",
        experiment: "InitialR2T=No: the first 64 KiB of a WRITE need no R2T",
        modification: Modification::Session(|s: &mut Settings| s.initial_r2t = false),
    },
    machines(
        "C15",
        C15_FAR,
        "the window of TCP limits a command over IPoIB",
        "a window of 65,536 bytes",
        |m| (m.profile.tcp.window_bytes, m.profile.tcp.initial_window_bytes) = (WINDOW, WINDOW),
    ),
    machines("C15", C15_FAR, "the link is longer than stated", "twice the distance", |m| {
        m.profile.link.ns_per_mile *= 2.0
    }),
];

fn locked(m: &mut Machines, work: Option<LockedWork>) {
    if let Storage::Tmpfs(tmpfs) = &mut m.storage {
        tmpfs.locked = work;
    }
}

fn without_work(m: &mut Machines) {
    locked(m, Some(LockedWork { byte_ps: 0.0, fresh_page_ns: 0.0, kept_bytes: 0 }));
}

fn without_lock(m: &mut Machines) {
    locked(m, None);
    (m.profile.kernel.serial_registrations, m.profile.kernel.serial_deregistrations) = (false, false);
}

fn connections(m: &mut Machines, count: usize) {
    m.options = m.options.clone().nconnect(count);
}

fn node(m: &mut Machines, ns: u64) {
    if let Storage::Tmpfs(tmpfs) = &mut m.storage {
        tmpfs.node_ns = ns;
    }
}

fn free_registrations(m: &mut Machines) {
    let r = &mut m.profile.registration;
    (r.register_ns, r.register_page_ns, r.deregister_ns, r.deregister_page_ns, r.table_ns) = (0, 0, 0, 0, 0);
}

fn datagram_segments(m: &mut Machines) {
    if m.profile.tcp.segment_bytes < CONNECTED {
        return;
    }
    let Ok(datagrams) = Profile::named("wan-infinihost") else { return };
    (m.profile.tcp.send_segment_ns, m.profile.tcp.receive_segment_ns) =
        (datagrams.tcp.send_segment_ns, datagrams.tcp.receive_segment_ns);
}
