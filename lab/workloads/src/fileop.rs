//! fileop of the IOzone suite: the latency of each operation on names.

use millrace_bench::{
    BenchError,
    workload::{Directory, Part, Tally, Workload},
};

/// `fileop -f FACTOR -s SIZE`: FACTOR directories, FACTOR directories in each of them, and FACTOR files in
/// each of those. The workload applies one kind of operation after the other to all of them, one call at a
/// time, and measures the latency of each.
///
/// The kinds are those of the original: mkdir, create, write (with the flush that close(2) implies on NFS),
/// stat, open, read, access, chmod, readdir, link, unlink (of that link), delete, rmdir. It omits those kinds
/// of the original that make no call on the network (`close` of a file without new data, `lseek`).
#[derive(Debug, Clone)]
pub struct Fileop {
    /// Directories in each directory, and files in each of the lower directories.
    pub factor: u32,
    /// Bytes of each file; 0 omits writes and reads.
    pub size: u32,
}

impl Fileop {
    async fn run(&self, top: &Directory, tally: &mut Tally) -> Result<(), BenchError> {
        let n = self.factor;
        let mut uppers = Vec::new();
        let mut dirs = Vec::new();
        for i in 0..n {
            let upper = tally.one("mkdir", 0, top.mkdir(&format!("d{i}"))).await?;
            for j in 0..n {
                dirs.push(tally.one("mkdir", 0, upper.mkdir(&format!("d{j}"))).await?);
            }
            uppers.push(upper);
        }
        let data = top.views(&vec![0x61; self.size as usize])?;
        let size = u64::from(self.size);
        let names: Vec<_> = (0..n).map(|i| format!("f{i}")).collect();
        for dir in &dirs {
            for name in &names {
                let file = tally.one("create", 0, dir.create(name)).await?;
                if size > 0 {
                    let written = async {
                        file.write(0, &data).await?;
                        file.commit().await
                    };
                    tally.one("write", size, written).await?;
                }
            }
        }
        for dir in &dirs {
            for name in &names {
                tally.one("stat", 0, dir.stat(name)).await?;
            }
        }
        self.read(&dirs, &names, tally).await?;
        for dir in &dirs {
            for name in &names {
                tally.one("access", 0, dir.access(name)).await?;
            }
        }
        for dir in &dirs {
            for name in &names {
                tally.one("chmod", 0, dir.chmod(name, 0o600)).await?;
            }
        }
        for dir in &dirs {
            tally.one("readdir", 0, dir.list()).await?;
        }
        self.names(&dirs, &names, tally).await?;
        for (i, upper) in uppers.iter().enumerate() {
            for j in 0..n {
                tally.one("rmdir", 0, upper.rmdir(&format!("d{j}"))).await?;
            }
            tally.one("rmdir", 0, top.rmdir(&format!("d{i}"))).await?;
        }
        Ok(())
    }

    async fn read(&self, dirs: &[Directory], names: &[String], tally: &mut Tally) -> Result<(), BenchError> {
        for dir in dirs {
            for name in names {
                let file = tally.one("open", 0, dir.open(name)).await?;
                if self.size > 0 {
                    let size = self.size as usize;
                    let read = tally.one("read", size as u64, file.read(0, size, |_, _| ())).await?;
                    if read != size {
                        return Err(BenchError::Client(format!("{name} has {read} bytes instead of {size}")));
                    }
                }
            }
        }
        Ok(())
    }

    async fn names(&self, dirs: &[Directory], names: &[String], tally: &mut Tally) -> Result<(), BenchError> {
        let link = |name: &String| format!("{name}.link");
        for dir in dirs {
            for name in names {
                tally.one("link", 0, dir.link(name, &link(name))).await?;
            }
        }
        for dir in dirs {
            for name in names {
                tally.one("unlink", 0, dir.remove(&link(name))).await?;
            }
        }
        for dir in dirs {
            for name in names {
                tally.one("delete", 0, dir.remove(name)).await?;
            }
        }
        Ok(())
    }
}

impl Workload for Fileop {
    fn name(&self) -> &'static str {
        "fileop"
    }

    fn bytes(&self) -> u64 {
        u64::from(self.factor).pow(3) * u64::from(self.size.max(4096))
    }

    async fn member(&self, directory: &Directory, _: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        self.run(directory, tally).await
    }
}
