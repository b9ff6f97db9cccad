//! Checkpoints of a language model.

use std::{fmt, str::FromStr};

use super::{Directory, Part, Tally, Workload};
use crate::BenchError;

/// Bytes of the memory that is written repeatedly.
const RECORD: usize = 1 << 20;
/// Bytes that are written or read at a time, with several calls in flight.
const RUN: usize = 64 << 20;
/// Bytes of a parameter in a checkpoint: the weight (fp16), and the state of the optimizer (a fp32 copy of the weight and
/// two fp32 moments).
const WEIGHT: u64 = 2;
const OPTIMIZER: u64 = 12;

/// A model of MLPerf Storage v2.0 (submission guidelines, table 2), with the number of processes that save it and the
/// size of its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// Llama 3 with 8 billion parameters: 8 processes, 105 GB.
    Llama8b,
    /// Llama 3 with 70 billion parameters: 64 processes, 912 GB.
    Llama70b,
    /// Llama 3 with 405 billion parameters: 512 processes, 5.29 TB.
    Llama405b,
    /// A model with 1 trillion parameters: 1,024 processes, 18 TB.
    Llama1t,
}

impl Model {
    /// All models.
    pub const ALL: [Self; 4] = [Self::Llama8b, Self::Llama70b, Self::Llama405b, Self::Llama1t];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama8b => "llama3-8b",
            Self::Llama70b => "llama3-70b",
            Self::Llama405b => "llama3-405b",
            Self::Llama1t => "llama3-1t",
        }
    }

    /// The part of one process in bytes.
    pub fn bytes_per_process(self) -> u64 {
        let (bytes, processes) = match self {
            Self::Llama8b => (105_000_000_000, 8),
            Self::Llama70b => (912_000_000_000, 64),
            Self::Llama405b => (5_290_000_000_000, 512),
            Self::Llama1t => (18_000_000_000_000, 1024),
        };
        bytes / processes
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|m| m.name() == text);
        found.ok_or_else(|| format!("no model {text}: write {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Saves and loads checkpoints. Each member is a process of the training job: it writes its weights and its part of the
/// optimizer's state into two files, sequentially, and makes them stable (fsync). After all have written, each reads its
/// files again. The operation `save` or `load` is that of one process, so that the 99th percentile is the duration of the
/// slowest process unless there are more than 100 operations.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The model.
    pub model: Model,
    /// Number of processes of the job on this host; 1 or more. With fewer than the model has, this is the mode `subset`
    /// of MLPerf Storage.
    pub processes: usize,
    /// The bytes of a process relative to the published size, above 0.
    pub scale: f64,
    /// Number of checkpoints. All have the same names.
    pub checkpoints: u16,
}

impl Checkpoint {
    /// Bytes of the files of one process: weights and optimizer state. At least one byte each.
    fn sizes(&self) -> [u64; 2] {
        let bytes = self.model.bytes_per_process() as f64 * self.scale;
        [WEIGHT, OPTIMIZER].map(|part| ((bytes * part as f64 / (WEIGHT + OPTIMIZER) as f64) as u64).max(1))
    }

    async fn save(&self, directory: &Directory, rank: usize) -> Result<(), BenchError> {
        let record = directory.views(&vec![0x43; RECORD])?;
        for (name, size) in names(rank).iter().zip(self.sizes()) {
            let file = directory.create(name).await?;
            let mut at = 0;
            while at < size {
                let len = (size - at).min(RUN as u64) as usize;
                let records = len.div_ceil(RECORD);
                let data: millrace_buffer::Views =
                    (0..records).flat_map(|_| record.iter().cloned()).collect();
                file.write(at, &data.slice(0, len)).await?;
                at += len as u64;
            }
            file.commit().await?;
        }
        Ok(())
    }

    async fn load(&self, directory: &Directory, rank: usize) -> Result<(), BenchError> {
        for (name, size) in names(rank).iter().zip(self.sizes()) {
            let file = directory.open(name).await?;
            let mut at = 0;
            while at < size {
                let len = (size - at).min(RUN as u64) as usize;
                let read = file.read(at, len, |_, _| ()).await?;
                if read != len {
                    return Err(BenchError::Client(format!(
                        "{name} has {read} bytes at {at} instead of {len}"
                    )));
                }
                at += len as u64;
            }
        }
        Ok(())
    }
}

/// The files of a process: weights and optimizer state.
fn names(rank: usize) -> [String; 2] {
    [format!("weights-{rank}"), format!("optimizer-{rank}")]
}

impl Workload for Checkpoint {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn members(&self) -> usize {
        self.processes
    }

    fn outstanding(&self) -> usize {
        super::directory::DEPTH
    }

    fn bytes(&self) -> u64 {
        self.sizes().iter().sum::<u64>() * self.processes as u64
    }

    async fn member(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        let bytes = self.sizes().iter().sum::<u64>();
        let count = u64::from(self.checkpoints);
        part.together().await?;
        let began = tally.begin();
        for _ in 0..count {
            let start = tally.now();
            self.save(directory, part.rank).await?;
            tally.latency("save", tally.now().duration_since(start));
        }
        tally.whole("save", count, bytes * count, &began);
        part.together().await?;
        let began = tally.begin();
        for _ in 0..count {
            let start = tally.now();
            self.load(directory, part.rank).await?;
            tally.latency("load", tally.now().duration_since(start));
        }
        tally.whole("load", count, bytes * count, &began);
        part.together().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Target, run};

    #[test]
    fn the_files_of_all_processes_have_the_published_size() {
        for (model, processes, bytes) in
            [(Model::Llama8b, 8, 105e9), (Model::Llama70b, 64, 912e9), (Model::Llama405b, 512, 5.29e12)]
        {
            let checkpoint = Checkpoint { model, processes, scale: 1.0, checkpoints: 1 };
            let relative = checkpoint.bytes() as f64 / bytes;
            assert!((0.999_999..=1.0).contains(&relative), "{model}: {relative}");
            assert_eq!(model.name().parse(), Ok(model));
        }
    }

    #[test]
    fn no_file_is_empty_however_small_the_scale() {
        let checkpoint = Checkpoint { model: Model::Llama8b, processes: 1, scale: 1e-12, checkpoints: 1 };
        assert_eq!(checkpoint.sizes(), [1, 1]);
    }

    #[test]
    fn each_process_saves_and_loads_all_its_bytes() {
        let top = tempfile::tempdir().unwrap();
        // More than one record, and no multiple of it.
        let checkpoint = Checkpoint { model: Model::Llama8b, processes: 2, scale: 0.0006, checkpoints: 2 };
        let figures = run(&checkpoint, &Target::Directory(top.path().to_owned())).unwrap();
        let bytes: u64 = checkpoint.sizes().iter().sum();
        for (figure, test) in figures.iter().zip(["save", "load"]) {
            assert_eq!((figure.test.as_str(), figure.record), (test, bytes));
        }
    }
}
