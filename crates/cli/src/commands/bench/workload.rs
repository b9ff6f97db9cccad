//! The workloads of `millrace bench`.

use millrace_bench::{
    Figure,
    embedded::EmbeddedServer,
    simulated::Storage,
    table::{Align, Table},
    units::{Size, grouped, short},
    workload::{Target, Workload, run as run_workload, simulate},
};

use super::{
    at,
    simulate::{about, machines},
    warn_of_debug_build,
};
use crate::{
    args::Where,
    failure::{CommandResult, Failure, Outcome},
    output, session,
};

pub(super) fn run(workload: &Workload, place: &Where) -> CommandResult {
    if place.machines.profile.is_some() {
        return run_simulated(workload, place);
    }
    let machines = &place.machines;
    if machines.miles.is_some() || machines.client_hosts.is_some() || machines.storage != Storage::Free {
        return Err(Failure::usage("--miles, --client-hosts and --storage go with --profile"));
    }
    warn_of_debug_build();
    let server = match place.self_server {
        // Twice the data: old and new content of a block are there at once.
        true => Some(EmbeddedServer::start(workload.bytes(), &at(place.address))?),
        false => None,
    };
    let url = server.as_ref().map(|s| s.url(place.proto)).or_else(|| place.url.clone());
    let (target, text) = match (&url, &place.dir) {
        (Some(text), _) => {
            let url = Box::new(session::parse(text)?);
            (Target::Server { url, options: Box::new(session::options()) }, text.clone())
        }
        (None, Some(dir)) => (Target::Directory(dir.clone()), dir.display().to_string()),
        (None, None) => return Err(Failure::usage("name a URL, or add --self or --dir")),
    };
    let mut runs: Vec<Vec<Figure>> = Vec::new();
    for _ in 0..place.runs {
        let figures = run_workload(workload, &target)?;
        if place.json {
            figures.iter().try_for_each(|f| output::line(&f.json()))?;
        }
        for (n, figure) in figures.into_iter().enumerate() {
            match runs.get_mut(n) {
                Some(of_this_kind) => of_this_kind.push(figure),
                None => runs.push(vec![figure]),
            }
        }
    }
    if !place.json {
        let medians: Vec<_> = runs.iter().filter_map(|r| Figure::median(r)).collect();
        print(workload, place, &text, &medians)?;
    }
    Ok(Outcome::Done)
}

fn run_simulated(workload: &Workload, place: &Where) -> CommandResult {
    let machines = machines(&place.machines, place.proto, workload.client_hosts())?;
    let figures = simulate(workload, &machines)?;
    if place.json {
        figures.iter().try_for_each(|f| output::line(&f.json()))?;
        return Ok(Outcome::Done);
    }
    output::line(&about(&machines))?;
    let f = figures.first().cloned().unwrap_or_default();
    output::line(&format!("{}{}\n{}.\n", workload.name(), over_rdma(&f), members(workload)))?;
    output::write(table(&figures).to_string().as_bytes())?;
    Ok(Outcome::Done)
}

/// How it goes over RDMA, if it does.
fn over_rdma(f: &Figure) -> String {
    match (&f.design, &f.registration) {
        (Some(d), Some(r)) => format!(" (design {d}, registration {r})"),
        _ => String::new(),
    }
}

fn members(workload: &Workload) -> String {
    match workload.members() {
        1 => "One member".into(),
        n => format!("{n} members, each with a connection of its own"),
    }
}

fn print(workload: &Workload, place: &Where, text: &str, medians: &[Figure]) -> Result<(), Failure> {
    let f = medians.first().cloned().unwrap_or_default();
    output::line(&format!(
        "{} in {text} over {}{}\n{}; medians of {} runs.\n",
        workload.name(),
        f.proto,
        over_rdma(&f),
        members(workload),
        place.runs
    ))?;
    output::write(table(medians).to_string().as_bytes())
}

/// A line for each kind of operation.
fn table(figures: &[Figure]) -> Table {
    let mut t = Table::new(&[
        ("operation", Align::Left),
        ("mean size", Align::Right),
        ("ops/s", Align::Right),
        ("MB/s", Align::Right),
        ("p50 us", Align::Right),
        ("p99 us", Align::Right),
        ("client CPU %", Align::Right),
        ("server CPU %", Align::Right),
    ]);
    let cell = |v: Option<f64>| v.map_or_else(|| "-".into(), short);
    for f in figures {
        t.row([
            f.test.clone(),
            if f.record == 0 { "-".into() } else { Size(f.record).to_string() },
            f.ops_per_s
                .map_or_else(|| "-".into(), |v| if v < 100.0 { short(v) } else { grouped(v.round() as u64) }),
            cell(f.mb_per_s),
            cell(f.p50_us),
            cell(f.p99_us),
            cell(f.client_cpu_percent),
            cell(f.server_cpu_percent),
        ]);
    }
    t
}
