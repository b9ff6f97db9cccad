//! An inode.

use millrace_runtime::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{content::Content, directory::Directory, xattrs::Xattrs};
use crate::{Attr, FileKind, FsError, FsResult, Handle, Time};

/// Identifies an inode: its slot in the table and the slot's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InodeId {
    pub(super) index: u32,
    pub(super) generation: u64,
}

impl InodeId {
    /// Handle layout: instance of the file system (8 bytes), generation (8), index (4), all big-endian.
    const HANDLE_BYTES: usize = 20;

    /// The handle of this inode in the file system `instance`.
    pub(super) fn handle(self, instance: u64) -> Handle {
        let mut bytes = [0; Self::HANDLE_BYTES];
        bytes[..8].copy_from_slice(&instance.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_be_bytes());
        bytes[16..].copy_from_slice(&self.index.to_be_bytes());
        Handle::from_array(bytes)
    }

    /// Parses a handle. [`FsError::BadHandle`] if it is malformed, [`FsError::Stale`] if it belongs to
    /// another instance.
    pub(super) fn of_handle(handle: &Handle, instance: u64) -> FsResult<Self> {
        let bytes: [u8; Self::HANDLE_BYTES] = handle.as_bytes().try_into().map_err(|_| FsError::BadHandle)?;
        let [i0, i1, i2, i3, i4, i5, i6, i7, g0, g1, g2, g3, g4, g5, g6, g7, index @ ..] = bytes;
        if u64::from_be_bytes([i0, i1, i2, i3, i4, i5, i6, i7]) != instance {
            return Err(FsError::Stale);
        }
        let generation = u64::from_be_bytes([g0, g1, g2, g3, g4, g5, g6, g7]);
        Ok(Self { index: u32::from_be_bytes(index), generation })
    }

    /// Inode number shown to users; never 0, which some programs treat as "no file".
    pub(super) fn fileid(self) -> u64 {
        u64::from(self.index) + 1
    }
}

/// An object: its constant part, and its state under a lock.
pub(super) struct Inode {
    pub(super) id: InodeId,
    pub(super) kind: FileKind,
    state: RwLock<InodeState>,
}

/// The variable part of an inode.
pub(super) struct InodeState {
    pub(super) mode: u32,
    /// 0 after the last link is removed; handles are stale then, unless the inode is held.
    pub(super) nlink: u32,
    /// Number of holds.
    pub(super) holds: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    /// The number of changes, added to the time of the creation: it is larger than that of an earlier object with the same
    /// handle.
    pub(super) change: u64,
    pub(super) body: Body,
    /// Extended attributes, if there are any.
    pub(super) xattrs: Option<Box<Xattrs>>,
}

/// Content by type of object.
pub(super) enum Body {
    File(Content),
    Directory(Box<Directory>),
    Symlink(Box<[u8]>),
    Device(u32, u32),
    /// Socket or named pipe.
    Plain,
}

impl Inode {
    pub(super) fn new(id: InodeId, kind: FileKind, state: InodeState) -> Self {
        Self { id, kind, state: RwLock::new(state) }
    }

    /// Locks for reading; [`FsError::Stale`] if the last link is gone and there is no hold.
    pub(super) fn read(&self) -> FsResult<RwLockReadGuard<'_, InodeState>> {
        let st = self.state.read();
        if st.is_dead() { Err(FsError::Stale) } else { Ok(st) }
    }

    /// Locks for writing; [`FsError::Stale`] if the last link is gone and there is no hold.
    pub(super) fn write(&self) -> FsResult<RwLockWriteGuard<'_, InodeState>> {
        let st = self.state.write();
        if st.is_dead() { Err(FsError::Stale) } else { Ok(st) }
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Attributes for a locked state.
    pub(super) fn attr(&self, st: &InodeState, fsid: u64) -> Attr {
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
            change: st.change,
        }
    }
}

impl InodeState {
    /// Whether neither a link nor a hold is left.
    pub(super) fn is_dead(&self) -> bool {
        self.nlink == 0 && self.holds == 0
    }

    /// Counts a change, and updates ctime, by at least a nanosecond even if the clock has not advanced. Called once for each
    /// operation that changes the object.
    pub(super) fn set_ctime(&mut self, now: Time) {
        self.ctime = now.max(next_time(self.ctime));
        self.change = self.change.wrapping_add(1);
    }

    /// Updates mtime and ctime.
    pub(super) fn set_mtime_and_ctime(&mut self, now: Time) {
        self.set_ctime(now);
        self.mtime = self.ctime;
    }

    pub(super) fn directory(&self) -> FsResult<&Directory> {
        if let Body::Directory(d) = &self.body { Ok(d) } else { Err(FsError::NotDir) }
    }

    pub(super) fn directory_mut(&mut self) -> FsResult<&mut Directory> {
        if let Body::Directory(d) = &mut self.body { Ok(d) } else { Err(FsError::NotDir) }
    }

    /// Content of a regular file; [`FsError::IsDir`] or [`FsError::Inval`] for other types.
    pub(super) fn content(&self) -> FsResult<&Content> {
        match &self.body {
            Body::File(c) => Ok(c),
            Body::Directory(_) => Err(FsError::IsDir),
            _ => Err(FsError::Inval),
        }
    }

    ///
    /// # Errors
    /// Also [`FsError::Jukebox`] while the content is frozen.
    pub(super) fn content_mut(&mut self) -> FsResult<&mut Content> {
        let content = self.frozen_content_mut()?;
        if content.is_frozen() { Err(FsError::Jukebox) } else { Ok(content) }
    }

    /// As [`content_mut`](Self::content_mut), also while the content is frozen.
    pub(super) fn frozen_content_mut(&mut self) -> FsResult<&mut Content> {
        match &mut self.body {
            Body::File(c) => Ok(c),
            Body::Directory(_) => Err(FsError::IsDir),
            _ => Err(FsError::Inval),
        }
    }
}

/// The next representable time.
fn next_time(t: Time) -> Time {
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
    fn handle_is_valid_only_in_its_instance() {
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
    fn inode_takes_at_most_240_bytes() {
        assert!(size_of::<Inode>() <= 240, "{} bytes", size_of::<Inode>());
    }

    #[test]
    fn next_time_carries_into_seconds() {
        assert_eq!(next_time(Time { seconds: 1, nanos: 999_999_999 }), Time { seconds: 2, nanos: 0 });
        assert_eq!(next_time(Time { seconds: -1, nanos: 5 }), Time { seconds: -1, nanos: 6 });
    }
}
