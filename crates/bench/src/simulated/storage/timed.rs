//! A file system whose calls take time.

use std::sync::Arc;

use runtime::BoxFuture;
use vfs::{
    Access, Attr, CreateHow, Created, DirPage, FileSystem, FileSystemRef, FsInfo, FsStat, Handle, Identity,
    MaybeReady, NewNode, Op, Read, ReadDirLimits, SetAttr, Stability, Time, Views, Wcc, Written,
};

use super::Cost;

/// `fs`, whose calls take the time of `cost`, and are carried out at its end.
pub(super) struct Timed {
    fs: FileSystemRef,
    cost: Arc<dyn Cost>,
}

impl Timed {
    pub(super) fn new(fs: FileSystemRef, cost: Arc<dyn Cost>) -> Self {
        Self { fs, cost }
    }

    /// Carries `call` out when `files` were looked up and `more` is done.
    fn after<T: Send + Unpin + 'static>(
        &self,
        files: &[Handle],
        more: Option<BoxFuture<'static, ()>>,
        call: impl FnOnce(&dyn FileSystem) -> Op<T> + Send + 'static,
    ) -> Op<T> {
        let (fs, look_up) = (Arc::clone(&self.fs), self.cost.look_up(files));
        MaybeReady::wait(async move {
            look_up.await;
            if let Some(more) = more {
                more.await;
            }
            call(&*fs).await
        })
    }

    /// As [`Self::after`] for what may take the last name `name` in `dir` from an object.
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
                cost.gone(&old);
            }
            done
        })
    }
}

impl FileSystem for Timed {
    fn root(&self) -> Handle {
        self.fs.root()
    }

    fn info(&self) -> FsInfo {
        self.fs.info()
    }

    fn stat(&self) -> Op<FsStat> {
        self.fs.stat()
    }

    fn getattr(&self, file: &Handle) -> Op<Attr> {
        let at = *file;
        self.after(&[at], None, move |fs| fs.getattr(&at))
    }

    fn setattr(&self, who: &Identity, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Op<Wcc> {
        let (who, at, set, cost) = (who.clone(), *file, *set, Arc::clone(&self.cost));
        let size = set.size;
        let done = self.after(&[at], None, move |fs| fs.setattr(&who, &at, &set, guard));
        done.map(move |done| done.inspect(|_| size.into_iter().for_each(|size| cost.cut(&at, size))))
    }

    fn lookup(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        let (who, at, name) = (who.clone(), *dir, name.to_vec());
        self.after(&[at], None, move |fs| fs.lookup(&who, &at, &name))
    }

    fn access(&self, who: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)> {
        let (who, at) = (who.clone(), *file);
        self.after(&[at], None, move |fs| fs.access(&who, &at, wanted))
    }

    fn readlink(&self, who: &Identity, link: &Handle) -> Op<(Vec<u8>, Attr)> {
        let (who, at) = (who.clone(), *link);
        self.after(&[at], None, move |fs| fs.readlink(&who, &at))
    }

    fn read(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        let (who, at) = (who.clone(), *file);
        let data = self.cost.read(&at, offset, count.into());
        self.after(&[at], Some(data), move |fs| fs.read(&who, &at, offset, count))
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
        let moved = self.cost.write(&at, offset, data.len() as u64, stable != Stability::Unstable);
        let done = self.after(&[at], Some(moved), move |fs| fs.write(&who, &at, offset, data, stable));
        let unstable = move |w: Written| if can_lose { Written { committed: stable, ..w } } else { w };
        done.map(move |done| done.map(unstable))
    }

    fn commit(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Wcc> {
        let (who, at) = (who.clone(), *file);
        self.after(&[at], Some(self.cost.commit(&at)), move |fs| fs.commit(&who, &at, offset, count))
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.fs.write_verifier()
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
                Ok(made) if old => cost.cut(&made.handle, made.attr.size),
                Ok(made) => cost.made(&made.handle),
                Err(_) => {}
            }
            made
        })
    }

    fn make(&self, who: &Identity, dir: &Handle, name: &[u8], node: &NewNode, set: &SetAttr) -> Op<Created> {
        let (who, at, name, node, set) = (who.clone(), *dir, name.to_vec(), node.clone(), *set);
        let cost = Arc::clone(&self.cost);
        let made = self.after(&[at], None, move |fs| fs.make(&who, &at, &name, &node, &set));
        made.map(move |made| made.inspect(|made| cost.made(&made.handle)))
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
        self.after(&[file, at], None, move |fs| fs.link(&who, &file, &at, &name))
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
        self.after(&[at], None, move |fs| fs.readdir(&who, &at, cookie, verifier, limits))
    }
}
