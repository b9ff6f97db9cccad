//! NFS exports as sources and targets.

use std::{io::ErrorKind, ops::Range};

use millrace_buffer::Views;
use millrace_client::{
    SetxattrOption, Version,
    handles::{Client, File},
    ops::{
        Attributes, CreateHow, FileHandle, FileType, NfsTime, Procedure, SetAttributes, SetTime, StableHow,
        Status, access,
    },
    temporary_name,
};

use crate::{
    Error, Preserve,
    tree::{
        Directory, Entries, Entry, Existing, FileKind, Metadata, Source, Target, Timestamp, WriteOutcome,
        Xattrs, random,
    },
};

/// Maximum number of rewrites of a record because the server restarted during its write.
const RESTARTS: usize = 8;

/// The files of an NFS export. Objects are identified by their file handles.
#[derive(Debug, Clone)]
pub struct RemoteTree {
    client: Client,
}

/// A file of an export that is being written.
#[derive(Debug, Clone)]
pub struct RemoteWriter {
    file: FileHandle,
    /// The names of a new file; `None` for an existing file.
    new: Option<Names>,
}

/// The names of a new file.
#[derive(Debug, Clone)]
struct Names {
    dir: FileHandle,
    temporary: Vec<u8>,
    last: Vec<u8>,
}

impl RemoteTree {
    /// Creates a source or target of the export that `client` has mounted.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    async fn entry(
        &self,
        dir: FileHandle,
        e: millrace_client::ops::DirEntry,
    ) -> Result<Option<Entry<FileHandle>>, millrace_client::Error> {
        let (node, meta) = match (e.handle, &e.attributes) {
            (Some(h), Some(a)) => (h, a.into()),
            _ => match self.client.lookup(dir, &e.name).await {
                Ok(o) => (o.handle, (&o.attributes).into()),
                Err(e) if e.is_not_found() => return Ok(None), // Removed concurrently.
                Err(e) => return Err(e),
            },
        };
        Ok(Some(Entry { name: e.name, node, meta }))
    }

    /// Sets times, and the owner if requested, of an existing file.
    async fn set_in_place(&self, file: FileHandle, meta: &Metadata, preserve: Preserve) -> Result<(), Error> {
        let SetAttributes { uid, gid, atime, mtime, .. } = to_set(meta, preserve);
        if preserve.owner {
            self.client.setattr(file, SetAttributes { uid, gid, ..SetAttributes::default() }, None).await?;
        }
        match self
            .client
            .setattr(file, SetAttributes { atime, mtime, ..SetAttributes::default() }, None)
            .await
        {
            // Who may write a file of another owner may not set its times.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(()),
            set => Ok(set.map(drop)?),
        }
    }

    /// Sets the preserved attributes of `meta`.
    async fn set(&self, object: FileHandle, meta: &Metadata, preserve: Preserve) -> Result<(), Error> {
        let mut rest = to_set(meta, preserve);
        if preserve.owner && meta.mode & SET_ID != 0 {
            // With a change of owner, servers (Linux) clear these mode bits.
            let owner =
                SetAttributes { uid: rest.uid.take(), gid: rest.gid.take(), ..SetAttributes::default() };
            self.client.setattr(object, owner, None).await?;
        }
        self.client.setattr(object, rest, None).await?;
        Ok(())
    }
}

impl From<&Attributes> for Metadata {
    fn from(a: &Attributes) -> Self {
        let time = |t: NfsTime| Timestamp { seconds: t.seconds, nanos: t.nanoseconds.min(999_999_999) };
        Self {
            kind: match a.file_type {
                FileType::Regular => FileKind::File,
                FileType::Directory => FileKind::Directory,
                FileType::Symlink => FileKind::Symlink,
                _ => FileKind::Special,
            },
            mode: a.mode & 0o7777,
            uid: a.uid,
            gid: a.gid,
            size: a.size,
            used: a.used,
            nlink: a.nlink,
            atime: time(a.atime),
            mtime: time(a.mtime),
            ctime: time(a.ctime),
            id: (a.fsid, a.fileid),
        }
    }
}

/// The mode bits set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

/// The attributes to set on a copy.
fn to_set(meta: &Metadata, preserve: Preserve) -> SetAttributes {
    let time = |t: Timestamp| SetTime::ClientTime(NfsTime { seconds: t.seconds, nanoseconds: t.nanos });
    SetAttributes {
        mode: (meta.kind != FileKind::Symlink).then_some(meta.mode),
        uid: preserve.owner.then_some(meta.uid),
        gid: preserve.owner.then_some(meta.gid),
        size: None,
        atime: time(meta.atime),
        mtime: time(meta.mtime),
    }
}

impl Source for RemoteTree {
    type Node = FileHandle;
    type Reader = FileHandle;

    async fn list(&self, dir: &FileHandle) -> Result<Entries<FileHandle>, Error> {
        let mut out = Entries { found: Vec::new(), failed: Vec::new() };
        for e in self.client.readdir(*dir).await? {
            if e.is_dot() {
                continue;
            }
            let name = e.name.clone();
            if !crate::is_valid_name(&name) {
                let error = Error::InvalidName(e.name_lossy().into());
                out.failed.push((name, error));
                continue;
            }
            match self.entry(*dir, e).await {
                Ok(entry) => out.found.extend(entry),
                Err(e) if e.status().is_some() => out.failed.push((name, e.into())),
                Err(e) => return Err(e.into()), // The other calls would fail too.
            }
        }
        out.found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    async fn read_link(&self, link: &FileHandle) -> Result<Vec<u8>, Error> {
        Ok(self.client.readlink(*link).await?)
    }

    async fn xattrs(&self, object: &FileHandle, keep: bool) -> Result<Xattrs, Error> {
        let mut found = Xattrs::default();
        if !keep || !self.client.has_xattrs() {
            return Ok(found);
        }
        let names = match self.client.list_xattrs(*object).await {
            Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(found),
            names => names?,
        };
        for name in names {
            // It may have been removed concurrently.
            if let Some(value) = self.client.xattr(*object, &name).await? {
                found.keep(name, value)?;
            }
        }
        Ok(found)
    }

    async fn open(&self, file: &FileHandle) -> Result<FileHandle, Error> {
        Ok(*file)
    }

    async fn read(&self, file: &FileHandle, offset: u64, len: usize) -> Result<Views, Error> {
        let mut out = Views::new();
        while out.len() < len {
            let memory = self.client.wait_for_buffer(len - out.len()).await?;
            let read = self.client.read_into(*file, offset + out.len() as u64, memory).await?;
            out.push(read.buffer.freeze());
            if read.eof {
                break;
            }
        }
        Ok(out)
    }

    async fn extents(&self, file: &FileHandle, size: u64) -> Result<Option<Vec<Range<u64>>>, Error> {
        Ok(self.client.extents(*file, size).await?)
    }

    fn exported(&self, file: &FileHandle) -> Option<File> {
        Some(File::new(self.client.clone(), *file))
    }

    fn id_space(&self) -> Option<String> {
        Some(format!("{}:{}", self.client.server(), self.client.export()))
    }

    fn preferred_record(&self) -> usize {
        self.client.rsize().min(self.client.wsize()) as usize
    }
}

impl Target for RemoteTree {
    type Writer = RemoteWriter;

    fn kept(&self, meta: &Metadata, _preserve: Preserve) -> Metadata {
        let nearest = |t: Timestamp| match u32::try_from(t.seconds) {
            Err(_) if self.client.version() == Version::V3 => {
                Timestamp { seconds: t.seconds.clamp(0, u32::MAX.into()), nanos: 0 }
            }
            _ => t,
        };
        Metadata { atime: nearest(meta.atime), mtime: nearest(meta.mtime), ..*meta }
    }

    async fn remove(&self, dir: &Directory<FileHandle>, name: &[u8], kind: FileKind) -> Result<(), Error> {
        let removed = match kind {
            FileKind::Directory => self.client.rmdir(dir.node, name).await.map(drop),
            _ => self.client.remove(dir.node, name).await.map(drop),
        };
        match removed {
            Err(e) if e.is_not_found() => Ok(()),
            removed => Ok(removed?),
        }
    }

    async fn make_dir(
        &self,
        dir: &FileHandle,
        name: &[u8],
        mode: u32,
    ) -> Result<Directory<FileHandle>, Error> {
        let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        match self.client.mkdir(*dir, name, attributes).await {
            Ok(made) => {
                let id = Some((made.attributes.fsid, made.attributes.fileid));
                Ok(Directory { node: made.handle, created: true, id })
            }
            // Without the right to create names, servers may report that first.
            Err(e)
                if matches!(
                    e.status(),
                    Some(Status::Exist | Status::Access | Status::Perm | Status::RoFs)
                ) =>
            {
                match self.find(dir, name).await? {
                    Some(o) if o.meta.kind == FileKind::Directory => {
                        Ok(Directory { node: o.node, created: false, id: Some(o.meta.id) })
                    }
                    Some(_) => Err(Error::NotDirectory),
                    None => Err(e.into()),
                }
            }
            Err(e) => Err(e.into()),
        }
    }

    async fn find(&self, dir: &FileHandle, name: &[u8]) -> Result<Option<Existing<FileHandle>>, Error> {
        match self.client.lookup(*dir, name).await {
            Ok(o) => Ok(Some(Existing { node: o.handle, meta: (&o.attributes).into(), through_link: false })),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    async fn open_existing(&self, existing: &Existing<FileHandle>) -> Result<RemoteWriter, Error> {
        if existing.meta.kind != FileKind::File {
            return Err(Error::SpecialTarget("a device, socket or named pipe, which a client cannot write"));
        }
        let file = existing.node;
        // As open(2) on a mount: a server lets the owner write a file that is read-only.
        let wanted = access::MODIFY | access::EXTEND;
        if self.client.access(file, wanted).await? & wanted != wanted {
            let (procedure, object) = (Procedure::Access, file.to_string());
            return Err(millrace_client::Error::Nfs { procedure, object, status: Status::Access }.into());
        }
        let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
        self.client.setattr(file, empty, None).await?;
        Ok(RemoteWriter { file, new: None })
    }

    async fn set_xattrs(&self, file: &RemoteWriter, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<bool, Error> {
        self.set_directory_xattrs(&file.file, xattrs).await
    }

    async fn set_directory_xattrs(
        &self,
        object: &FileHandle,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<bool, Error> {
        if !self.client.has_xattrs() {
            return Ok(false);
        }
        for (name, value) in xattrs {
            match self.client.set_xattr(*object, name, value, SetxattrOption::Either).await {
                Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(false),
                set => drop(set?),
            }
        }
        Ok(true)
    }

    async fn set_size(&self, file: &RemoteWriter, size: u64) -> Result<(), Error> {
        let size = SetAttributes { size: Some(size), ..SetAttributes::default() };
        Ok(self.client.setattr(file.file, size, None).await.map(drop)?)
    }

    async fn put(
        &self,
        dir: &FileHandle,
        name: &[u8],
        data: &Views,
        (meta, preserve): (&Metadata, Preserve),
    ) -> Result<Option<FileHandle>, Error> {
        if preserve.owner && meta.mode & SET_ID != 0 {
            return Ok(None); // `set` needs two steps.
        }
        let temporary = temporary_name(name, random());
        let attributes = to_set(meta, preserve);
        Ok(self.client.put_file(*dir, (&temporary, name), data.clone(), attributes).await?)
    }

    fn put_limit(&self) -> u64 {
        if self.client.version() == Version::V3 { 0 } else { self.client.wsize().into() }
    }

    async fn create(&self, dir: &FileHandle, name: &[u8]) -> Result<RemoteWriter, Error> {
        let temporary = temporary_name(name, random());
        // The name is unique, so that a retransmitted CREATE is harmless.
        let how = CreateHow::Unchecked(SetAttributes {
            mode: Some(0o600),
            size: Some(0),
            ..SetAttributes::default()
        });
        let made = self.client.create(*dir, &temporary, how).await?;
        let names = Names { dir: *dir, temporary, last: name.to_vec() };
        Ok(RemoteWriter { file: made.handle, new: Some(names) })
    }

    async fn write(
        &self,
        file: &RemoteWriter,
        offset: u64,
        data: Views,
        stable: bool,
    ) -> Result<WriteOutcome, Error> {
        let how = if stable { StableHow::FileSync } else { StableHow::Unstable };
        let mut stamp: Option<WriteOutcome> = None;
        let (mut done, mut restarts) = (0, 0);
        while done < data.len() {
            let rest = data.slice(done, data.len() - done);
            let w = self.client.write_from(file.file, offset + done as u64, rest, how).await?;
            let part = WriteOutcome { stable: w.committed == StableHow::FileSync, verifier: w.verifier };
            match stamp {
                // All parts of a record must have the same write verifier; otherwise it is rewritten.
                Some(first) if first.verifier != part.verifier && restarts < RESTARTS => {
                    restarts += 1;
                    (done, stamp) = (0, None);
                }
                Some(first) => {
                    done += w.count;
                    stamp = Some(WriteOutcome { stable: first.stable && part.stable, ..part });
                }
                None => {
                    done += w.count;
                    stamp = Some(part);
                }
            }
        }
        Ok(stamp.unwrap_or(WriteOutcome { stable: true, verifier: [0; 8] }))
    }

    async fn copy(&self, from: &File, to: &RemoteWriter, range: Range<u64>) -> Result<Option<u64>, Error> {
        let (at, len) = (range.start, range.end.saturating_sub(range.start));
        let to = File::new(self.client.clone(), to.file);
        match to.copy_range(&self.client, (from, at), at, len).await {
            Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::CrossesDevices) => Ok(None),
            copied => Ok(Some(copied?)),
        }
    }

    async fn commit(&self, file: &RemoteWriter) -> Result<[u8; 8], Error> {
        Ok(self.client.commit(file.file, 0, 0).await?.verifier)
    }

    async fn read_back(&self, file: &RemoteWriter) -> Result<FileHandle, Error> {
        Ok(file.file)
    }

    async fn publish(
        &self,
        file: &RemoteWriter,
        meta: &Metadata,
        preserve: Preserve,
    ) -> Result<FileHandle, Error> {
        match &file.new {
            Some(new) => {
                self.set(file.file, meta, preserve).await?;
                self.client.rename(new.dir, &new.temporary, new.dir, &new.last).await?;
            }
            None => self.set_in_place(file.file, meta, preserve).await?,
        }
        Ok(file.file)
    }

    async fn discard(&self, file: &RemoteWriter) {
        let Some(new) = &file.new else { return };
        // The server may be unreachable, so the cleanup has a time limit.
        let moment = std::time::Duration::from_secs(5);
        match tokio::time::timeout(moment, self.client.remove(new.dir, &new.temporary)).await {
            Ok(Ok(_)) => {}
            _ => tracing::warn!(
                name = %String::from_utf8_lossy(&new.temporary),
                "an unfinished file could not be removed from the server"
            ),
        }
    }

    async fn symlink(
        &self,
        dir: &FileHandle,
        name: &[u8],
        text: &[u8],
        meta: &Metadata,
        preserve: Preserve,
    ) -> Result<(), Error> {
        let temporary = temporary_name(name, random());
        self.client.symlink(*dir, &temporary, text, to_set(meta, preserve)).await?;
        if let Err(e) = self.client.rename(*dir, &temporary, *dir, name).await {
            drop(self.client.remove(*dir, &temporary).await);
            return Err(e.into());
        }
        Ok(())
    }

    async fn link(&self, file: &FileHandle, dir: &FileHandle, name: &[u8]) -> Result<(), Error> {
        match self.client.link(*file, *dir, name).await {
            Err(e) if e.status() == Some(Status::Exist) => {
                let temporary = temporary_name(name, random());
                self.client.link(*file, *dir, &temporary).await?;
                let renamed = self.client.rename(*dir, &temporary, *dir, name).await;
                // RENAME of a file over another link to it has no effect and leaves both names.
                drop(self.client.remove(*dir, &temporary).await);
                renamed?;
            }
            other => drop(other?),
        }
        Ok(())
    }

    async fn set_meta(&self, node: &FileHandle, meta: &Metadata, preserve: Preserve) -> Result<(), Error> {
        self.set(*node, meta, preserve).await?;
        Ok(())
    }
}
