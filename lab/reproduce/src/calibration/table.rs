//! The parameters, written before any calibrated experiment was run.

use super::{Figure, Parameter, Testbed};

const TCP: &str = "NFS over TCP: processor time of each end for a segment, beyond that of a bare stream";
const TABLE: &str = "registrations of a host, one at a time: the lock is held for the work of the processor and the \
                     transaction of the adapter's table";

/// All parameters, in the order in which they are calibrated. A figure of a testbed is reached with the
/// parameters above it.
pub const PARAMETERS: &[Parameter] = &[
    Parameter {
        testbed: Testbed::OpenSolaris,
        mechanism: "tmpfs: work for each byte beyond the copy, while the lock is held",
        name: "tmpfs.byte_ps",
        unit: "ps",
        range: (0.0, 1907.0),
        permitted: "at most both cores, all the time, at 730 MB/s, less the copy",
        point: Figure {
            value: 730.0,
            what: "MB/s, peak of READ of 128 KiB with the server's registration cache",
            source: "TR06 section 8",
        },
        alternative: Some(Figure {
            value: 515.0,
            what: "MB/s, peak of WRITE of 128 KiB with the server's registration cache",
            source: "TR06 section 8",
        }),
        rules: &[("C5", "peak of READ, cache over dynamic"), ("C5", "peak with the cache, WRITE over READ")],
    },
    Parameter {
        testbed: Testbed::OpenSolaris,
        mechanism: TABLE,
        name: "registration.table_ns",
        unit: "ns",
        range: (0.0, 187_000.0),
        permitted: "two transactions of a READ take at most all of its 374 us at 350 MB/s",
        point: Figure {
            value: 5.0,
            what: "% of the time of a READ of 128 KiB with 1 thread is server registration",
            source: "TR06 section 7",
        },
        alternative: Some(Figure {
            value: 16.0,
            what: "% of the time of a READ of 128 KiB with 8 threads is server registration",
            source: "TR06 section 7",
        }),
        rules: &[
            ("C4", "share of server registration at 1 thread, %"),
            ("C4", "share of server registration, 4 threads over 1"),
        ],
    },
    Parameter {
        testbed: Testbed::OpenSolaris,
        mechanism: "fresh pages of files, and of buffers that are allocated for one call, while the lock is held",
        name: "tmpfs.fresh_page_ns",
        unit: "ns",
        range: (0.0, 10_240.0),
        permitted: "32 pages of a READ take at most all of its 328 us at 400 MB/s",
        point: Figure {
            value: 400.0,
            what: "MB/s, peak of READ of 128 KiB, Read-Write, dynamic registration",
            source: "Designing 2007 section 5.1",
        },
        alternative: Some(Figure {
            value: 350.0,
            what: "MB/s, the same in another experiment",
            source: "Designing 2007 section 5.2",
        }),
        rules: &[("C2", "peak of READ, Read-Write over Read-Read"), ("C5", "peak of READ, FMR over dynamic")],
    },
    Parameter {
        testbed: Testbed::OpenSolaris,
        mechanism: TCP,
        name: "tcp.segment_ns",
        unit: "ns",
        range: (0.0, 11_067.0),
        permitted: "no rate of IPoIB on these hosts is stated: as for the Xeons of 3.6 GHz",
        point: Figure {
            value: 1.15,
            what: "times the rate of IPoIB, WRITE of 64 KiB over RDMA with 1 thread",
            source: "Beneficial 2006 section 3.1",
        },
        alternative: Some(Figure {
            value: 1.25,
            what: "times the time of RDMA, untar over IPoIB with hashed lookup",
            source: "Beneficial 2006 section 3.3",
        }),
        rules: &[],
    },
    Parameter {
        testbed: Testbed::LinuxOpterons,
        mechanism: TABLE,
        name: "registration.table_ns",
        unit: "ns",
        range: (0.0, 149_000.0),
        permitted: "two transactions of a READ take at most all of its 298 us at 440 MB/s",
        point: Figure {
            value: 440.0,
            what: "MB/s, peak of READ of 128 KiB with regular registration",
            source: "TR06 section 6",
        },
        alternative: Some(Figure {
            value: 240.0,
            what: "MB/s, peak of WRITE of 128 KiB with regular registration",
            source: "TR06 section 6",
        }),
        rules: &[("C7", "peak of READ, all-physical over dynamic")],
    },
    Parameter {
        testbed: Testbed::LinuxXeons,
        mechanism: "page cache: work of the server's cores for each byte",
        name: "page_cache.byte_ps",
        unit: "ps",
        range: (0.0, 2265.0),
        permitted: "at most both cores, all the time, at 883 MB/s",
        point: Figure {
            value: 883.0,
            what: "MB/s, peak of READ by several clients over RDMA, 4 GB of server memory",
            source: "Designing 2007 section 5.3",
        },
        alternative: Some(Figure {
            value: 900.0,
            what: "MB/s, READ by 7 clients over RDMA, 8 GB of server memory",
            source: "Designing 2007 section 5.3",
        }),
        rules: &[("C9", "4 GB: peak of RDMA over peak of IPoIB")],
    },
    Parameter {
        testbed: Testbed::LinuxXeons,
        mechanism: TCP,
        name: "tcp.segment_ns",
        unit: "ns",
        range: (0.0, 11_067.0),
        permitted: "at most both cores of the server, all the time, for segments of 1992 bytes at 360 MB/s",
        point: Figure {
            value: 360.0,
            what: "MB/s, peak of READ by several clients over IPoIB, 8 GB of server memory",
            source: "Designing 2007 section 5.3",
        },
        alternative: Some(Figure {
            value: 326.0,
            what: "MB/s, peak of READ by several clients over IPoIB, 4 GB of server memory",
            source: "Designing 2007 section 5.3",
        }),
        rules: &[
            ("C9", "8 GB: peak of RDMA over peak of IPoIB"),
            ("C9", "8 GB: peak of IPoIB over peak of GigE"),
        ],
    },
    Parameter {
        testbed: Testbed::Solaris,
        mechanism: TCP,
        name: "tcp.segment_ns",
        unit: "ns",
        range: (0.0, 48_267.0),
        permitted: "at most two cores, all the time, for segments of 1448 bytes at 60 MB/s",
        point: Figure {
            value: 60.0,
            what: "MB/s, peak of READ of 256 KiB over TCP",
            source: "Callaghan 2003, NFS/TCP Throughput",
        },
        alternative: None,
        rules: &[("C1", "peak of READ over read-ahead, RDMA over TCP")],
    },
    Parameter {
        testbed: Testbed::WanDatagram,
        mechanism: TCP,
        name: "tcp.segment_ns",
        unit: "ns",
        range: (0.0, 36_218.0),
        permitted: "at most four cores, all the time, for segments of 1992 bytes at 220 MB/s",
        point: Figure {
            value: 220.0,
            what: "MB/s, READ over IPoIB-UD at 0.2 mile",
            source: "WAN 2008 section 2.3",
        },
        alternative: Some(Figure {
            value: 220.0,
            what: "MB/s, WRITE over IPoIB-UD at 0.2 mile",
            source: "WAN 2008 section 2.3",
        }),
        rules: &[
            ("C12", "peak of WRITE of 32 KiB, ConnectX over InfiniHost III"),
            ("C13", "NFS READ at 0.2 mile, RDMA over IPoIB-UD"),
        ],
    },
    Parameter {
        testbed: Testbed::WanConnected,
        mechanism: TCP,
        name: "tcp.segment_ns",
        unit: "ns",
        range: (0.0, 467_600.0),
        permitted: "at most four cores, all the time, for segments of 65,468 bytes at 560 MB/s",
        point: Figure {
            value: 560.0,
            what: "MB/s, READ over IPoIB-CM at 0.2 mile, blocks of 32 KiB",
            source: "WAN 2008 section 2.3",
        },
        alternative: Some(Figure {
            value: 818.0,
            what: "MB/s, the same with blocks of 1 MiB",
            source: "WAN 2008 section 2.3",
        }),
        rules: &[("C14", "READ, blocks of 1 MiB over blocks of 32 KiB")],
    },
];
