//! BTIO of the NAS parallel benchmarks: the solution of a block-tridiagonal solver, written every few time
//! steps.

use millrace_buffer::Views;

use millrace_bench::{
    BenchError,
    workload::{Data, Directory, Part, Tally, Workload},
};

/// Bytes of a cell: five double precision numbers.
const CELL: u64 = 40;
/// The file that all members share.
const FILE: &str = "btio.full.out";
/// Bytes that are generated or checked at a time.
const PIECE: u64 = 1 << 20;

/// The size of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// 12 cells in each direction: small, for tests.
    S,
    /// 64 cells in each direction: 10.5 MB for each dump.
    A,
    /// 102 cells in each direction: 42.4 MB for each dump.
    B,
}

impl Class {
    fn dump(self) -> u64 {
        let edge: u64 = match self {
            Self::S => 12,
            Self::A => 64,
            Self::B => 102,
        };
        edge.pow(3) * CELL
    }
}

/// BTIO's `full` variant (NAS report NAS-03-002): every `interval` time steps the whole grid is appended to
/// one shared file with collective buffering, and at the end the file is read back and verified.
///
/// The block-tridiagonal solver assigns q blocks of the grid along a diagonal to each of P = q x q processes.
/// With collective buffering (`MPI_File_write_all`) the processes first exchange their data, and each then
/// writes one contiguous P-th of the dump. This workload makes those calls, which are the ones that reach the
/// file system, followed by a barrier. It omits the computation of the solver and the exchange among the
/// processes. The content is a function of step and position, and every byte is checked when it is read back.
#[derive(Debug, Clone)]
pub struct Btio {
    /// The grid.
    pub class: Class,
    /// Number of processes; a square in the original (4, 9, 16).
    pub processes: u32,
    /// Number of time steps. The original has 200.
    pub steps: u32,
    /// Time steps between dumps: 1 or 2 in the papers, 5 in the original.
    pub interval: u32,
}

impl Btio {
    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.class.dump() * u64::from(self.dumps())
    }

    fn dumps(&self) -> u32 {
        self.steps / self.interval.max(1)
    }

    /// Start and end, in bytes within a dump, of the contiguous part of member `rank`.
    fn part(&self, rank: usize) -> (u64, u64) {
        let (cells, n) = (self.class.dump() / CELL, u64::from(self.processes));
        let start = |r: u64| cells * r / n * CELL;
        (start(rank as u64), start(rank as u64 + 1))
    }

    async fn run(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        if self.dumps() == 0 {
            return Err(BenchError::Parameter(format!(
                "btio with {} steps and a dump every {} writes nothing; choose more steps",
                self.steps, self.interval
            )));
        }
        if part.rank == 0 {
            directory.create(FILE).await?;
        }
        part.together().await?;
        let file = directory.open(FILE).await?;
        let (from, to) = self.part(part.rank);
        let dumps = u64::from(self.dumps());
        let bytes = dumps * (to - from);
        let began = tally.begin();
        for dump in 0..self.dumps() {
            let data = content(directory, dump, from, to)?;
            let at = u64::from(dump) * self.class.dump() + from;
            let write = async {
                file.write(at, &data).await?;
                part.together().await
            };
            tally.one("collective write", to - from, write).await?;
        }
        file.commit().await?;
        part.together().await?;
        tally.whole("write", dumps, bytes, &began);
        let began = tally.begin();
        for dump in 0..self.dumps() {
            let read = self.verify(&file, dump, (from, to));
            tally.one("collective read", to - from, read).await?;
        }
        part.together().await?;
        tally.whole("read and verify", dumps, bytes, &began);
        Ok(())
    }

    async fn verify(&self, file: &Data, dump: u32, (from, to): (u64, u64)) -> Result<(), BenchError> {
        let base = u64::from(dump) * self.class.dump();
        let mut wrong = None;
        let check = |at: u64, data: &[u8]| {
            let mut want = vec![0; data.len()];
            fill(&mut want, dump, at - base);
            if want != data {
                wrong.get_or_insert(at);
            }
        };
        let read = file.read(base + from, (to - from) as usize, check).await?;
        match wrong {
            None if read as u64 == to - from => Ok(()),
            None => Err(BenchError::Client(format!("{FILE} ends within dump {dump}"))),
            Some(at) => {
                Err(BenchError::Client(format!("{FILE} differs from the written data near offset {at}")))
            }
        }
    }
}

impl Workload for Btio {
    fn name(&self) -> &'static str {
        "btio"
    }

    fn members(&self) -> usize {
        self.processes as usize
    }

    fn client_hosts(&self) -> usize {
        // As in the paper: one host for two processes.
        self.members().div_ceil(2).max(1)
    }

    fn bytes(&self) -> u64 {
        Self::bytes(self)
    }

    async fn member(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        self.run(directory, part, tally).await
    }
}

/// The bytes `from` to `to` of dump `dump`.
fn content(directory: &Directory, dump: u32, from: u64, to: u64) -> Result<Views, BenchError> {
    let mut out = Views::new();
    let mut at = from;
    while at < to {
        let mut piece = vec![0; PIECE.min(to - at) as usize];
        fill(&mut piece, dump, at);
        out.extend(directory.views(&piece)?.iter().cloned());
        at += piece.len() as u64;
    }
    Ok(out)
}

/// Fills `out` with the bytes of dump `dump` from position `at`.
fn fill(out: &mut [u8], dump: u32, at: u64) {
    let seed = u64::from(dump).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (byte, position) in out.iter_mut().zip(at..) {
        let word = ((position / 8) ^ seed).wrapping_mul(0x2545_f491_4f6c_dd1d);
        *byte = word.to_be_bytes()[(position % 8) as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_cells_and_cover_the_dump_without_gaps() {
        for (class, bytes) in [(Class::S, 69_120), (Class::A, 10_485_760), (Class::B, 42_448_320)] {
            for processes in [1, 4, 9, 16] {
                let b = Btio { class, processes, steps: 4, interval: 2 };
                assert_eq!((class.dump(), b.bytes()), (bytes, 2 * bytes));
                let parts: Vec<_> = (0..processes as usize).map(|r| b.part(r)).collect();
                assert_eq!((parts[0].0, parts[parts.len() - 1].1), (0, bytes));
                assert!(parts.windows(2).all(|w| w[0].1 == w[1].0 && w[0].1 % CELL == 0));
            }
        }
    }

    #[test]
    fn the_content_depends_on_step_and_position_only() {
        let mut whole = vec![0; 1000];
        fill(&mut whole, 3, 40);
        let mut end = vec![0; 500];
        fill(&mut end, 3, 540);
        assert_eq!(whole[500..], end);
        fill(&mut end, 4, 540);
        assert_ne!(whole[500..], end);
    }
}
