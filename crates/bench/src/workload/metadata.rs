//! Rates of operations on names, in the manner of mdtest.

use std::future::Future;

use super::{Directory, Part, Tally, Workload};
use crate::BenchError;

/// The phases of mdtest (of the IOR suite) with a directory for each member (`mdtest -u`): directories and then empty
/// files are created, examined and removed, and a tree of directories is created and removed. The members begin each
/// phase together.
#[derive(Debug, Clone)]
pub struct Metadata {
    /// Number of members, each with its own connection; 1 or more.
    pub members: usize,
    /// Directories and files of each member; 1 or more.
    pub items: u32,
    /// Directories in each directory of the tree (`-b`).
    pub branch: u32,
    /// Levels of the tree below its top (`-z`).
    pub depth: u32,
}

impl Metadata {
    /// Runs one phase: `operation` for each number below `count`.
    async fn phase<F: Future<Output = Result<(), BenchError>>>(
        part: &Part,
        tally: &mut Tally,
        name: &'static str,
        count: u32,
        operation: impl Fn(u32) -> F,
    ) -> Result<(), BenchError> {
        part.together().await?;
        let began = tally.begin();
        for number in 0..count {
            let start = tally.now();
            operation(number).await?;
            tally.latency(name, tally.now().duration_since(start));
        }
        tally.whole(name, u64::from(count), 0, &began);
        Ok(())
    }

    /// Creates the tree below `top` level by level. Returns each directory with the name of a directory in it, parents
    /// first.
    async fn create_tree(&self, top: &Directory) -> Result<Vec<(Directory, String)>, BenchError> {
        let mut made = Vec::new();
        let mut level = vec![top.clone()];
        for _ in 0..self.depth {
            let mut next = Vec::new();
            for parent in &level {
                for number in 0..self.branch {
                    let name = format!("tree{number}");
                    next.push(parent.mkdir(&name).await?);
                    made.push((parent.clone(), name));
                }
            }
            level = next;
        }
        Ok(made)
    }

    /// Directories of the tree without its top.
    fn tree(&self) -> u64 {
        (1..=self.depth).map(|level| u64::from(self.branch).pow(level)).sum()
    }

    async fn trees(&self, own: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        part.together().await?;
        let began = tally.begin();
        let made = self.create_tree(own).await?;
        tally.whole("tree creation", made.len() as u64, 0, &began);
        part.together().await?;
        let began = tally.begin();
        for (parent, name) in made.iter().rev() {
            parent.rmdir(name).await?;
        }
        tally.whole("tree removal", made.len() as u64, 0, &began);
        Ok(())
    }
}

impl Workload for Metadata {
    fn name(&self) -> &'static str {
        "metadata"
    }

    fn members(&self) -> usize {
        self.members
    }

    fn bytes(&self) -> u64 {
        self.members as u64 * (2 * u64::from(self.items) + self.tree()) * 4096
    }

    async fn member(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        let own = &directory.mkdir(&format!("member{}", part.rank)).await?;
        let n = self.items;
        let (dir, file) = (|i| format!("dir{i}"), |i| format!("file{i}"));
        let mkdir = |i| async move { own.mkdir(&dir(i)).await.map(drop) };
        Self::phase(part, tally, "directory creation", n, mkdir).await?;
        let stat_dir = |i| async move { own.stat(&dir(i)).await.map(drop) };
        Self::phase(part, tally, "directory stat", n, stat_dir).await?;
        Self::phase(part, tally, "directory removal", n, |i| async move { own.rmdir(&dir(i)).await }).await?;
        let create = |i| async move { own.create(&file(i)).await.map(drop) };
        Self::phase(part, tally, "file creation", n, create).await?;
        let stat = |i| async move { own.stat(&file(i)).await.map(drop) };
        Self::phase(part, tally, "file stat", n, stat).await?;
        Self::phase(part, tally, "file removal", n, |i| async move { own.remove(&file(i)).await }).await?;
        self.trees(own, part, tally).await?;
        part.together().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Target, run};

    #[test]
    fn every_phase_has_a_rate_and_nothing_remains() {
        let top = tempfile::tempdir().unwrap();
        let metadata = Metadata { members: 2, items: 3, branch: 2, depth: 3 };
        assert_eq!(metadata.tree(), 2 + 4 + 8);
        let figures = run(&metadata, &Target::Directory(top.path().to_owned())).unwrap();
        let phases: Vec<_> = figures.iter().map(|f| f.test.as_str()).collect();
        let expected = [
            "directory creation",
            "directory stat",
            "directory removal",
            "file creation",
            "file stat",
            "file removal",
            "tree creation",
            "tree removal",
        ];
        assert_eq!(phases, expected);
        assert!(figures.iter().all(|f| f.ops_per_s.is_some_and(|rate| rate > 0.0)));
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 0);
    }
}
