//! A source tree: unpacking it, and the file system calls of a build.

use millrace_buffer::Views;

use millrace_bench::{
    BenchError,
    random::Random,
    workload::{Directory, Part, Tally, Workload},
};

/// Files for each directory, about as in a Linux kernel of 2005.
const FILES_PER_DIRECTORY: u32 = 16;
/// Range of the most recent directories from which a parent is chosen, which makes the tree deep.
const SPREAD: u64 = 12;
/// Median size of the files in bytes.
const MEDIAN_SIZE: f64 = 4500.0;
/// Standard deviation of the logarithm of the sizes, which makes the mean about 11 KB.
const SIZE_SPREAD: f64 = 1.35;
/// Largest size of a file in bytes.
const LARGEST: f64 = 1_000_000.0;
/// Number of compiled files and of headers in 20 files; the others are neither.
const COMPILED: u64 = 9;
const HEADERS: u64 = 9;
/// Headers that one compilation opens.
const INCLUDED: u64 = 40;

/// A generated source tree.
///
/// The default has the size and shape of Linux 2.6.11, similar to the trees that the papers unpacked and
/// compiled: 17,090 files (Linux Kernel Development report, 2012) in about 1,070 directories, 190 MB, with
/// log-normally distributed sizes. The tree is generated, so that it needs no download. The same seed
/// produces the same tree.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Number of files.
    pub files: u32,
    /// Seed of names, sizes and places.
    pub seed: u64,
}

impl Default for Sources {
    fn default() -> Self {
        Self { files: 17_090, seed: 1 }
    }
}

struct SourceFile {
    dir: usize,
    name: String,
    size: u32,
}

struct Tree {
    /// The index of each directory's parent (an earlier directory) and its name. The first directory is the
    /// root.
    dirs: Vec<(usize, String)>,
    /// In the order of an archive: directory by directory.
    files: Vec<SourceFile>,
}

impl Sources {
    fn tree(&self) -> Tree {
        let mut random = Random::new(self.seed);
        let count = (self.files / FILES_PER_DIRECTORY).max(1) as usize;
        let mut dirs = vec![(0, "linux".to_owned())];
        while dirs.len() < count {
            let n = dirs.len();
            // One half of the directories is below a recent one, so that deep branches arise.
            let back = random.below(SPREAD.min(n as u64)) as usize;
            let parent = if random.coin() { n - 1 - back } else { random.below(n as u64) as usize };
            dirs.push((parent, format!("dir-{n}")));
        }
        let mut files: Vec<_> = (0..self.files)
            .map(|n| {
                let kind = match random.below(20) {
                    k if k < COMPILED => "c",
                    k if k < COMPILED + HEADERS => "h",
                    _ => "txt",
                };
                let size = (MEDIAN_SIZE * (SIZE_SPREAD * random.normal()).exp()).clamp(1.0, LARGEST);
                let dir = random.below(count as u64) as usize;
                SourceFile { dir, name: format!("file-{n}.{kind}"), size: size as u32 }
            })
            .collect();
        files.sort_by_key(|f| f.dir);
        Tree { dirs, files }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.tree().files.iter().map(|f| u64::from(f.size)).sum()
    }
}

impl Tree {
    async fn make_dirs(&self, top: &Directory, tally: &mut Tally) -> Result<Vec<Directory>, BenchError> {
        let mut made: Vec<Directory> = Vec::with_capacity(self.dirs.len());
        for (parent, name) in &self.dirs {
            let parent = made.get(*parent).unwrap_or(top);
            let dir = tally.one("mkdir", 0, parent.mkdir(name)).await?;
            made.push(dir);
        }
        Ok(made)
    }

    /// Makes all files with their content, as tar does: create, write, flush (which close(2) implies on NFS),
    /// set the mode.
    async fn unpack(&self, top: &Directory, tally: &mut Tally) -> Result<Vec<Directory>, BenchError> {
        let dirs = self.make_dirs(top, tally).await?;
        let data = top.views(&vec![0x73; LARGEST as usize])?;
        for f in &self.files {
            let dir = &dirs[f.dir];
            let extract = async {
                let file = dir.create(&f.name).await?;
                file.write(0, &data.slice(0, f.size as usize)).await?;
                file.commit().await?;
                dir.chmod(&f.name, 0o664).await
            };
            tally.one("extract", f.size.into(), extract).await?;
        }
        Ok(dirs)
    }
}

/// `tar xf` of a source tree whose archive is in memory: a directory, then its files, one call at a time.
#[derive(Debug, Clone, Default)]
pub struct Untar {
    /// The tree.
    pub sources: Sources,
}

impl Untar {
    async fn run(&self, top: &Directory, tally: &mut Tally) -> Result<(), BenchError> {
        let tree = self.sources.tree();
        let bytes = tree.files.iter().map(|f| u64::from(f.size)).sum();
        let began = tally.begin();
        tree.unpack(top, tally).await?;
        tally.whole("untar", tree.files.len() as u64, bytes, &began);
        Ok(())
    }
}

impl Workload for Untar {
    fn name(&self) -> &'static str {
        "untar"
    }

    fn bytes(&self) -> u64 {
        self.sources.bytes() + u64::from(self.sources.files) * 4096
    }

    async fn member(&self, directory: &Directory, _: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        self.run(directory, tally).await
    }
}

/// The file system calls of `make` in a source tree, without the compiler. No CPU time is spent between the
/// calls, so that only the file system limits the figures; a real build is slower.
///
/// For each compiled file: stat it and its object (which does not exist), open and read it, look up 40
/// headers and read those that were not read before (a page cache has the others; opening them again costs
/// one lookup each, for close-to-open consistency), create the object and write it with the length of the
/// source. At the end all objects are read and the linked image is written. One call is made at a time (`make
/// -j1`).
#[derive(Debug, Clone, Default)]
pub struct Compile {
    /// The tree. It is unpacked before the measurement.
    pub sources: Sources,
}

impl Compile {
    async fn run(&self, top: &Directory, tally: &mut Tally) -> Result<(), BenchError> {
        let tree = self.sources.tree();
        let dirs = tree.unpack(top, &mut tally.sibling()).await?;
        let headers: Vec<_> = tree.files.iter().filter(|f| f.name.ends_with(".h")).collect();
        let sources: Vec<_> = tree.files.iter().filter(|f| f.name.ends_with(".c")).collect();
        let data = top.views(&vec![0x6f; LARGEST as usize])?;
        let mut make = Make {
            dirs: &dirs,
            read: vec![false; headers.len()],
            headers,
            data,
            random: Random::new(self.sources.seed ^ 0x6d61_6b65),
        };
        let began = tally.begin();
        for source in &sources {
            make.compile(source, tally).await?;
        }
        make.link(&sources, top, tally).await?;
        tally.whole("make", sources.len() as u64, 0, &began);
        Ok(())
    }
}

impl Workload for Compile {
    fn name(&self) -> &'static str {
        "compile"
    }

    fn bytes(&self) -> u64 {
        // Sources, objects and the image.
        3 * (self.sources.bytes() + u64::from(self.sources.files) * 4096)
    }

    async fn member(&self, directory: &Directory, _: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        self.run(directory, tally).await
    }
}

struct Make<'a> {
    dirs: &'a [Directory],
    headers: Vec<&'a SourceFile>,
    /// Whether each header has been read.
    read: Vec<bool>,
    data: Views,
    random: Random,
}

impl Make<'_> {
    async fn compile(&mut self, source: &SourceFile, tally: &mut Tally) -> Result<(), BenchError> {
        let dir = &self.dirs[source.dir];
        let object = object_name(source);
        tally.one("stat", 0, dir.stat(&source.name)).await?;
        // Fails, because the object does not exist.
        let missing =
            tally.one("stat of what is not there", 0, async { Ok(dir.stat(&object).await) }).await?;
        if missing.is_ok() {
            return Err(BenchError::Client(format!("{object} exists before it was created")));
        }
        self.read_whole(source, tally).await?;
        for _ in 0..INCLUDED.min(self.headers.len() as u64) {
            // The distribution prefers the first headers, as the ones that most files include.
            let squared = self.random.below(1 << 16) * self.random.below(1 << 16);
            let at = ((u128::from(squared) * self.headers.len() as u128) >> 32) as usize;
            let header = self.headers[at];
            if std::mem::replace(&mut self.read[at], true) {
                tally.one("stat", 0, self.dirs[header.dir].stat(&header.name)).await?;
            } else {
                self.read_whole(header, tally).await?;
            }
        }
        let data = self.data.slice(0, source.size as usize);
        let write = async {
            let file = dir.create(&object).await?;
            file.write(0, &data).await?;
            file.commit().await
        };
        tally.one("write an object", source.size.into(), write).await
    }

    async fn read_whole(&self, f: &SourceFile, tally: &mut Tally) -> Result<(), BenchError> {
        read_whole(&self.dirs[f.dir], &f.name, f.size, "read a source", tally).await
    }

    async fn link(
        &self,
        sources: &[&SourceFile],
        top: &Directory,
        tally: &mut Tally,
    ) -> Result<(), BenchError> {
        let image = top.create("vmlinux").await?;
        let mut at = 0;
        for source in sources {
            let name = object_name(source);
            read_whole(&self.dirs[source.dir], &name, source.size, "read an object", tally).await?;
            let data = self.data.slice(0, source.size as usize);
            tally.one("write the image", source.size.into(), image.write(at, &data)).await?;
            at += u64::from(source.size);
        }
        image.commit().await
    }
}

fn object_name(source: &SourceFile) -> String {
    format!("{}.o", source.name)
}

async fn read_whole(
    dir: &Directory,
    name: &str,
    size: u32,
    test: &'static str,
    tally: &mut Tally,
) -> Result<(), BenchError> {
    let read = async { dir.open(name).await?.read(0, size as usize, |_, _| ()).await };
    let read = tally.one(test, size.into(), read).await?;
    if read == size as usize {
        return Ok(());
    }
    Err(BenchError::Client(format!("{name} has {read} bytes instead of the {size} written")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_the_documented_size_and_shape_and_depends_on_the_seed_only() {
        let sources = Sources::default();
        let tree = sources.tree();
        assert_eq!(tree.files.len(), 17_090);
        assert_eq!(tree.dirs.len(), 1068);
        let mean = sources.bytes() / 17_090;
        assert!((9_500..12_500).contains(&mean), "{mean}");
        let mut sizes: Vec<_> = tree.files.iter().map(|f| f.size).collect();
        sizes.sort_unstable();
        assert!((4_000..5_000).contains(&sizes[sizes.len() / 2]));
        let deep = (1..tree.dirs.len()).map(|mut at| {
            let mut depth = 0;
            while at > 0 {
                at = tree.dirs[at].0;
                depth += 1;
            }
            depth
        });
        assert!((5..60).contains(&deep.max().unwrap()));
        assert!(tree.dirs.iter().enumerate().skip(1).all(|(n, (parent, _))| *parent < n));
        let again = Sources::default().tree();
        assert!(tree.files.iter().zip(&again.files).all(|(a, b)| (&a.name, a.size) == (&b.name, b.size)));
        assert_ne!(Sources { seed: 2, ..sources }.bytes(), Sources::default().bytes());
    }
}
