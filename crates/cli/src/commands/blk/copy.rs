//! `millrace blk cp`.

use std::{
    fs::{File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_block::{Arena, BlockDevice, Buffer, Error};
use millrace_buffer::{ArenaConfig, View};
use millrace_cli_common::{
    args::url_text,
    executor,
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_copy::Event;
use serde_json::json;

use super::{failed, open, parse};
use crate::{args::BlkCpArgs, file_error::FileError, progress::CopyProgress, session::is_url};

/// Bytes of one transfer: a multiple of every block size.
const CHUNK: u64 = 1 << 20;

/// A source or a target.
enum Side {
    Device(BlockDevice),
    File { path: PathBuf, file: Arc<File> },
}

pub(super) fn cp(args: &BlkCpArgs) -> CommandResult {
    if !is_url(&args.from) && !is_url(&args.to) {
        return Err(Failure::usage("neither source nor target is a URL; use cp(1) for local copies"));
    }
    for url in [&args.from, &args.to].into_iter().filter(|text| is_url(text)) {
        parse(&url_text(url))?;
    }
    let rt = executor::large()?;
    let bytes = rt.block_on(copy(args))?;
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
async fn copy(args: &BlkCpArgs) -> Result<u64, Failure> {
    let from = Side::source(args).await?;
    let length = from.length()?;
    let to = Side::target(args, length).await?;
    let arena = Arena::new(ArenaConfig::default());
    let progress = CopyProgress::new(args.quiet || args.json);
    progress.show(&Event::Started { path: &args.from.to_string_lossy(), bytes: length });
    let (from, to, arena, shown) = (&from, &to, &arena, &progress);
    let chunks = stream::iter((0..length.div_ceil(CHUNK)).map(|i| i * CHUNK));
    let copied = chunks.map(Ok).try_for_each_concurrent(usize::from(args.outstanding), |offset| async move {
        let bytes = CHUNK.min(length - offset) as usize;
        let buffer = arena.alloc(bytes).map_err(|e| Failure::new(e.to_string()))?;
        let data = from.read(offset, buffer).await?;
        to.write(offset, data, arena).await?;
        shown.show(&Event::Written { bytes });
        Ok::<_, Failure>(())
    });
    let result = copied.await;
    progress.finish();
    result?;
    to.flush().await?;
    for side in [from, to] {
        if let Side::Device(device) = side {
            device.close().await;
        }
    }
    Ok(length)
}

/// Runs `work`, which blocks, on another thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

impl Side {
    async fn source(args: &BlkCpArgs) -> Result<Self, Failure> {
        if is_url(&args.from) {
            return Ok(Self::Device(open(&url_text(&args.from), &args.options).await?));
        }
        let path = PathBuf::from(&args.from);
        let file = File::open(&path).map_err(|e| local("read", &path, &e))?;
        if file.metadata().is_ok_and(|m| m.is_dir()) {
            return Err(Failure::new(format!(
                "cannot read {}: it is a directory; name an image file",
                path.display()
            )));
        }
        Ok(Self::File { path, file: Arc::new(file) })
    }

    /// The target for `length` bytes.
    async fn target(args: &BlkCpArgs, length: u64) -> Result<Self, Failure> {
        let to = &args.to;
        if is_url(to) {
            let to = url_text(to);
            let device = open(&to, &args.options).await?;
            let capacity = device.capacity();
            if capacity < length {
                return Err(Failure::new(format!(
                    "{to} has {capacity} bytes, but {} has {length}; choose a larger target",
                    args.from.display()
                )));
            }
            return Ok(Self::Device(device));
        }
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(to);
        let file = opened.map_err(|e| local("write", Path::new(to), &e))?;
        // The size of a block device is fixed.
        if file.metadata().is_ok_and(|m| m.is_file()) {
            file.set_len(length).map_err(|e| local("write", Path::new(to), &e))?;
        }
        Ok(Self::File { path: to.into(), file: Arc::new(file) })
    }

    fn length(&self) -> Result<u64, Failure> {
        match self {
            Self::Device(device) => Ok(device.capacity()),
            // Also for block devices, whose metadata has no length.
            Self::File { path, file } => {
                (&**file).seek(SeekFrom::End(0)).map_err(|e| local("read", path, &e))
            }
        }
    }

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
