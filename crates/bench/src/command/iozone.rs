//! `iozone`: arguments, progress, and results on standard output.

use std::{
    io::IsTerminal,
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_client::{Options, Proto};
use millrace_program::{
    args::{parse_url, proto},
    failure::Failure,
    output,
    units::{ByteSize, short},
};

use crate::{
    BenchError, Figure,
    figure::{Csv, costs, table},
    iozone::{Grid, Servers, Test},
};

/// Arguments of `iozone`.
#[derive(Debug, Args)]
pub struct IozoneOptions {
    /// A directory on a server, in which the test files are created and removed
    #[arg(value_name = "URL", required_unless_present = "self_server")]
    pub url: Option<String>,

    /// Measure a server that this command starts
    #[arg(long = "self", conflicts_with = "url")]
    pub self_server: bool,

    /// The address of this machine where the server of --self listens; that of an RDMA device for --provider
    /// verbs
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", requires = "self_server")]
    pub address: IpAddr,

    /// The transport; to the server of --self, rdma by default
    #[arg(long, value_name = "NAME", value_parser = proto())]
    pub proto: Option<Proto>,

    /// Threads, each with a connection and a file
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Vec<u16>,

    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "128K")]
    pub record: Vec<ByteSize>,

    /// Bytes of each file
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub size: ByteSize,

    /// Records in flight per thread
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub outstanding: u16,

    /// Tests to run
    #[arg(long, value_name = "TEST,...", value_delimiter = ',', value_enum,
          default_values_t = [Test::Write, Test::Rewrite, Test::Read, Test::Reread, Test::RandomRead, Test::RandomWrite])]
    pub tests: Vec<Test>,

    /// Records of each random test [default: those of the file, at most 100000]
    #[arg(long, value_name = "N")]
    pub random_ops: Option<u64>,

    /// Number of runs of each test; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub runs: u16,

    /// Check a CRC32C in the transport (iWARP)
    #[arg(long)]
    pub crc: bool,

    /// Maximum payload bytes of one sent frame, to imitate a peer that frames by MTU (iWARP; 1424 for MTU
    /// 1500); the server frames the data of READs
    #[arg(long, value_name = "BYTES")]
    pub max_frame: Option<ByteSize>,

    /// Write every run to a file of comma-separated values, whose columns are the JSON keys
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// `size` as a length of memory.
pub fn length(size: &ByteSize) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
}

/// One run of sequential writes and reads, with every number of threads and every record size: `size` bytes
/// per thread, `outstanding` records in flight.
pub fn sequential(threads: &[u16], records: &[ByteSize], size: ByteSize, outstanding: u16) -> Grid {
    Grid {
        threads: threads.iter().map(|n| usize::from(*n)).collect(),
        records: records.iter().map(length).collect(),
        tests: vec![Test::Write, Test::Read],
        size: size.0,
        outstanding: outstanding.into(),
        random_ops: 0,
        runs: 1,
    }
}

impl IozoneOptions {
    /// The server to measure.
    ///
    /// # Errors
    /// When the URL is invalid.
    pub fn servers(&self) -> Result<Servers, Failure> {
        Ok(match &self.url {
            Some(url) => Servers::Url(parse_url(url)?),
            None => Servers::Embedded { address: self.address, proto: self.proto.unwrap_or(Proto::Rdma) },
        })
    }

    /// `options` with the settings of the arguments.
    pub fn options(&self, options: Options) -> Options {
        options.crc(self.crc).max_frame(self.max_frame.as_ref().map(length))
    }

    /// The parameters to measure.
    pub fn grid(&self) -> Grid {
        Grid {
            tests: self.tests.clone(),
            random_ops: self.random_ops.unwrap_or(0),
            runs: self.runs.into(),
            ..sequential(&self.threads, &self.record, self.size, self.outstanding)
        }
    }

    /// The conditions under which `f` was measured.
    pub fn conditions(&self, f: &Figure) -> String {
        let place = self.url.clone().unwrap_or_else(|| format!("embedded server at {}", self.address));
        let over = f.provider.as_deref().map_or_else(|| f.proto.clone(), |p| format!("{} ({p})", f.proto));
        format!(
            "{place} over {over}; {} in flight and {} per thread; {}",
            self.outstanding,
            self.size,
            if self.runs == 1 { "one run".to_owned() } else { format!("medians of {} runs", self.runs) }
        )
    }
}

/// The destination of figures and the text around them.
pub struct Show<'a> {
    /// Whether to print a JSON object for each run instead of a table.
    pub json: bool,
    /// A CSV file with one line for each run.
    pub csv: Option<&'a Path>,
    /// The conditions under which a figure was measured.
    pub conditions: &'a dyn Fn(&Figure) -> String,
    /// The names of the ends of a connection in the table.
    pub ends: (&'a str, &'a str),
    /// Complete lines below the table.
    pub notes: String,
}

/// Receives each figure of a measurement.
pub type Each<'a> = dyn FnMut(&Figure) -> Result<(), BenchError> + 'a;

impl Show<'_> {
    /// Executes `measure`, which reports `figures` figures and returns the medians. Writes the figures, and
    /// returns the medians.
    ///
    /// # Errors
    /// Those of `measure`, or when a figure cannot be written.
    pub fn measure(
        &self,
        figures: usize,
        measure: impl FnOnce(&mut Each<'_>) -> Result<Vec<Figure>, BenchError>,
    ) -> Result<Vec<Figure>, Failure> {
        let mut csv = self.csv.map(Csv::create).transpose()?;
        let bar = progress(figures);
        let mut printed = Ok(());
        let medians = measure(&mut |figure| {
            if let Some(bar) = &bar {
                bar.set_message(summary(figure));
                bar.inc(1);
            }
            if self.json && printed.is_ok() {
                printed = output::line(&figure.json());
            }
            csv.as_mut().map_or(Ok(()), |csv| csv.add(figure))
        })?;
        if let Some(bar) = &bar {
            bar.finish_and_clear();
        }
        printed?;
        if !self.json {
            print(self, &medians)?;
        }
        Ok(medians)
    }
}

/// A progress bar, on a terminal.
fn progress(figures: usize) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::with_draw_target(Some(figures as u64), ProgressDrawTarget::stderr_with_hz(8));
        if let Ok(style) = ProgressStyle::with_template("{pos} of {len} [{bar:30}] {eta} left  {wide_msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar
    })
}

/// A short description of a figure.
fn summary(f: &Figure) -> String {
    let names: Vec<&str> = [&f.design, &f.registration].into_iter().flatten().map(String::as_str).collect();
    let rate = f.mb_per_s.map_or_else(|| "-".into(), short);
    format!(
        "{} {} threads, {}, {}: {rate} MB/s",
        names.join(" "),
        f.threads,
        ByteSize(f.record).human(),
        f.test
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
        text += "A cell shows - instead of MB/s where a record exceeds the size of one READ or WRITE with its strategy.\n";
    }
    output::write(format!("{text}\n{}", costs(medians)).as_bytes())
}
