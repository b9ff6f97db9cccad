//! Latency of single operations.

use super::{Directory, Part, Tally, Workload};
use crate::{BenchError, random::Random};

/// Size of a small read or write in bytes.
const SMALL: usize = 4 << 10;
/// Number of small records in the file.
const RECORDS: u64 = 256;

/// Latency of single operations without concurrency: stat, access, create, remove, reads and writes of 4 KiB
/// (writes to memory and to stable storage) and of 1 MiB.
#[derive(Debug, Clone)]
pub struct Latency {
    /// Number of operations of each kind; for those of 1 MiB, a tenth of it.
    pub operations: u32,
}

impl Latency {
    async fn run(&self, directory: &Directory, tally: &mut Tally) -> Result<(), BenchError> {
        let small = directory.views(&[0x4c; SMALL])?;
        let large = directory.views(&vec![0x4c; RECORDS as usize * SMALL])?;
        let file = directory.create("latency").await?;
        file.write(0, &large).await?;
        file.commit().await?;
        let mut random = Random::new(1);
        let mut somewhere = || random.below(RECORDS) * SMALL as u64;
        let n = self.operations;
        for _ in 0..n {
            tally.one("stat", 0, directory.stat("latency")).await?;
        }
        for _ in 0..n {
            tally.one("access", 0, directory.access("latency")).await?;
        }
        for i in 0..n {
            tally.one("create", 0, directory.create(&format!("f{i}"))).await?;
        }
        for i in 0..n {
            tally.one("remove", 0, directory.remove(&format!("f{i}"))).await?;
        }
        for _ in 0..n {
            tally.one("read 4 KiB", SMALL as u64, file.read(somewhere(), SMALL, |_, _| ())).await?;
        }
        for _ in 0..n {
            tally.one("write 4 KiB", SMALL as u64, file.write(somewhere(), &small)).await?;
        }
        for _ in 0..n {
            let write = file.write_stable(somewhere(), &small);
            tally.one("write 4 KiB, stable", SMALL as u64, write).await?;
        }
        let bytes = large.len();
        for _ in 0..n.div_ceil(10) {
            tally.one("read 1 MiB", bytes as u64, file.read(0, bytes, |_, _| ())).await?;
        }
        for _ in 0..n.div_ceil(10) {
            tally.one("write 1 MiB", bytes as u64, file.write(0, &large)).await?;
        }
        file.commit().await
    }
}

impl Workload for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn bytes(&self) -> u64 {
        u64::from(self.operations) * 4096 + (2 << 20)
    }

    async fn member(&self, directory: &Directory, _: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        self.run(directory, tally).await
    }
}
