//! The server's own files in the directories of exports, which clients do not see.

use std::sync::Arc;

use millrace_vfs::{
    Attr, CreateHow, Created, DirPage, FileSystem, FileSystemRef, FsError, FsResult, Handle, Identity,
    NewNode, Op, ReadDirLimits, SetAttr, Wcc, forward,
};

/// The names of the server's files begin with this.
const PREFIX: &[u8] = b".millrace.";

/// The name of the record of the persistent reservations of the disk in the file `name`.
pub(crate) fn reservations_of(name: &[u8]) -> Vec<u8> {
    [PREFIX, name, b".reservations"].concat()
}

/// Whether an entry with this name is the server's, also in a directory that ignores case.
fn is_own(name: &[u8]) -> bool {
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// A file system without the server's files: their names do not exist, and cannot be created.
pub(crate) struct WithoutOwnFiles(pub(crate) FileSystemRef);

impl WithoutOwnFiles {
    /// The result of `operation` if the entry `name` is not the server's, otherwise `refused`.
    fn unless_own<T>(name: &[u8], refused: FsError, operation: impl FnOnce() -> Op<T>) -> Op<T> {
        if is_own(name) { Op::Ready(Err(refused)) } else { operation() }
    }
}

impl FileSystem for WithoutOwnFiles {
    fn lookup(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        Self::unless_own(name, FsError::NoEnt, || self.0.lookup(caller, dir, name))
    }

    fn create(&self, caller: &Identity, dir: &Handle, name: &[u8], how: &CreateHow) -> Op<Created> {
        Self::unless_own(name, FsError::Access, || self.0.create(caller, dir, name, how))
    }

    fn create_node(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        node: &NewNode,
        set: &SetAttr,
    ) -> Op<Created> {
        Self::unless_own(name, FsError::Access, || self.0.create_node(caller, dir, name, node, set))
    }

    fn remove(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        Self::unless_own(name, FsError::NoEnt, || self.0.remove(caller, dir, name))
    }

    fn rmdir(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        Self::unless_own(name, FsError::NoEnt, || self.0.rmdir(caller, dir, name))
    }

    fn rename(
        &self,
        caller: &Identity,
        dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> Op<(Wcc, Wcc)> {
        Self::unless_own(from, FsError::NoEnt, || {
            Self::unless_own(to, FsError::Access, || self.0.rename(caller, dir, from, to_dir, to))
        })
    }

    fn link(&self, caller: &Identity, file: &Handle, dir: &Handle, name: &[u8]) -> Op<(Attr, Wcc)> {
        Self::unless_own(name, FsError::Access, || self.0.link(caller, file, dir, name))
    }

    fn readdir(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        let page = self.0.readdir(caller, dir, cookie, verifier, limits);
        let is_visible = |page: &DirPage| page.entries.iter().all(|entry| !is_own(&entry.name));
        if matches!(&page, Op::Ready(page) if page.as_ref().map_or(true, is_visible)) {
            return page;
        }
        let (fs, caller, dir) = (Arc::clone(&self.0), caller.clone(), *dir);
        Op::wait(async move { visible(page.await?, &fs, &caller, &dir, limits).await })
    }

    forward!(0: root info stat getattr setattr access readlink read write commit allocate deallocate zero seek copy
        clone_range xattr set_xattr list_xattrs remove_xattr hold write_verifier);
}

/// `page` without the server's files, or the next one that has others.
async fn visible(
    mut page: DirPage,
    fs: &FileSystemRef,
    caller: &Identity,
    dir: &Handle,
    limits: ReadDirLimits,
) -> FsResult<DirPage> {
    loop {
        let last = page.entries.last().map(|entry| entry.cookie);
        page.entries.retain(|entry| !is_own(&entry.name));
        match last {
            Some(last) if page.entries.is_empty() && !page.eof => {
                page = fs.readdir(caller, dir, last, page.verifier, limits).await?;
            }
            _ => return Ok(page),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_runtime::virtual_time::VirtualTime;
    use millrace_vfs::memory::{MemoryConfig, MemoryFs};

    use super::*;

    #[test]
    fn pages_of_any_size_list_all_other_files() {
        let time = VirtualTime::new(1);
        let arena = Arena::new(ArenaConfig { limit: 1 << 22, huge_pages: false });
        let fs: FileSystemRef = MemoryFs::new(MemoryConfig::new(arena, time.runtime()));
        let (clients, root, dir) = (WithoutOwnFiles(Arc::clone(&fs)), Identity::root(), fs.root());
        time.block_on(async {
            for name in [
                ".millrace.a",
                "b",
                ".millrace.c.reservations",
                ".MILLRACE.d",
                "e",
                ".millrace",
                ".millrace.f",
            ] {
                let how = CreateHow::Guarded(SetAttr::default());
                fs.create(&root, &dir, name.as_bytes(), &how).await.unwrap();
            }
            for max_entries in 1..8 {
                let limits = ReadDirLimits { max_entries, max_name_bytes: 1000, plus: false };
                let (mut names, mut cookie, mut verifier) = (Vec::new(), 0, [0; 8]);
                loop {
                    let page = clients.readdir(&root, &dir, cookie, verifier, limits).await.unwrap();
                    assert!(page.eof || !page.entries.is_empty(), "a page without progress");
                    cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
                    verifier = page.verifier;
                    names
                        .extend(page.entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
                    if page.eof {
                        break;
                    }
                }
                names.sort();
                assert_eq!(names, [".", "..", ".millrace", "b", "e"], "{max_entries} entries a page");
            }
        })
        .unwrap();
    }
}
