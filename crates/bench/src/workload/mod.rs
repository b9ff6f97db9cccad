//! The papers' workloads beside IOzone, as library code that runs in any directory: of a server, over whatever
//! transport and provider, or of this machine.
//!
//! Or between simulated machines, in virtual time ([`simulate`]).
//!
//! What each does, and how that is what the original does, is said at its type. Every operation is timed, so the lines
//! of a report are kinds of operations: their rate, their data rate, median and 99th percentile of their latency.

mod btio;
mod clients;
mod crew;
mod directory;
mod fileop;
mod latency;
mod oltp;
mod postmark;
mod simulated;
mod sources;
mod tally;
mod tile;

pub use btio::{Btio, Class};
pub use clients::Clients;
pub use crew::{Target, run};
pub use directory::{Data, Directory};
pub use fileop::Fileop;
pub use latency::Latency;
pub use oltp::Oltp;
pub use postmark::Postmark;
pub use simulated::simulate;
pub use sources::{Compile, Sources, Untar};
pub use tile::Tile;

use crate::{BenchError, Figure};
use crew::Part;
use tally::Tally;

/// A workload.
#[derive(Debug, Clone)]
pub enum Workload {
    /// Each operation on names.
    Fileop(Fileop),
    /// A mail server's small files.
    Postmark(Postmark),
    /// Unpacking a tree of sources.
    Untar(Untar),
    /// Compiling it.
    Compile(Compile),
    /// A database.
    Oltp(Oltp),
    /// Dumps of a solver's grid.
    Btio(Btio),
    /// Tiles of a picture.
    Tile(Tile),
    /// One operation at a time.
    Latency(Latency),
    /// Several clients with a file each.
    Clients(Clients),
}

impl Workload {
    /// Its name: that of the command.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fileop(_) => "fileop",
            Self::Postmark(_) => "postmark",
            Self::Untar(_) => "untar",
            Self::Compile(_) => "compile",
            Self::Oltp(_) => "oltp",
            Self::Btio(_) => "btio",
            Self::Tile(_) => "tile",
            Self::Latency(_) => "latency",
            Self::Clients(_) => "clients",
        }
    }

    /// How many run it together, each with a connection of its own.
    pub const fn members(&self) -> usize {
        match self {
            Self::Btio(w) => w.processes as usize,
            Self::Tile(w) => w.processes() as usize,
            Self::Clients(w) => w.clients as usize,
            _ => 1,
        }
    }

    /// The client hosts that it has in the papers, where it is simulated: for BTIO and tiles one for each two
    /// processes, for several clients one for each, else one.
    pub fn client_hosts(&self) -> usize {
        match self {
            Self::Btio(_) | Self::Tile(_) => self.members().div_ceil(2).max(1),
            Self::Clients(_) => self.members().max(1),
            _ => 1,
        }
    }

    /// The most operations that a member has in flight.
    pub const fn outstanding(&self) -> usize {
        match self {
            Self::Oltp(w) => w.outstanding(),
            _ => 1,
        }
    }

    /// What is the same in all its lines, beside what is the same in all about a place.
    fn line(&self, of: Figure) -> Figure {
        Figure { threads: self.members(), outstanding: self.outstanding(), ..of }
    }

    /// About the bytes of data that it has in the directory at most; in a memory export they may take twice as much.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Fileop(w) => u64::from(w.factor).pow(3) * u64::from(w.size.max(4096)),
            Self::Postmark(w) => {
                (u64::from(w.files) + u64::from(w.transactions)) * u64::from(w.high.max(4096))
            }
            Self::Untar(w) => w.sources.bytes() + u64::from(w.sources.files) * 4096,
            // Sources, objects, image.
            Self::Compile(w) => 3 * (w.sources.bytes() + u64::from(w.sources.files) * 4096),
            Self::Oltp(w) => u64::from(w.files) * w.file_size + (32 << 20),
            Self::Btio(w) => w.bytes(),
            Self::Tile(w) => w.bytes(),
            Self::Latency(w) => u64::from(w.operations) * 4096 + (2 << 20),
            Self::Clients(w) => u64::from(w.clients) * w.size,
        }
    }

    async fn member(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        match self {
            Self::Fileop(w) => w.run(directory, tally).await,
            Self::Postmark(w) => w.run(directory, tally).await,
            Self::Untar(w) => w.run(directory, tally).await,
            Self::Compile(w) => w.run(directory, tally).await,
            Self::Oltp(w) => w.run(directory, tally).await,
            Self::Btio(w) => w.run(directory, part, tally).await,
            Self::Tile(w) => w.run(directory, part, tally).await,
            Self::Latency(w) => w.run(directory, tally).await,
            Self::Clients(w) => w.run(directory, part, tally).await,
        }
    }
}
