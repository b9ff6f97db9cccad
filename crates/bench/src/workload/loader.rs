//! The data loader of a training job with emulated accelerators.

use std::{fmt, str::FromStr, time::Duration};

use futures::{SinkExt, StreamExt, TryStreamExt, channel::mpsc, stream};
use millrace_runtime::RuntimeExt;

use super::{Directory, Part, Tally, Workload};
use crate::{BenchError, random::Random};

/// Batches that are loaded ahead of the accelerator.
const PREFETCH: usize = 2;
/// Bytes of one write when the data set is created.
const RECORD: usize = 1 << 20;

/// A training workload of MLPerf Storage v2.0 with the parameters for one H100 (the DLIO configurations `unet3d_h100`,
/// `resnet50_h100` and `cosmoflow_h100`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Training {
    /// 3D U-Net: one sample of 146.6 MB in each file, batches of 7.
    Unet3d,
    /// ResNet-50: 1,251 samples of 115 kB in each file, batches of 400.
    Resnet50,
    /// CosmoFlow: one sample of 2.8 MB in each file, batches of 1.
    Cosmoflow,
}

/// The parameters of a training workload.
struct Shape {
    name: &'static str,
    sample: u64,
    samples_per_file: u64,
    batch: usize,
    threads: usize,
    compute: Duration,
    minimum_percent: f64,
}

impl Training {
    /// All workloads.
    pub const ALL: [Self; 3] = [Self::Unet3d, Self::Resnet50, Self::Cosmoflow];

    fn shape(self) -> Shape {
        match self {
            Self::Unet3d => Shape {
                name: "unet3d",
                sample: 146_600_628,
                samples_per_file: 1,
                batch: 7,
                threads: 4,
                compute: Duration::from_millis(323),
                minimum_percent: 90.0,
            },
            Self::Resnet50 => Shape {
                name: "resnet50",
                sample: 114_660,
                samples_per_file: 1251,
                batch: 400,
                threads: 8,
                compute: Duration::from_millis(224),
                minimum_percent: 90.0,
            },
            Self::Cosmoflow => Shape {
                name: "cosmoflow",
                sample: 2_828_486,
                samples_per_file: 1,
                batch: 1,
                threads: 4,
                compute: Duration::from_micros(3500),
                minimum_percent: 70.0,
            },
        }
    }

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        self.shape().name
    }

    /// Time that an H100 computes on one batch. The loader sleeps for it.
    pub fn compute(self) -> Duration {
        self.shape().compute
    }

    /// The accelerator utilization in percent that MLPerf Storage requires at least.
    pub fn minimum_percent(self) -> f64 {
        self.shape().minimum_percent
    }
}

impl fmt::Display for Training {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Training {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|t| t.name() == text);
        found.ok_or_else(|| format!("no workload {text}: write {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Loads batches for emulated accelerators, as DLIO does: each member is an accelerator with its data loader. The loader
/// reads the samples of an epoch in random order, several at a time and up to two batches ahead; the accelerator waits
/// for a batch and then sleeps for the time that a real one would compute. Samples of all members are in one data set,
/// which is created first and of which each member reads a part.
///
/// The operations are `sample`, the read of one sample, and `batch`, whose latency is the time that the accelerator waits
/// for it. The utilization of the accelerators excludes the wait for the first batch, as in MLPerf Storage.
#[derive(Debug, Clone)]
pub struct Loader {
    /// The training workload.
    pub training: Training,
    /// Number of emulated accelerators; 1 or more.
    pub accelerators: usize,
    /// Batches of each accelerator; 1 or more.
    pub batches: usize,
    /// The size of a sample relative to the published one, above 0. The time to compute a batch stays the same.
    pub scale: f64,
}

impl Loader {
    /// Bytes of a sample; at least one.
    fn sample(&self) -> usize {
        ((self.training.shape().sample as f64 * self.scale) as usize).max(1)
    }

    /// Samples of one accelerator.
    fn samples(&self) -> u64 {
        (self.training.shape().batch * self.batches) as u64
    }

    /// Creates the files whose number modulo the number of accelerators is `rank`.
    async fn create(&self, directory: &Directory, rank: usize) -> Result<(), BenchError> {
        let per_file = self.training.shape().samples_per_file;
        let all = self.samples() * self.accelerators as u64;
        let record = directory.views(&vec![0x53; RECORD])?;
        for number in (0..all.div_ceil(per_file)).filter(|n| n % self.accelerators as u64 == rank as u64) {
            let file = directory.create(&format!("samples-{number}")).await?;
            let size = per_file.min(all - number * per_file) * self.sample() as u64;
            let mut at = 0;
            while at < size {
                let len = (size - at).min(RECORD as u64) as usize;
                file.write(at, &record.slice(0, len)).await?;
                at += len as u64;
            }
            file.commit().await?;
        }
        Ok(())
    }

    /// Reads one sample of the data set.
    async fn read(&self, directory: &Directory, sample: u64) -> Result<(), BenchError> {
        let per_file = self.training.shape().samples_per_file;
        let file = directory.open(&format!("samples-{}", sample / per_file)).await?;
        let size = self.sample();
        let read = file.read(sample % per_file * size as u64, size, |_, _| ()).await?;
        if read != size {
            return Err(BenchError::Client(format!("sample {sample} has {read} bytes instead of {size}")));
        }
        Ok(())
    }

    /// The samples of `rank` in random order.
    fn order(&self, rank: usize) -> Vec<u64> {
        let first = self.samples() * rank as u64;
        let mut order: Vec<u64> = (first..first + self.samples()).collect();
        let mut random = Random::new(rank as u64 + 1);
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        order
    }

    /// Loads all batches of `rank`, and sleeps after each.
    async fn train(&self, directory: &Directory, rank: usize, tally: &mut Tally) -> Result<(), BenchError> {
        let Shape { batch, threads, compute, .. } = self.training.shape();
        let clock = tally.clock().clone();
        let (mut loaded, mut batches) = mpsc::channel(PREFETCH * batch);
        let began = tally.begin();
        let loads = async {
            let read = |sample| {
                let clock = &clock;
                async move {
                    let start = clock.now();
                    self.read(directory, sample).await?;
                    Ok::<_, BenchError>(clock.now().duration_since(start))
                }
            };
            let mut samples = stream::iter(self.order(rank)).map(read).buffer_unordered(threads);
            while let Some(took) = samples.try_next().await? {
                if loaded.send(took).await.is_err() {
                    break; // The accelerator has ended.
                }
            }
            drop(loaded);
            Ok::<_, BenchError>(())
        };
        let accelerator = async {
            let (mut took, mut waits, mut first) = (Vec::new(), Vec::new(), None);
            for _ in 0..self.batches {
                let start = clock.now();
                took.extend(batches.by_ref().take(batch).collect::<Vec<_>>().await);
                waits.push(clock.now().duration_since(start));
                first.get_or_insert_with(|| clock.now());
                clock.sleep(compute).await;
            }
            let since_first = first.map_or(Duration::ZERO, |at| clock.now().duration_since(at));
            (took, waits, since_first)
        };
        let (done, (took, waits, since_first)) = futures::join!(loads, accelerator);
        done?;
        let bytes = self.samples() * self.sample() as u64;
        tally.whole("sample", self.samples(), bytes, &began);
        took.into_iter().for_each(|t: Duration| tally.latency("sample", t));
        tally.whole("batch", self.batches as u64, bytes, &began);
        waits.into_iter().for_each(|t| tally.latency("batch", t));
        tally.computed("batch", compute * self.batches as u32, since_first);
        Ok(())
    }
}

impl Workload for Loader {
    fn name(&self) -> &'static str {
        "loader"
    }

    fn members(&self) -> usize {
        self.accelerators
    }

    fn outstanding(&self) -> usize {
        self.training.shape().threads
    }

    fn bytes(&self) -> u64 {
        self.samples() * self.accelerators as u64 * self.sample() as u64
    }

    async fn member(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        self.create(directory, part.rank).await?;
        part.together().await?;
        self.train(directory, part.rank, tally).await?;
        part.together().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Target, run};

    #[test]
    fn the_accelerators_read_every_sample_once_in_another_order_than_that_of_the_files() {
        let loader = Loader { training: Training::Resnet50, accelerators: 3, batches: 4, scale: 1e-4 };
        let orders: Vec<u64> = (0..3).flat_map(|rank| loader.order(rank)).collect();
        assert!(!orders.is_sorted());
        let mut sorted = orders;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..3 * 4 * 400));
    }

    #[test]
    fn the_figures_count_samples_and_batches_and_the_utilization_is_at_most_100_percent() {
        let top = tempfile::tempdir().unwrap();
        // More samples than one file has, and a last file with fewer.
        let loader = Loader { training: Training::Resnet50, accelerators: 2, batches: 2, scale: 1e-3 };
        let figures = run(&loader, &Target::Directory(top.path().to_owned())).unwrap();
        let [sample, batch] = &figures[..] else { panic!("{figures:?}") };
        assert_eq!((sample.test.as_str(), sample.record, sample.threads), ("sample", 114, 2));
        assert_eq!((batch.test.as_str(), batch.record), ("batch", 114 * 400));
        assert!(sample.accelerator_percent.is_none());
        let busy = batch.accelerator_percent.unwrap();
        assert!(busy > 0.0 && busy <= 100.0, "{busy}");
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 0);
    }
}
