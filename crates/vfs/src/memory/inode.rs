//! One object of the file system.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{content::Content, directory::Directory};
use crate::{Attr, FileKind, FsError, FsResult, Handle, Time};

/// Which inode: its place in the table, and how often that place was filled before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InodeId {
    pub(super) index: u32,
    pub(super) generation: u64,
}

impl InodeId {
    /// Handle bytes: instance of the file system (8), generation (8), index (4), all big-endian.
    const HANDLE_BYTES: usize = 20;

    /// The handle of this inode in the file system instance `instance`.
    pub(super) fn handle(self, instance: u64) -> Handle {
        let mut bytes = [0; Self::HANDLE_BYTES];
        bytes[..8].copy_from_slice(&instance.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_be_bytes());
        bytes[16..].copy_from_slice(&self.index.to_be_bytes());
        Handle::from_array(bytes)
    }

    /// The identity in `handle`: [`FsError::BadHandle`] if it cannot be one of ours, [`FsError::Stale`] if it is
    /// another instance's.
    pub(super) fn of_handle(handle: &Handle, instance: u64) -> FsResult<Self> {
        let bytes: [u8; Self::HANDLE_BYTES] = handle.as_bytes().try_into().map_err(|_| FsError::BadHandle)?;
        let [i0, i1, i2, i3, i4, i5, i6, i7, g0, g1, g2, g3, g4, g5, g6, g7, index @ ..] = bytes;
        if u64::from_be_bytes([i0, i1, i2, i3, i4, i5, i6, i7]) != instance {
            return Err(FsError::Stale);
        }
        let generation = u64::from_be_bytes([g0, g1, g2, g3, g4, g5, g6, g7]);
        Ok(Self { index: u32::from_be_bytes(index), generation })
    }

    /// The number that users see. 0 is avoided, because some programs take it for "no file".
    pub(super) fn fileid(self) -> u64 {
        u64::from(self.index) + 1
    }
}

/// An object: what never changes, and under its lock what does.
pub(super) struct Inode {
    pub(super) id: InodeId,
    pub(super) kind: FileKind,
    state: RwLock<State>,
}

/// The part of an inode that changes.
pub(super) struct State {
    pub(super) mode: u32,
    /// 0: the last link is gone, every handle is stale.
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    pub(super) body: Body,
}

/// What differs by kind.
pub(super) enum Body {
    File(Content),
    Directory(Box<Directory>),
    Symlink(Box<[u8]>),
    Device(u32, u32),
    /// Socket or named pipe.
    Plain,
}

impl Inode {
    pub(super) fn new(id: InodeId, kind: FileKind, state: State) -> Self {
        Self { id, kind, state: RwLock::new(state) }
    }

    /// Shared access; [`FsError::Stale`] if the last link is gone.
    pub(super) fn read(&self) -> FsResult<RwLockReadGuard<'_, State>> {
        let st = self.state.read();
        if st.nlink == 0 { Err(FsError::Stale) } else { Ok(st) }
    }

    /// Exclusive access; [`FsError::Stale`] if the last link is gone.
    pub(super) fn write(&self) -> FsResult<RwLockWriteGuard<'_, State>> {
        let st = self.state.write();
        if st.nlink == 0 { Err(FsError::Stale) } else { Ok(st) }
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Its attributes, given its locked state.
    pub(super) fn attr(&self, st: &State, fsid: u64) -> Attr {
        let (size, used, rdev) = match &st.body {
            Body::File(c) => (c.size(), c.stored(), (0, 0)),
            Body::Directory(d) => (d.apparent_size(), d.apparent_size(), (0, 0)),
            Body::Symlink(target) => (target.len() as u64, target.len() as u64, (0, 0)),
            Body::Device(major, minor) => (0, 0, (*major, *minor)),
            Body::Plain => (0, 0, (0, 0)),
        };
        Attr {
            kind: self.kind,
            mode: st.mode,
            nlink: st.nlink,
            uid: st.uid,
            gid: st.gid,
            size,
            used,
            rdev,
            fsid,
            fileid: self.id.fileid(),
            atime: st.atime,
            mtime: st.mtime,
            ctime: st.ctime,
        }
    }
}

impl State {
    /// Notes a change of attributes at `now`: ctime moves forward, by a nanosecond if the clock has not.
    pub(super) fn changed(&mut self, now: Time) {
        self.ctime = now.max(successor(self.ctime));
    }

    /// Notes a change of content at `now`.
    pub(super) fn modified(&mut self, now: Time) {
        self.changed(now);
        self.mtime = self.ctime;
    }

    pub(super) fn directory(&self) -> FsResult<&Directory> {
        if let Body::Directory(d) = &self.body { Ok(d) } else { Err(FsError::NotDir) }
    }

    pub(super) fn directory_mut(&mut self) -> FsResult<&mut Directory> {
        if let Body::Directory(d) = &mut self.body { Ok(d) } else { Err(FsError::NotDir) }
    }

    /// A regular file's content; [`FsError::IsDir`] or [`FsError::Inval`] for what has none.
    pub(super) fn content(&self) -> FsResult<&Content> {
        match &self.body {
            Body::File(c) => Ok(c),
            Body::Directory(_) => Err(FsError::IsDir),
            _ => Err(FsError::Inval),
        }
    }

    pub(super) fn content_mut(&mut self) -> FsResult<&mut Content> {
        match &mut self.body {
            Body::File(c) => Ok(c),
            Body::Directory(_) => Err(FsError::IsDir),
            _ => Err(FsError::Inval),
        }
    }
}

/// The next representable time.
fn successor(t: Time) -> Time {
    if t.nanos >= 999_999_999 {
        Time { seconds: t.seconds.saturating_add(1), nanos: 0 }
    } else {
        Time { seconds: t.seconds, nanos: t.nanos + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_gives_its_identity_back_only_to_its_own_instance() {
        let id = InodeId { index: 7, generation: u64::MAX - 1 };
        let h = id.handle(42);
        assert_eq!(InodeId::of_handle(&h, 42), Ok(id));
        assert_eq!(InodeId::of_handle(&h, 43), Err(FsError::Stale));
        for len in [0, 19, 21, 48] {
            let bad = Handle::new(&vec![0; len]).unwrap();
            assert_eq!(InodeId::of_handle(&bad, 0), Err(FsError::BadHandle));
        }
    }

    #[test]
    fn a_million_inodes_fit_in_two_hundred_megabytes() {
        assert!(size_of::<Inode>() <= 200, "{} bytes", size_of::<Inode>());
    }

    #[test]
    fn the_successor_of_a_time_carries_into_the_seconds() {
        assert_eq!(successor(Time { seconds: 1, nanos: 999_999_999 }), Time { seconds: 2, nanos: 0 });
        assert_eq!(successor(Time { seconds: -1, nanos: 5 }), Time { seconds: -1, nanos: 6 });
    }
}
