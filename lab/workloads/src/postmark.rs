//! PostMark: the small files of a mail server.

use millrace_buffer::Views;

use millrace_bench::{
    BenchError,
    random::Random,
    workload::{Directory, Part, Tally, Workload},
};

/// PostMark 1.5 with its defaults (Katcher, TR-3022): it creates a pool of files with uniformly distributed
/// sizes, executes transactions, and deletes the remaining files. A transaction is a pair of operations: read
/// a whole file or append to one, then create a file or delete one; each choice has probability 1/2. One
/// transaction runs at a time.
///
/// An append never makes a file larger than the range allows, as in the original. A file is written in one
/// piece (the original's stdio collects its blocks of 512 bytes) and flushed at its close, as NFS does.
#[derive(Debug, Clone)]
pub struct Postmark {
    /// Number of files at the start.
    pub files: u32,
    /// Number of transactions.
    pub transactions: u32,
    /// Bytes of the smallest file.
    pub low: u32,
    /// Bytes of the largest file.
    pub high: u32,
    /// Seed of the sizes and choices.
    pub seed: u64,
}

impl Postmark {
    /// File sizes of the original: 500 bytes to 9.77 KB.
    pub const SIZES: (u32, u32) = (500, 10_000);

    async fn run(&self, directory: &Directory, tally: &mut Tally) -> Result<(), BenchError> {
        if self.low == 0 || self.low > self.high {
            return Err(BenchError::Parameter(format!(
                "the smallest file has {} bytes and the largest {}; choose 1 <= smallest <= largest",
                self.low, self.high
            )));
        }
        let data = directory.views(&vec![0x6d; self.high as usize])?;
        let mut pool = Pool {
            directory,
            data,
            random: Random::new(self.seed),
            files: Vec::new(),
            made: 0,
            config: self,
        };
        for _ in 0..self.files {
            pool.create("create", tally).await?;
        }
        let began = tally.begin();
        for _ in 0..self.transactions {
            pool.transact(tally).await?;
        }
        tally.whole("transaction", self.transactions.into(), 0, &began);
        while !pool.files.is_empty() {
            pool.delete("delete", tally).await?;
        }
        Ok(())
    }
}

impl Workload for Postmark {
    fn name(&self) -> &'static str {
        "postmark"
    }

    fn bytes(&self) -> u64 {
        (u64::from(self.files) + u64::from(self.transactions)) * u64::from(self.high.max(4096))
    }

    async fn member(&self, directory: &Directory, _: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        self.run(directory, tally).await
    }
}

struct Pool<'a> {
    directory: &'a Directory,
    data: Views,
    random: Random,
    /// Numbers and sizes in bytes.
    files: Vec<(u64, u32)>,
    made: u64,
    config: &'a Postmark,
}

fn name(number: u64) -> String {
    format!("mail-{number}")
}

impl Pool<'_> {
    async fn transact(&mut self, tally: &mut Tally) -> Result<(), BenchError> {
        if !self.files.is_empty() {
            if self.random.coin() {
                self.read(tally).await?;
            } else {
                self.append(tally).await?;
            }
        }
        if self.files.is_empty() || self.random.coin() {
            self.create("create in transactions", tally).await
        } else {
            self.delete("delete in transactions", tally).await
        }
    }

    fn any(&mut self) -> usize {
        self.random.below(self.files.len() as u64) as usize
    }

    async fn create(&mut self, test: &'static str, tally: &mut Tally) -> Result<(), BenchError> {
        let size = self.random.between(self.config.low.into(), self.config.high.into()) as u32;
        let number = self.made;
        self.made += 1;
        let (directory, data) = (self.directory, self.data.slice(0, size as usize));
        let create = async {
            let file = directory.create(&name(number)).await?;
            file.write(0, &data).await?;
            file.commit().await
        };
        tally.one(test, size.into(), create).await?;
        self.files.push((number, size));
        Ok(())
    }

    async fn delete(&mut self, test: &'static str, tally: &mut Tally) -> Result<(), BenchError> {
        let at = self.any();
        let (number, _) = self.files.swap_remove(at);
        tally.one(test, 0, self.directory.remove(&name(number))).await
    }

    async fn read(&mut self, tally: &mut Tally) -> Result<(), BenchError> {
        let at = self.any();
        let (number, size) = self.files[at];
        let directory = self.directory;
        let read = async { directory.open(&name(number)).await?.read(0, size as usize, |_, _| ()).await };
        let read = tally.one("read", size.into(), read).await?;
        if read != size as usize {
            let name = name(number);
            return Err(BenchError::Client(format!("{name} has {read} bytes instead of the {size} written")));
        }
        Ok(())
    }

    async fn append(&mut self, tally: &mut Tally) -> Result<(), BenchError> {
        let at = self.any();
        let (number, size) = self.files[at];
        if size >= self.config.high {
            return Ok(());
        }
        let more = self.random.between(1, (self.config.high - size).into()) as u32;
        let (directory, data) = (self.directory, self.data.slice(0, more as usize));
        let append = async {
            let file = directory.open(&name(number)).await?;
            file.write(size.into(), &data).await?;
            file.commit().await
        };
        tally.one("append", more.into(), append).await?;
        self.files[at].1 += more;
        Ok(())
    }
}
