//! Table of the figures of a workload.

use millrace_program::{
    table::{Align, Table},
    units::{ByteSize, grouped, short},
};

use crate::Figure;

/// A table with a line for each kind of operation.
pub fn table(figures: &[Figure]) -> Table {
    let accelerators = figures.iter().any(|f| f.accelerator_percent.is_some());
    let mut columns = vec![
        ("operation", Align::Left),
        ("mean size", Align::Right),
        ("ops/s", Align::Right),
        ("MB/s", Align::Right),
        ("p50 us", Align::Right),
        ("p99 us", Align::Right),
        ("client CPU %", Align::Right),
        ("server CPU %", Align::Right),
    ];
    if accelerators {
        columns.push(("accelerators busy %", Align::Right));
    }
    let mut t = Table::new(&columns);
    let cell = |v: Option<f64>| v.map_or_else(|| "-".into(), short);
    for f in figures {
        let cells = [
            f.test.clone(),
            if f.record == 0 { "-".into() } else { ByteSize(f.record).human().to_string() },
            f.ops_per_s
                .map_or_else(|| "-".into(), |v| if v < 100.0 { short(v) } else { grouped(v.round() as u64) }),
            cell(f.mb_per_s),
            cell(f.p50_us),
            cell(f.p99_us),
            cell(f.client_cpu_percent),
            cell(f.server_cpu_percent),
        ];
        t.row(cells.into_iter().chain(accelerators.then(|| cell(f.accelerator_percent))));
    }
    t
}
