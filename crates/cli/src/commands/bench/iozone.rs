//! `millrace bench iozone`.

use std::{io::IsTerminal, path::Path};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_bench::{
    BenchError, Figure,
    figure::{Csv, costs, table},
    iozone::{Ends, Matrix, Servers, Test, pictures},
    units::{Size, short},
};
use millrace_client::{Design, Strategy};

use super::warn_of_debug_build;
use crate::{
    args::{EndsName, IozoneArgs, TestName},
    failure::{CommandResult, Failure, Outcome},
    output, session,
};

impl From<TestName> for Test {
    fn from(t: TestName) -> Self {
        match t {
            TestName::Write => Self::Write,
            TestName::Rewrite => Self::Rewrite,
            TestName::Read => Self::Read,
            TestName::Reread => Self::Reread,
            TestName::RandomRead => Self::RandomRead,
            TestName::RandomWrite => Self::RandomWrite,
        }
    }
}

impl From<EndsName> for Ends {
    fn from(ends: EndsName) -> Self {
        match ends {
            EndsName::Both => Self::Both,
            EndsName::Client => Self::Client,
            EndsName::Server => Self::Server,
        }
    }
}

pub(super) fn run(args: &IozoneArgs) -> CommandResult {
    warn_of_debug_build();
    let matrix = matrix(args)?;
    let show = Show {
        json: args.json,
        csv: args.csv.as_deref(),
        plot: args.plot.as_deref(),
        conditions: &|f| conditions(args, f),
        ends: ("client", "server"),
        notes: notes(args, &matrix),
    };
    sweep(&matrix, &show)
}

/// Where the figures of a matrix go, and what is said of them.
pub(super) struct Show<'a> {
    /// A JSON object for each run, instead of a table.
    pub(super) json: bool,
    /// A file for each run.
    pub(super) csv: Option<&'a Path>,
    /// A directory for pictures of the medians.
    pub(super) plot: Option<&'a Path>,
    /// Under which conditions a figure came about.
    pub(super) conditions: &'a dyn Fn(&Figure) -> String,
    /// The ends of a connection in the table.
    pub(super) ends: (&'a str, &'a str),
    /// Whole lines below the table.
    pub(super) notes: String,
}

/// Runs a matrix and shows what comes of it.
pub(super) fn sweep(matrix: &Matrix, show: &Show<'_>) -> CommandResult {
    let mut csv = show.csv.map(Csv::create).transpose()?;
    let bar = progress(matrix.cells() * matrix.runs);
    let mut printed = Ok(());
    let medians = matrix.run(|figure| {
        if let Some(bar) = &bar {
            bar.set_message(summary(figure));
            bar.inc(1);
        }
        if show.json && printed.is_ok() {
            printed = output::line(&figure.json());
        }
        csv.as_mut().map_or(Ok(()), |csv| csv.add(figure))
    })?;
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    printed?;
    if !show.json {
        print(show, &medians)?;
    }
    if let Some(dir) = show.plot {
        draw(show, matrix, &medians, dir)?;
    }
    Ok(Outcome::Done)
}

fn matrix(args: &IozoneArgs) -> Result<Matrix, Failure> {
    let stated = session::stated();
    let servers = match &args.url {
        Some(url) => Servers::Url(session::parse(url)?),
        None => Servers::Embedded { address: args.address, proto: args.proto },
    };
    let bytes = |size: &Size| usize::try_from(size.0).unwrap_or(usize::MAX);
    let options = millrace_client::Options {
        crc: args.crc,
        max_frame: args.max_frame.as_ref().map(bytes),
        registration: millrace_client::Options::default().registration,
        ..session::options()
    };
    Ok(Matrix {
        servers,
        options,
        designs: stated.designs.clone(),
        registrations: stated.registrations.clone(),
        ends: args.registration_of.into(),
        threads: args.threads.iter().map(|n| usize::from(*n)).collect(),
        records: args.record.iter().map(bytes).collect(),
        tests: args.tests.iter().map(|t| (*t).into()).collect(),
        size: args.size.0,
        outstanding: args.outstanding.into(),
        random_ops: args.random_ops.unwrap_or(0),
        runs: args.runs.into(),
    })
}

/// How far it is, on a terminal.
fn progress(figures: usize) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::with_draw_target(Some(figures as u64), ProgressDrawTarget::stderr_with_hz(8));
        if let Ok(style) = ProgressStyle::with_template("{pos} of {len} [{bar:30}] {eta} left  {wide_msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar
    })
}

/// A figure in a few words.
fn summary(f: &Figure) -> String {
    let names: Vec<&str> = [&f.design, &f.registration].into_iter().flatten().map(String::as_str).collect();
    let rate = f.mb_per_s.map_or_else(|| "-".into(), short);
    format!("{} {} threads, {}, {}: {rate} MB/s", names.join(" "), f.threads, Size(f.record), f.test)
}

/// Under which conditions it was measured.
fn conditions(args: &IozoneArgs, f: &Figure) -> String {
    let place = args.url.clone().unwrap_or_else(|| format!("embedded server at {}", args.address));
    let over = f.provider.as_deref().map_or_else(|| f.proto.clone(), |p| format!("{} ({p})", f.proto));
    format!(
        "{place} over {over}; {} in flight and {} per thread; {}",
        args.outstanding,
        args.size,
        if args.runs == 1 { "one run".to_owned() } else { format!("medians of {} runs", args.runs) }
    )
}

fn print(show: &Show<'_>, medians: &[Figure]) -> Result<(), Failure> {
    let f = medians.first().cloned().unwrap_or_default();
    let mut text = format!("{}.\n", (show.conditions)(&f));
    let setting = |f: &Figure| {
        let names =
            [("design", &f.design), ("registration", &f.registration), ("server's", &f.server_registration)];
        let names = names.into_iter().filter_map(|(word, name)| Some(format!("{word} {}", name.as_ref()?)));
        names.chain([format!("threads {}", f.threads)]).collect::<Vec<_>>().join(", ")
    };
    if medians.iter().all(|m| setting(m) == setting(&f)) {
        text += &format!("{}.\n\n{}", setting(&f), table(medians, show.ends));
    }
    text += &show.notes;
    if medians.iter().any(|m| m.mb_per_s.is_none()) {
        text += "A cell with - in place of MB/s: its record is larger than one READ or WRITE of its strategy carries.\n";
    }
    output::write(format!("{text}\n{}", costs(medians)).as_bytes())
}

/// What must be said of the figures.
fn notes(args: &IozoneArgs, matrix: &Matrix) -> String {
    let mut text = String::new();
    let all_physical = matrix.registrations.contains(&Strategy::AllPhysical);
    let read_read = matrix.designs.contains(&Design::ReadRead);
    if args.self_server && read_read {
        text += &format!(
            "read-read: the embedded server exposes its memory to whoever reaches it at {} \
             (--i-accept-exposed-buffers is implied).\n",
            args.address
        );
    }
    if args.self_server && all_physical {
        text += "all-physical: this program trusts the server that it started (--i-trust-the-server is implied).\n";
    }
    if args.self_server && read_read && all_physical && matrix.ends != Ends::Client {
        text += "A read-read server refuses all-physical; it uses cache there.\n";
    }
    text
}

fn draw(show: &Show<'_>, matrix: &Matrix, medians: &[Figure], dir: &Path) -> Result<(), BenchError> {
    let note = medians.first().map(show.conditions).unwrap_or_default();
    let ends = match matrix.ends {
        Ends::Both => "registration at both ends",
        Ends::Client => "the client's registration",
        Ends::Server => "the server's registration",
    };
    pictures::draw(medians, &format!("{ends}; {note}"), dir)
}
