//! The run of a workload, and its figures on standard output.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use millrace_client::{Options, Proto};
use millrace_program::{
    args::parse_url,
    failure::{CommandResult, Failure, Outcome},
    output,
};

use crate::{
    At, Figure,
    embedded::EmbeddedServer,
    workload::{Target, Workload, run as run_workload, table},
};

/// The target and the repetitions of a workload.
pub struct Place {
    /// A directory on a server.
    pub url: Option<String>,
    /// Whether to start a server with a memory export for the workload, instead of [`Self::url`].
    pub self_server: bool,
    /// A directory of the local file system.
    pub dir: Option<PathBuf>,
    /// The local address that the server listens on.
    pub address: IpAddr,
    /// The transport to the server.
    pub proto: Proto,
    /// Number of runs; the table shows medians.
    pub runs: u16,
    /// Whether to print JSON objects instead of a table.
    pub json: bool,
    /// The client options.
    pub options: Options,
    /// Further arguments for the server.
    pub server_arguments: Vec<String>,
}

/// Runs `workload` and prints its figures.
///
/// # Errors
/// When no target is given, the server cannot be reached, or the workload fails.
pub fn run(workload: &impl Workload, place: &Place) -> CommandResult {
    let server = match place.self_server {
        true => {
            let at = At { address: place.address, provider: place.options.provider };
            Some(EmbeddedServer::start_with(workload.bytes(), &at, None, &place.server_arguments)?)
        }
        false => None,
    };
    let url = server.as_ref().map(|s| s.url(place.proto)).or_else(|| place.url.clone());
    let (target, text) = target(url, place.dir.as_deref(), &place.options)?;
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

fn target(url: Option<String>, dir: Option<&Path>, options: &Options) -> Result<(Target, String), Failure> {
    match (url, dir) {
        (Some(text), _) => {
            let url = Box::new(parse_url(&text)?);
            Ok((Target::Server { url, options: Box::new(options.clone()) }, text))
        }
        (None, Some(dir)) => Ok((Target::Directory(dir.to_owned()), dir.display().to_string())),
        (None, None) => Err(Failure::usage("name a URL, or add --self or --dir")),
    }
}

/// The RDMA settings of `f` in parentheses, if it was measured over RDMA.
pub fn over_rdma(f: &Figure) -> String {
    match (&f.design, &f.registration) {
        (Some(d), Some(r)) => format!(" (design {d}, registration {r})"),
        _ => String::new(),
    }
}

/// The number of members of `workload`, as text.
pub fn members(workload: &impl Workload) -> String {
    match workload.members() {
        1 => "One member".into(),
        n => format!("{n} members, each with its own connection"),
    }
}

fn print(workload: &impl Workload, place: &Place, text: &str, medians: &[Figure]) -> Result<(), Failure> {
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
