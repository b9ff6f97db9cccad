//! A file system whose calls take time.

use std::{ops::Range, sync::Arc};

use millrace_runtime::BoxFuture;
use millrace_vfs::{
    Access, Attr, Copied, CreateHow, Created, DirPage, FileSystem, FileSystemRef, Handle, Identity,
    MaybeReady, NewNode, Op, Read, ReadDirLimits, SeekTarget, SetAttr, Stability, Time, Views, Wcc, Written,
    forward,
};

use super::Cost;

/// Delays the calls of `fs` by `cost`: a call first waits for the lookup of its handles, then runs, and if it
/// succeeds waits for the transfer of its data.
pub(super) struct Timed {
    fs: FileSystemRef,
    cost: Arc<dyn Cost>,
}

impl Timed {
    pub(super) fn new(fs: FileSystemRef, cost: Arc<dyn Cost>) -> Self {
        Self { fs, cost }
    }

    /// Runs `call` after the lookup of `files`.
    fn after<T: Send + Unpin + 'static>(
        &self,
        files: &[Handle],
        call: impl FnOnce(&dyn FileSystem) -> Op<T> + Send + 'static,
    ) -> Op<T> {
        let (fs, look_up) = (Arc::clone(&self.fs), self.cost.look_up(files));
        MaybeReady::wait(async move {
            look_up.await;
            call(&*fs).await
        })
    }

    /// As [`Self::after`] for a call that transfers data of `file`. `moved` returns the cost of the result.
    fn moving<T: Send + Unpin + 'static>(
        &self,
        file: Handle,
        call: impl FnOnce(&dyn FileSystem) -> Op<T> + Send + 'static,
        moved: impl FnOnce(&dyn Cost, &T) -> BoxFuture<'static, ()> + Send + 'static,
    ) -> Op<T> {
        let (called, cost) = (self.after(&[file], call), Arc::clone(&self.cost));
        MaybeReady::wait(async move {
            let done = called.await?;
            moved(&*cost, &done).await;
            Ok(done)
        })
    }

    /// As [`Self::after`] for a call that may remove the last link of an object, the entry `name` of `dir`.
    fn replacing<T: Send + Unpin + 'static>(
        &self,
        files: &[Handle],
        (dir, name): (Handle, &[u8]),
        call: impl FnOnce(&dyn FileSystem) -> Op<T> + Send + 'static,
    ) -> Op<T> {
        let (fs, cost, name) = (Arc::clone(&self.fs), Arc::clone(&self.cost), name.to_vec());
        let look_up = self.cost.look_up(files);
        MaybeReady::wait(async move {
            look_up.await;
            let old = fs.lookup(&Identity::root(), &dir, &name).await;
            let done = call(&*fs).await;
            if let (Ok(_), Ok((old, _))) = (&done, old)
                && fs.getattr(&old).await.is_err()
            {
                cost.removed(&old);
            }
            done
        })
    }
}

impl FileSystem for Timed {
    forward!(fs: root info stat write_verifier);

    fn getattr(&self, file: &Handle) -> Op<Attr> {
        let at = *file;
        self.after(&[at], move |fs| fs.getattr(&at))
    }

    fn setattr(&self, who: &Identity, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Op<Wcc> {
        let (who, at, set, cost) = (who.clone(), *file, *set, Arc::clone(&self.cost));
        let size = set.size;
        let done = self.after(&[at], move |fs| fs.setattr(&who, &at, &set, guard));
        done.map(move |done| done.inspect(|_| size.into_iter().for_each(|size| cost.resized(&at, size))))
    }

    fn lookup(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        let (who, at, name) = (who.clone(), *dir, name.to_vec());
        self.after(&[at], move |fs| fs.lookup(&who, &at, &name))
    }

    fn access(&self, who: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)> {
        let (who, at) = (who.clone(), *file);
        self.after(&[at], move |fs| fs.access(&who, &at, wanted))
    }

    fn readlink(&self, who: &Identity, link: &Handle) -> Op<(Vec<u8>, Attr)> {
        let (who, at) = (who.clone(), *link);
        self.after(&[at], move |fs| fs.readlink(&who, &at))
    }

    fn read(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        let (who, at) = (who.clone(), *file);
        let moved = move |cost: &dyn Cost, read: &Read| cost.read(&at, offset, read.data.len() as u64);
        self.moving(at, move |fs| fs.read(&who, &at, offset, count), moved)
    }

    fn write(
        &self,
        who: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        stable: Stability,
    ) -> Op<Written> {
        let (who, at, can_lose) = (who.clone(), *file, self.cost.can_lose());
        let moved = move |cost: &dyn Cost, written: &Written| {
            cost.write(&at, offset, written.count.into(), stable != Stability::Unstable)
        };
        let done = self.moving(at, move |fs| fs.write(&who, &at, offset, data, stable), moved);
        let unstable = move |w: Written| if can_lose { Written { committed: stable, ..w } } else { w };
        done.map(move |done| done.map(unstable))
    }

    fn commit(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Wcc> {
        let (who, at) = (who.clone(), *file);
        self.moving(at, move |fs| fs.commit(&who, &at, offset, count), move |cost, _| cost.commit(&at))
    }

    fn allocate(&self, who: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        let (who, at) = (who.clone(), *file);
        self.after(&[at], move |fs| fs.allocate(&who, &at, offset, length))
    }

    fn deallocate(&self, who: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        let (who, at) = (who.clone(), *file);
        self.after(&[at], move |fs| fs.deallocate(&who, &at, offset, length))
    }

    fn zero(&self, who: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        let (who, at) = (who.clone(), *file);
        self.after(&[at], move |fs| fs.zero(&who, &at, offset, length))
    }

    fn seek(&self, who: &Identity, file: &Handle, range: Range<u64>, target: SeekTarget) -> Op<Option<u64>> {
        let (who, at) = (who.clone(), *file);
        self.after(&[at], move |fs| fs.seek(&who, &at, range, target))
    }

    fn copy(
        &self,
        who: &Identity,
        source: &Handle,
        offset: u64,
        destination: &Handle,
        at: u64,
        length: u64,
    ) -> Op<Copied> {
        let (who, from, to) = (who.clone(), *source, *destination);
        self.after(&[from, to], move |fs| fs.copy(&who, &from, offset, &to, at, length))
    }

    fn create(&self, who: &Identity, dir: &Handle, name: &[u8], how: &CreateHow) -> Op<Created> {
        let (who, at, name, how, cost) = (who.clone(), *dir, name.to_vec(), *how, Arc::clone(&self.cost));
        let look_up = self.cost.look_up(&[at]);
        let fs = Arc::clone(&self.fs);
        MaybeReady::wait(async move {
            look_up.await;
            let old = fs.lookup(&Identity::root(), &at, &name).await.is_ok();
            let made = fs.create(&who, &at, &name, &how).await;
            match &made {
                Ok(made) if old => cost.resized(&made.handle, made.attr.size),
                Ok(made) => cost.created(&made.handle),
                Err(_) => {}
            }
            made
        })
    }

    fn create_node(
        &self,
        who: &Identity,
        dir: &Handle,
        name: &[u8],
        node: &NewNode,
        set: &SetAttr,
    ) -> Op<Created> {
        let (who, at, name, node, set) = (who.clone(), *dir, name.to_vec(), node.clone(), *set);
        let cost = Arc::clone(&self.cost);
        let made = self.after(&[at], move |fs| fs.create_node(&who, &at, &name, &node, &set));
        made.map(move |made| made.inspect(|made| cost.created(&made.handle)))
    }

    fn remove(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        let (who, at, gone) = (who.clone(), *dir, name.to_vec());
        self.replacing(&[at], (at, name), move |fs| fs.remove(&who, &at, &gone))
    }

    fn rmdir(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        let (who, at, gone) = (who.clone(), *dir, name.to_vec());
        self.replacing(&[at], (at, name), move |fs| fs.rmdir(&who, &at, &gone))
    }

    fn rename(
        &self,
        who: &Identity,
        from_dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> Op<(Wcc, Wcc)> {
        let (who, source, old, target, new) = (who.clone(), *from_dir, from.to_vec(), *to_dir, to.to_vec());
        self.replacing(&[source, target], (target, to), move |fs| {
            fs.rename(&who, &source, &old, &target, &new)
        })
    }

    fn link(&self, who: &Identity, file: &Handle, dir: &Handle, name: &[u8]) -> Op<(Attr, Wcc)> {
        let (who, file, at, name) = (who.clone(), *file, *dir, name.to_vec());
        self.after(&[file, at], move |fs| fs.link(&who, &file, &at, &name))
    }

    fn readdir(
        &self,
        who: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        let (who, at) = (who.clone(), *dir);
        self.after(&[at], move |fs| fs.readdir(&who, &at, cookie, verifier, limits))
    }
}

#[cfg(test)]
mod tests {
    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_runtime::virtual_time::VirtualTime;
    use millrace_vfs::{
        FsError,
        memory::{MemoryConfig, MemoryFs},
    };
    use parking_lot::Mutex;

    use super::*;

    /// Records the calls.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl Recorder {
        fn record(&self, what: String) -> BoxFuture<'static, ()> {
            self.0.lock().push(what);
            Box::pin(std::future::ready(()))
        }
    }

    impl Cost for Recorder {
        fn read(&self, _file: &Handle, offset: u64, len: u64) -> BoxFuture<'static, ()> {
            self.record(format!("read {offset} {len}"))
        }

        fn write(&self, _file: &Handle, offset: u64, len: u64, stable: bool) -> BoxFuture<'static, ()> {
            self.record(format!("write {offset} {len} {stable}"))
        }

        fn commit(&self, _file: &Handle) -> BoxFuture<'static, ()> {
            self.record("commit".into())
        }

        fn removed(&self, _file: &Handle) {}
    }

    #[test]
    fn refused_calls_transfer_no_data() {
        let time = VirtualTime::new(1);
        let arena = Arena::new(ArenaConfig { limit: 8 << 20, ..ArenaConfig::default() });
        let fs = MemoryFs::new(MemoryConfig {
            capacity_bytes: 100_000,
            ..MemoryConfig::new(arena.clone(), time.runtime())
        });
        let recorder = Arc::new(Recorder::default());
        let timed = Timed::new(fs, Arc::clone(&recorder) as Arc<dyn Cost>);
        let data = |n| Views::from(arena.alloc(n).unwrap().freeze());
        time.block_on(async {
            let (root, other) = (Identity::root(), Identity { uid: 7, gid: 7, ..Identity::root() });
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            let made =
                timed.create(&root, &timed.root(), b"f", &CreateHow::Guarded(set)).await.unwrap().handle;
            let write = |who, at, n| timed.write(who, &made, at, data(n), Stability::FileSync);
            assert_eq!(write(&other, 0, 10).await.unwrap_err(), FsError::Access);
            assert_eq!(write(&root, 0, 200_000).await.unwrap_err(), FsError::NoSpc);
            assert_eq!(write(&root, u64::MAX, 10).await.unwrap_err(), FsError::FBig);
            assert_eq!(timed.read(&other, &made, 0, 10).await.unwrap_err(), FsError::Access);
            let nothing = Handle::from_array([9; 8]);
            assert!(timed.commit(&root, &nothing, 0, 0).await.is_err());
            assert!(recorder.0.lock().is_empty(), "{:?}", recorder.0);
            // A successful call transfers its data.
            write(&root, 5, 10).await.unwrap();
            timed.read(&root, &made, 10, 1000).await.unwrap();
            timed.commit(&root, &made, 0, 0).await.unwrap();
            assert_eq!(*recorder.0.lock(), ["write 5 10 true", "read 10 5", "commit"]);
        })
        .unwrap();
    }
}
