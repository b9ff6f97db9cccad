//! `millrace blk cp`.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, FileTypeExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_buffer::{ArenaConfig, View};
use millrace_copy::{Event, standard_stream};
use millrace_iscsi_initiator::{Arena, BlockDevice, Buffer, Error};
use millrace_program::{
    args::url_text,
    executor,
    failure::{CommandResult, Failure, Outcome},
    output,
};
use serde_json::json;

use super::{failed, open, parse};
use crate::{args::BlkCpArgs, commands::copy::Location, file_error::FileError, progress::CopyProgress};

/// Bytes of one transfer: a multiple of every block size.
const CHUNK: u64 = 1 << 20;

/// A source or a target.
enum Side {
    Device(BlockDevice),
    File {
        path: PathBuf,
        file: Arc<File>,
    },
    /// A pipe or a character device, or a standard stream: it is read or written in order, to its end.
    Stream {
        path: PathBuf,
        file: Arc<File>,
    },
}

pub(super) fn cp(args: &BlkCpArgs) -> CommandResult {
    let (from, to) = (Location::source(&args.from), Location::target(&args.to));
    if let (Location::Local(_), Location::Local(_)) = (&from, &to) {
        return Err(Failure::usage("neither source nor target is a URL; use cp(1) for local copies"));
    }
    to.permits_output(args.json.then_some("--json"))?;
    for place in [&from, &to] {
        if let Location::Url(url) = place {
            parse(url)?;
        }
    }
    let rt = executor::large()?;
    let bytes = rt.block_on(copy(&from, &to, args))?;
    // Do not wait for threads that are blocked on a file.
    rt.shutdown_background();
    if args.json {
        output::line(
            &json!({ "from": url_text(&args.from), "to": url_text(&args.to), "bytes": bytes }).to_string(),
        )?;
    }
    Ok(Outcome::Done)
}

/// Copies; returns the number of bytes.
async fn copy(from: &Location, to: &Location, args: &BlkCpArgs) -> Result<u64, Failure> {
    let source = Side::source(from, args).await?;
    let length = source.length()?;
    let target = Side::target(to, (from, length), args).await?;
    let arena = Arena::new(ArenaConfig::default());
    let progress = CopyProgress::new(args.json);
    progress.show(&Event::Started { path: &from.to_string(), bytes: length.unwrap_or(0) });
    let (source, target, arena, shown, copied) = (&source, &target, &arena, &progress, &AtomicU64::new(0));
    let outstanding = usize::from(args.outstanding);
    let chunk = async |offset: u64| {
        let bytes = length.map_or(CHUNK, |length| CHUNK.min(length - offset)) as usize;
        let buffer = arena.alloc(bytes).map_err(|e| Failure::new(e.to_string()))?;
        source.read(offset, buffer).await
    };
    let write = async |(offset, data): (u64, View)| {
        let bytes = data.len();
        if let Side::Device(device) = target
            && offset + bytes as u64 > device.capacity()
        {
            let capacity = device.capacity();
            return Err(Failure::new(format!(
                "{to} has {capacity} bytes, but {from} has more; choose a larger target, and copy again"
            )));
        }
        target.write(offset, data, arena).await?;
        copied.fetch_add(bytes as u64, Ordering::Relaxed);
        shown.show(&Event::Written { bytes });
        Ok(())
    };
    let result = match (length, target) {
        (None, _) => {
            let next = async |offset| {
                let data = chunk(offset).await?;
                let end = offset + data.len() as u64;
                Ok::<_, Failure>((end > offset).then_some(((offset, data), end)))
            };
            stream::try_unfold(0, next).try_for_each_concurrent(outstanding, write).await
        }
        (Some(length), Side::Stream { .. }) => {
            let reads = offsets(length).map(async |offset| Ok((offset, chunk(offset).await?)));
            stream::iter(reads).buffered(outstanding).try_for_each(write).await
        }
        (Some(length), _) => {
            let copy = async |offset| write((offset, chunk(offset).await?)).await;
            stream::iter(offsets(length)).map(Ok).try_for_each_concurrent(outstanding, copy).await
        }
    };
    progress.finish();
    result?;
    target.flush().await?;
    for side in [source, target] {
        if let Side::Device(device) = side {
            device.close().await;
        }
    }
    Ok(copied.load(Ordering::Relaxed))
}

/// The offsets of the chunks of `length` bytes.
fn offsets(length: u64) -> impl Iterator<Item = u64> {
    (0..length.div_ceil(CHUNK)).map(|i| i * CHUNK)
}

/// Runs `work`, which blocks, on another thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

impl Side {
    async fn source(from: &Location, args: &BlkCpArgs) -> Result<Self, Failure> {
        let path = match from {
            Location::Url(url) => return Ok(Self::Device(open(url, &args.options).await?)),
            Location::Local(path) => path.clone(),
        };
        let side = Self::local(path, OpenOptions::new().read(true), "read").await?;
        if let Self::Stream { path, file } = &side
            && file.metadata().is_ok_and(|m| m.is_dir())
        {
            let path = path.display();
            return Err(Failure::new(format!("cannot read {path}: it is a directory; name an image file")));
        }
        Ok(side)
    }

    /// The target for what `from` has: a number of bytes, if that is known.
    async fn target(
        to: &Location,
        (from, length): (&Location, Option<u64>),
        args: &BlkCpArgs,
    ) -> Result<Self, Failure> {
        let path = match to {
            Location::Url(url) => {
                let device = open(url, &args.options).await?;
                let capacity = device.capacity();
                if let Some(length) = length.filter(|length| capacity < *length) {
                    return Err(Failure::new(format!(
                        "{to} has {capacity} bytes, but {from} has {length}; choose a larger target"
                    )));
                }
                return Ok(Self::Device(device));
            }
            Location::Local(path) => path.clone(),
        };
        let side = Self::local(path, OpenOptions::new().write(true).create(true), "write").await?;
        // The size of a block device is fixed.
        if let (Self::File { path, file }, Some(length)) = (&side, length)
            && file.metadata().is_ok_and(|m| m.is_file())
        {
            file.set_len(length).map_err(|e| local("write", path, &e))?;
        }
        Ok(side)
    }

    /// The local file, device, pipe or standard stream at `path`. Opening a named pipe waits for its other end.
    async fn local(path: PathBuf, options: &OpenOptions, what: &str) -> Result<Self, Failure> {
        let (at, options) = (path.clone(), options.clone());
        let opened = blocking(move || {
            let (file, positioned) = match standard_stream(&at)? {
                Some(stream) => (stream, false),
                None => {
                    let file = options.open(&at)?;
                    let kind = file.metadata()?.file_type();
                    (file, kind.is_file() || kind.is_block_device())
                }
            };
            Ok((Arc::new(file), positioned))
        });
        let (file, positioned) = opened.await.map_err(|e| local(what, &path, &e))?;
        Ok(if positioned { Self::File { path, file } } else { Self::Stream { path, file } })
    }

    /// The length in bytes, unless it is known only at the end.
    fn length(&self) -> Result<Option<u64>, Failure> {
        match self {
            Self::Device(device) => Ok(Some(device.capacity())),
            // Also for block devices, whose metadata has no length.
            Self::File { path, file } => {
                let end = (&**file).seek(SeekFrom::End(0));
                end.map(Some).map_err(|e| local("read", path, &e))
            }
            Self::Stream { .. } => Ok(None),
        }
    }

    /// Fills `buffer`, unless a stream ends before.
    async fn read(&self, offset: u64, mut buffer: Buffer) -> Result<View, Failure> {
        match self {
            Self::Device(device) => {
                device.read_at_into(offset, buffer).await.map(Buffer::freeze).map_err(|e| failed(&e))
            }
            Self::File { path, file } => {
                let file = Arc::clone(file);
                let read = blocking(move || {
                    file.read_exact_at(&mut buffer, offset)?;
                    Ok(buffer.freeze())
                });
                read.await.map_err(|e| local("read", path, &e))
            }
            Self::Stream { path, file } => {
                let file = Arc::clone(file);
                let read = blocking(move || {
                    let mut have = 0;
                    while have < buffer.len() {
                        match (&*file).read(&mut buffer[have..]) {
                            Ok(0) => break,
                            Ok(n) => have += n,
                            Err(e) if e.kind() == ErrorKind::Interrupted => {}
                            Err(e) => return Err(e),
                        }
                    }
                    buffer.set_len(have);
                    Ok(buffer.freeze())
                });
                read.await.map_err(|e| local("read", path, &e))
            }
        }
    }

    async fn write(&self, offset: u64, data: View, arena: &Arena) -> Result<(), Failure> {
        match self {
            Self::Device(device) => {
                let written = async {
                    let data = whole_blocks(device, offset, data, arena).await?;
                    device.write_at_from(offset, data.into()).await
                };
                written.await.map_err(|e| failed(&e))
            }
            Self::File { path, file } => {
                let file = Arc::clone(file);
                let written = blocking(move || file.write_all_at(&data, offset)).await;
                written.map_err(|e| local("write", path, &e))
            }
            Self::Stream { path, file } => {
                let file = Arc::clone(file);
                let written = blocking(move || (&*file).write_all(&data)).await;
                written.map_err(|e| match e.kind() {
                    ErrorKind::BrokenPipe => output::failed(&e),
                    _ => local("write", path, &e),
                })
            }
        }
    }

    async fn flush(&self) -> Result<(), Failure> {
        match self {
            Self::Device(device) => device.flush().await.map_err(|e| match e {
                Error::DataLost { .. } => Failure::new(format!("{e}: copy again")),
                e => failed(&e),
            }),
            Self::File { path, file } => {
                let file = Arc::clone(file);
                blocking(move || file.sync_all()).await.map_err(|e| local("write", path, &e))
            }
            Self::Stream { path, file } => {
                let file = Arc::clone(file);
                match blocking(move || file.sync_all()).await {
                    // It is a pipe or a device, which has no stable storage.
                    Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(()),
                    flushed => flushed.map_err(|e| local("write", path, &e)),
                }
            }
        }
    }
}

/// `data`, whose last block may be incomplete, with the rest of that block from the device.
async fn whole_blocks(device: &BlockDevice, offset: u64, data: View, arena: &Arena) -> Result<View, Error> {
    let block = device.block_size() as usize;
    if data.len().is_multiple_of(block) {
        return Ok(data);
    }
    let mut whole = device.read_at_into(offset, arena.alloc(data.len().next_multiple_of(block))?).await?;
    millrace_buffer::copy(&mut whole, &data);
    Ok(whole.freeze())
}

fn local(what: &str, path: &Path, e: &io::Error) -> Failure {
    FileError::local(what, path, e).into()
}
