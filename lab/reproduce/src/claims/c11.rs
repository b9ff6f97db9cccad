//! Parallel programs: BTIO and MPI Tile I/O.

use millrace_bench::BenchError;
use millrace_client::Proto;
use millrace_plot::Scale;
use millrace_read_read::Design;
use millrace_simlab::simulate;
use millrace_workloads::{Btio, Class, Tile};

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{kind, machines, value},
    rule::{Band, Measure, Rule},
};

const BTIO_RDMA: &str = "BTIO write, RDMA";
const BTIO_IPOIB: &str = "BTIO write, IPoIB";
const READ_RDMA: &str = "tile read, RDMA";
const READ_IPOIB: &str = "tile read, IPoIB";
const WRITE_RDMA: &str = "tile write, RDMA";
const WRITE_IPOIB: &str = "tile write, IPoIB";

pub(super) const CLAIM: Claim = Claim {
    id: "C11",
    claim: "Parallel programs gain from RDMA over IPoIB: BTIO up to 40 %, tiles 75 % for READ and 126 % for WRITE",
    source: "Beneficial 2006 section 4, figures 8 and 9",
    figures: "BTIO (4 processes on 2 nodes): up to 40 % better; MPI Tile I/O with 6 processes on 3 nodes: READ +75 %, \
              WRITE +126 %",
    profiles: &["sdr-opensolaris"],
    testbeds: &[Testbed::OpenSolaris],
    conditions: "The Read-Read design; BTIO class A with 4 processes on 2 hosts, 8 time steps instead of \
                 200, by interval of the dumps; 2, 4 and 6 tiles of 1024 x 768 elements of 32 bytes on 1, 2 \
                 and 3 hosts; 40 % less time is 1.67 times the rate, 40 % more rate is 1.4: the text does \
                 not state which is meant",
    rules: &[
        Rule {
            what: "BTIO, rate of RDMA over IPoIB, most",
            measure: Measure::MostOver(BTIO_RDMA, BTIO_IPOIB),
            paper: "up to 1.4, or 1.67",
            band: Band::spanning(1.4, 1.67),
        },
        Rule {
            what: "tile READ with 6 processes, RDMA over IPoIB",
            measure: Measure::Ratio((READ_RDMA, 6.0), (READ_IPOIB, 6.0)),
            paper: "1.75",
            band: Band::around(1.75),
        },
        Rule {
            what: "tile WRITE with 6 processes, RDMA over IPoIB",
            measure: Measure::Ratio((WRITE_RDMA, 6.0), (WRITE_IPOIB, 6.0)),
            paper: "2.26",
            band: Band::around(2.26),
        },
    ],
    pictures: &[
        Picture {
            name: "btio",
            title: "BTIO: MB/s of writing by interval of the dumps (Beneficial 2006, figure 8)",
            x: ("time steps between dumps", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[BTIO_IPOIB, BTIO_RDMA],
            right: None,
            paper: &[],
        },
        Picture {
            name: "tile",
            title: "MPI Tile I/O: MB/s by processes (Beneficial 2006, figure 9)",
            x: ("processes, two on each host", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[READ_IPOIB, READ_RDMA, WRITE_IPOIB, WRITE_RDMA],
            right: None,
            paper: &[],
        },
    ],
    experiment: run,
    model_gaps: "The TCP of the profile is that of Linux on faster machines (assumed). It does not contain \
                 the socket layer of OpenSolaris, whose CPU time causes the difference according to the \
                 paper. RDMA is slow for rows of 32 KiB one at a time, since each is registered at both ends \
                 and Read-Read needs an additional message.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (proto, btio, read, write) in
        [(Proto::Rdma, BTIO_RDMA, READ_RDMA, WRITE_RDMA), (Proto::Tcp, BTIO_IPOIB, READ_IPOIB, WRITE_IPOIB)]
    {
        let mut machines = machines("sdr-opensolaris", setting)?;
        (machines.options.rdma_protocol, machines.options.proto) = (Design::ReadRead.protocol(), Some(proto));
        if let Some(modification) = setting.modification {
            modification.machines(&mut machines);
        }
        for interval in [1, 2] {
            machines.client_hosts = 2;
            let figures = simulate(&dumps(interval, setting), &machines)?;
            curves.put(btio, interval.into(), value(kind(&figures, "write")?.mb_per_s)?);
        }
        for (columns, rows) in [(2, 1), (2, 2), (3, 2)] {
            let processes = columns * rows;
            machines.client_hosts = processes as usize / 2;
            let figures = simulate(&tiles(columns, rows, setting), &machines)?;
            curves.put(write, processes.into(), value(kind(&figures, "tile write")?.mb_per_s)?);
            curves.put(read, processes.into(), value(kind(&figures, "tile read")?.mb_per_s)?);
        }
    }
    Ok(curves)
}

fn dumps(interval: u32, setting: Setting) -> Btio {
    let class = if setting.small { Class::S } else { Class::A };
    Btio { class, processes: 4, steps: 8, interval }
}

fn tiles(columns: u32, rows: u32, setting: Setting) -> Tile {
    let height = if setting.small { 24 } else { 768 };
    Tile { columns, rows, width: 1024, height, element: 32 }
}
