//! A random workload on several files, checked against the model.

use std::ops::Range;

use millrace_runtime::BoxFuture;
use parking_lot::Mutex;

use crate::{Model, Random};

/// The subject of the workload. Each call acts for one writer (a task or thread with its own open file) on
/// one file.
///
/// The error of a call is a text; its effect is then unknown, and the workload ends.
pub trait Subject: Send + Sync {
    /// Writes all of `data` at `offset`; false if the subject cancelled the write.
    fn write(
        &self,
        writer: usize,
        file: usize,
        offset: u64,
        data: Vec<u8>,
    ) -> BoxFuture<'_, Result<bool, String>>;

    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
    fn read(
        &self,
        writer: usize,
        file: usize,
        offset: u64,
        len: usize,
    ) -> BoxFuture<'_, Result<Vec<u8>, String>>;

    /// Sets the size.
    fn truncate(&self, writer: usize, file: usize, size: u64) -> BoxFuture<'_, Result<(), String>>;

    /// Makes all data of the file stable, written by any writer (fsync).
    fn sync(&self, writer: usize, file: usize) -> BoxFuture<'_, Result<(), String>>;

    /// Closes the writer's file, which makes written data stable, and reopens it; with `truncate` as an empty
    /// file (`O_TRUNC`).
    fn reopen(&self, writer: usize, file: usize, truncate: bool) -> BoxFuture<'_, Result<(), String>>;

    /// Content of a file after a loss of all unstable data, if it is known.
    fn stable(&self, file: usize) -> Option<Vec<u8>> {
        let _ = file;
        None
    }
}

/// The next operation of a writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Write this range.
    Write(Range<u64>),
    /// Read this range.
    Read(Range<u64>),
    /// Set this size.
    Truncate(u64),
    /// Commit.
    Sync,
    /// Close and reopen.
    Reopen,
    /// Close and reopen as an empty file.
    Empty,
}

/// Numbers of operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes.
    pub writes: u64,
    /// Reads, each checked.
    pub reads: u64,
    /// Truncations, including those at open.
    pub truncations: u64,
    /// Commits, including those at close.
    pub commits: u64,
}

/// A random workload of several writers on shared files.
#[derive(Debug)]
pub struct Workload {
    /// The bytes that may be read.
    pub model: Model,
    files: usize,
    size: u64,
    longest: u64,
    seed: u64,
    counts: Mutex<Counts>,
}

impl Workload {
    /// Creates a workload on `files` files of at most `size` bytes, with writes of at most `longest` bytes.
    pub fn new(files: usize, size: u64, longest: u64, seed: u64) -> Self {
        let model = Model::new(files, size);
        Self { model, files, size, longest, seed, counts: Mutex::default() }
    }

    /// Numbers of operations so far.
    pub fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    /// The random steps of a writer.
    pub fn steps(&self, writer: usize) -> impl Iterator<Item = (usize, Step)> + use<> {
        let (files, size, longest) = (self.files, self.size, self.longest);
        let mut random = Random::new(self.seed ^ (writer as u64 + 1).rotate_left(32));
        std::iter::from_fn(move || {
            let file = random.below(files as u64) as usize;
            // Start offsets are close to each other and often at block boundaries, so that ranges overlap.
            let align = [1, 512, 4096][random.below(3) as usize];
            let start = random.below(size) / align * align;
            let end = (start + 1 + random.below(longest)).min(size);
            let step = match random.below(32) {
                0..=15 => Step::Write(start..end),
                16..=21 => Step::Read(start..end),
                22..=24 => Step::Truncate(start),
                25..=28 => Step::Sync,
                29..=30 => Step::Reopen,
                _ => Step::Empty,
            };
            Some((file, step))
        })
    }

    /// Executes one step, and checks the data that it reads.
    ///
    /// # Errors
    /// That of the subject; a mismatch of the data.
    pub async fn step(
        &self,
        on: &impl Subject,
        writer: usize,
        file: usize,
        step: Step,
    ) -> Result<(), String> {
        match step {
            Step::Write(range) => {
                let (id, data) = self.model.begin_write(file, range.clone());
                match on.write(writer, file, range.start, data).await? {
                    true => self.model.end(file, id),
                    false => self.model.cancel(file, id),
                }
                self.counts.lock().writes += 1;
            }
            Step::Read(range) => self.read(on, writer, file, range).await?,
            Step::Truncate(size) => {
                let id = self.model.begin_truncate(file, size);
                on.truncate(writer, file, size).await?;
                self.model.end(file, id);
                self.counts.lock().truncations += 1;
            }
            Step::Sync => self.commit(on, file, on.sync(writer, file)).await?,
            Step::Reopen => self.commit(on, file, on.reopen(writer, file, false)).await?,
            Step::Empty => {
                let id = self.model.begin_truncate(file, 0);
                on.reopen(writer, file, true).await?;
                self.model.end(file, id);
                self.counts.lock().truncations += 1;
            }
        }
        Ok(())
    }

    async fn read(
        &self,
        on: &impl Subject,
        writer: usize,
        file: usize,
        range: Range<u64>,
    ) -> Result<(), String> {
        let started = self.model.begin();
        let len = (range.end - range.start) as usize;
        let mut data = on.read(writer, file, range.start, len).await?;
        data.resize(len, 0); // The model treats data beyond the end of the file as a hole.
        self.model.check(file, &started, range.start, &data).map_err(|m| m.to_string())?;
        self.model.finish(started);
        self.counts.lock().reads += 1;
        Ok(())
    }

    /// Runs a call that makes a file stable, and checks the stable data afterwards.
    async fn commit(
        &self,
        on: &impl Subject,
        file: usize,
        call: BoxFuture<'_, Result<(), String>>,
    ) -> Result<(), String> {
        let started = self.model.begin();
        call.await?;
        if let Some(mut stable) = on.stable(file) {
            stable.resize(self.size as usize, 0);
            let checked = self.model.check(file, &started, 0, &stable);
            checked.map_err(|m| format!("in stable storage: {m}"))?;
        }
        self.model.finish(started);
        self.counts.lock().commits += 1;
        Ok(())
    }

    /// Executes the steps of a writer while `more` is true for the number of the step.
    ///
    /// # Errors
    /// Those of [`Self::step`], with the number of the step.
    pub async fn run_writer(
        &self,
        on: &impl Subject,
        writer: usize,
        more: impl Fn(usize) -> bool,
    ) -> Result<(), String> {
        for (number, (file, step)) in self.steps(writer).enumerate().take_while(|(n, _)| more(*n)) {
            let text = format!("writer {writer}, step {number}, file {file}, {step:?}");
            self.step(on, writer, file, step).await.map_err(|e| format!("{text}: {e}"))?;
        }
        Ok(())
    }

    /// Commits each file and reads it completely, after all writers have ended.
    ///
    /// # Errors
    /// Those of [`Self::step`].
    pub async fn finish(&self, on: &impl Subject) -> Result<(), String> {
        for file in 0..self.files {
            self.step(on, 0, file, Step::Sync)
                .await
                .map_err(|e| format!("last commit of file {file}: {e}"))?;
            let all = Step::Read(0..self.size);
            self.step(on, 0, file, all).await.map_err(|e| format!("after the last commit: {e}"))?;
        }
        Ok(())
    }
}
