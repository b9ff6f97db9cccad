//! READ_PLUS (RFC 7862 section 15.10): READ that does not transfer holes.

use std::ops::Range;

use millrace_nfs::v4::{Content, ReadPlusArgs, ReadPlusOk, Status};
use millrace_oncrpc::TransportKind;
use millrace_vfs::{FileSystem, FsError, FsResult, Handle, Identity, SeekTarget};

use super::{compound::Compound, data::OFFSET_LIMIT, kind::data_error};

/// Maximum parts of a result. Their memory is reserved as that of one READ.
const MAX_CONTENTS: usize = 8;
/// Length of the smallest hole that is sent as one. A client has room for the range and for the header of one part
/// (`decode_read_plus_maxsz` of Linux's), so that a further part must replace more data than its header takes.
const MIN_HOLE: u64 = 4096;
/// Maximum searches for data and holes in one call.
const SEARCHES: usize = 64;

impl Compound<'_> {
    /// Over RDMA clients use READ: the data of READ_PLUS is not placed directly (RFC 8267 section 4.4).
    pub(super) async fn read_plus(&mut self, args: ReadPlusArgs) -> Result<(), Status> {
        if self.scope.caller.sender.peer.transport == TransportKind::Rdma {
            return Err(Status::NotSupp);
        }
        let count = self.take_bulk(args.count.min(self.scope.env.rtmax))?;
        let file = self.current()?.file(Status::IsDir)?.clone();
        let caller = file.caller()?;
        let _access = self.check_access(&file, &args.stateid, false)?;
        if args.offset >= OFFSET_LIMIT {
            return Err(Status::Inval);
        }
        let ok = match contents(&**file.fs(), caller, &file.handle, args.offset, count).await {
            Ok(ok) => ok,
            Err(error) => return Err(data_error(&file, error).await),
        };
        let bytes =
            ok.contents.iter().map(|part| if let Content::Data { data, .. } = part { data.len() } else { 0 });
        let bytes = bytes.sum::<usize>();
        self.scope.env.read(&file.export, self.usage.as_deref(), bytes as u64);
        self.put_payload(bytes, |reply| reply.put(&ok));
        Ok(())
    }
}

/// Reads data and holes of a range, alternately. Parts are read one after another: a concurrent change may be in
/// some of them only, as in several READs.
async fn contents(
    fs: &dyn FileSystem,
    caller: &Identity,
    handle: &Handle,
    offset: u64,
    count: u32,
) -> FsResult<ReadPlusOk> {
    let attr = fs.read(caller, handle, offset, 0).await?.attr;
    let end = attr.size.min(offset.saturating_add(count.into()));
    let mut extents =
        Extents { fs, caller, handle, searches: if attr.used < attr.size { SEARCHES } else { 0 } };
    let mut ok = ReadPlusOk { eof: false, contents: Default::default() };
    let mut at = offset;
    while at < end && ok.contents.len() < MAX_CONTENTS {
        let (hole, data) = extents.next(at, end).await?;
        if hole > at {
            ok.contents.push(Content::Hole { offset: at, length: hole - at });
            at = hole;
        } else {
            let wanted = u32::try_from(data - at).unwrap_or(count);
            let data = fs.read(caller, handle, at, wanted).await?.data;
            let length = data.len() as u64;
            if length > 0 {
                // Two parts of data would take two headers: a hole between them has been filled meanwhile.
                match ok.contents.last_mut() {
                    Some(Content::Data { data: before, .. }) => before.extend(data.iter().cloned()),
                    _ => ok.contents.push(Content::Data { offset: at, data }),
                }
                at += length;
            }
            if length < wanted.into() {
                break; // The file was truncated meanwhile.
            }
        }
    }
    ok.eof = at >= attr.size;
    Ok(ok)
}

/// Finds the parts of a file.
struct Extents<'f> {
    fs: &'f dyn FileSystem,
    caller: &'f Identity,
    handle: &'f Handle,
    /// Remaining searches; the rest of the range is data. None are made in a file without holes.
    searches: usize,
}

impl Extents<'_> {
    /// The end of the hole at `at`, which is `at` if there is none, and the end of the data after it. A hole shorter than
    /// [`MIN_HOLE`] is data.
    async fn next(&mut self, at: u64, end: u64) -> FsResult<(u64, u64)> {
        let mut stop = self.find(at..end, SeekTarget::Data).await?;
        if stop - at >= MIN_HOLE {
            return Ok((stop, stop));
        }
        while stop < end {
            let hole = self.find(stop..end, SeekTarget::Hole).await?;
            stop = self.find(hole..end, SeekTarget::Data).await?;
            if stop - hole >= MIN_HOLE {
                return Ok((at, hole));
            }
        }
        Ok((at, end))
    }

    /// The first data or hole of a range, or its end. What cannot be located is data.
    async fn find(&mut self, range: Range<u64>, target: SeekTarget) -> FsResult<u64> {
        let Range { start, end } = range;
        if let Some(rest) = self.searches.checked_sub(1)
            && !range.is_empty()
        {
            self.searches = rest;
            match self.fs.seek(self.caller, self.handle, range, target).await {
                Ok(found) => return Ok(found.unwrap_or(end)),
                Err(FsError::NotSupp) => self.searches = 0,
                Err(e) => return Err(e),
            }
        }
        Ok(if target == SeekTarget::Data { start } else { end })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use millrace_buffer::ArenaConfig;
    use millrace_runtime::{MaybeReady, virtual_time::VirtualTime};
    use millrace_vfs::{
        Arena, CreateHow, FileSystemRef, Op, SetAttr, Stability, Views,
        memory::{MemoryConfig, MemoryFs},
    };
    use millrace_xdr::Encoder;
    use proptest::prelude::*;

    use super::*;

    const FILE_BYTES: u64 = 5 << 16;

    fn now<T>(op: Op<T>) -> T {
        let MaybeReady::Ready(result) = op else { panic!("the memory file system waits") };
        result.unwrap()
    }

    /// Counts the searches in a file system.
    struct Counting {
        inner: FileSystemRef,
        searches: AtomicUsize,
    }

    impl FileSystem for Counting {
        fn seek(
            &self,
            who: &Identity,
            file: &Handle,
            range: Range<u64>,
            target: SeekTarget,
        ) -> Op<Option<u64>> {
            self.searches.fetch_add(1, Ordering::Relaxed);
            self.inner.seek(who, file, range, target)
        }

        millrace_vfs::forward!(inner: root info getattr lookup read readdir write create deallocate);
    }

    struct Scene {
        fs: Counting,
        caller: Identity,
        file: Handle,
        arena: Arena,
        content: Vec<u8>,
    }

    impl Scene {
        fn new() -> Self {
            let arena = Arena::new(ArenaConfig { limit: 32 << 20, huge_pages: false });
            let config = MemoryConfig::new(arena.clone(), VirtualTime::new(1).runtime());
            let fs = Counting { inner: MemoryFs::new(config), searches: AtomicUsize::new(0) };
            let caller = Identity::root();
            let how = CreateHow::Guarded(SetAttr::default());
            let file = now(fs.create(&caller, &fs.root(), b"f", &how)).handle;
            Self { fs, caller, file, arena, content: Vec::new() }
        }

        fn write(&mut self, at: u64, length: u64) {
            let (at, end) = (at as usize, (at + length) as usize);
            let data = vec![7; end - at];
            let views: Views = self.arena.copy_from(&data).unwrap().into();
            now(self.fs.write(&self.caller, &self.file, at as u64, views, Stability::FileSync));
            self.content.resize(self.content.len().max(end), 0);
            self.content[at..end].copy_from_slice(&data);
        }

        fn read(&self, offset: u64, count: u32) -> ReadPlusOk {
            let read = contents(&self.fs, &self.caller, &self.file, offset, count);
            millrace_runtime::tokio_rt::run_shard(read).unwrap().unwrap()
        }

        /// Decodes the result of READ_PLUS with the memory that a client has for data of `count` bytes with one header.
        fn check(&self, offset: u64, count: u32) {
            let ok = self.read(offset, count);
            let mut e = Encoder::new(&self.arena, 512);
            ok.contents.iter().for_each(|part| e.put(part));
            let message = e.finish().unwrap();
            let bytes = message.head.len()
                + message.payloads.iter().map(|p| p.data.len().next_multiple_of(4)).sum::<usize>();
            let room = DATA_HEADER + (count as usize).next_multiple_of(4);
            assert!(bytes <= room, "{bytes} bytes for {count} from {offset} on: {:?}", ok.contents);
            let mut at = offset as usize;
            for part in &ok.contents {
                match part {
                    Content::Data { offset, data } => {
                        assert_eq!(*offset, at as u64);
                        assert!(data.to_vec() == self.content[at..at + data.len()]);
                        at += data.len();
                    }
                    Content::Hole { offset, length } => {
                        assert_eq!(*offset, at as u64);
                        assert!(*length >= MIN_HOLE);
                        assert!(self.content[at..at + *length as usize].iter().all(|b| *b == 0));
                        at += *length as usize;
                    }
                }
            }
            let end = self.content.len().min(offset as usize + count as usize);
            assert!(at == end || ok.contents.len() == MAX_CONTENTS || offset as usize >= end);
            assert_eq!(ok.eof, at >= self.content.len());
        }
    }

    /// An encoded `data_info4` without its data.
    const DATA_HEADER: usize = 16;

    proptest! {
        #[test]
        fn a_result_is_at_most_a_header_longer_than_its_range(
            extents in proptest::collection::vec((0..FILE_BYTES, 1..20_000u64), 0..20),
            holes in proptest::collection::vec((0..FILE_BYTES, 1..20_000u64), 0..6),
            reads in proptest::collection::vec((0..FILE_BYTES + 100, 0..100_000u32), 1..20),
            edges in proptest::collection::vec((0..20usize, -16..16i64, 0..5000u32), 0..20),
        ) {
            let mut scene = Scene::new();
            extents.iter().for_each(|(at, length)| scene.write(*at, *length));
            for (at, length) in holes {
                now(scene.fs.deallocate(&scene.caller, &scene.file, at, length));
                let end = scene.content.len().min((at + length) as usize);
                scene.content.get_mut(at as usize..end).unwrap_or_default().fill(0);
            }
            reads.iter().for_each(|(offset, count)| scene.check(*offset, *count));
            // Ranges that begin or end near the edge of an extent.
            for (nth, more, count) in edges {
                let Some((at, length)) = extents.get(nth) else { continue };
                let edge = (at + length).saturating_add_signed(more);
                scene.check(edge, count);
                scene.check(edge.saturating_sub(count.into()), count);
            }
        }
    }

    #[test]
    fn a_file_without_holes_is_not_searched() {
        let mut scene = Scene::new();
        scene.write(0, 1 << 20);
        scene.check(65_536, 131_072);
        assert_eq!(scene.fs.searches.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_searches_of_a_call_are_limited() {
        let mut scene = Scene::new();
        (0..64).for_each(|block| scene.write(block << 16, 65_000));
        scene.write(8 << 20, 1);
        scene.check(0, 4 << 20);
        assert_eq!(scene.fs.searches.load(Ordering::Relaxed), SEARCHES);
    }
}
