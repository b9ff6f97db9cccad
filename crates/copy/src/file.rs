//! The copy of one file: content, checksum, attributes, final name.

use crate::{
    Error, Metadata, Preserve,
    control::Event,
    data::{self, Flow},
    tree::{Source, Target},
};

/// Time limit of a call in flight when the copy is stopped.
const LAST_CALL: std::time::Duration = std::time::Duration::from_secs(5);

/// Options for one file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileOptions {
    pub(crate) verify: bool,
    pub(crate) preserve: Preserve,
}

/// A copied file.
pub(crate) struct Done<N> {
    pub(crate) node: N,
    pub(crate) bytes: u64,
}

/// Copies one regular file to `name` in `dir`. Removes the temporary file after an error.
pub(crate) async fn copy<S: Source, T: Target>(
    (source, node, meta): (&S, &S::Node, &Metadata),
    (target, dir, name): (&T, &T::Node, &[u8]),
    options: FileOptions,
    flow: &Flow,
) -> Result<Done<T::Node>, Error> {
    let from = source.open(node).await?;
    if !options.verify && (1..=target.put_limit().min(flow.record as u64)).contains(&meta.size) {
        let mut put = std::pin::pin!(put((source, &from, meta), (target, dir, name), options, flow));
        let outcome = tokio::select! {
            outcome = &mut put => outcome,
            // A call in flight removes its temporary file if it fails. The server may be unreachable.
            () = flow.control.stopped() => {
                tokio::time::timeout(LAST_CALL, put).await.unwrap_or(Err(Error::Stopped))
            }
        };
        if let Some(done) = outcome? {
            return Ok(done);
        }
    }
    let to = target.create(dir, name).await?;
    let outcome = tokio::select! {
        outcome = fill((source, &from, meta), (target, &to), options, flow) => outcome,
        () = flow.control.stopped() => Err(Error::Stopped),
    };
    match outcome {
        Ok(done) => Ok(done),
        Err(e) => {
            target.discard(&to).await;
            Err(e)
        }
    }
}

/// Copies a small file in one step, if the target can do so.
async fn put<S: Source, T: Target>(
    (source, from, meta): (&S, &S::Reader, &Metadata),
    (target, dir, name): (&T, &T::Node, &[u8]),
    options: FileOptions,
    flow: &Flow,
) -> Result<Option<Done<T::Node>>, Error> {
    let _permit = flow.permit().await?;
    let data = source.read(from, 0, meta.size as usize).await?;
    if (data.len() as u64) < meta.size {
        return Err(Error::Shrunk);
    }
    flow.control.check()?;
    let node = target.put(dir, name, &data, (meta, options.preserve)).await?;
    Ok(node.map(|node| {
        flow.control.report(Event::Written { bytes: data.len() });
        Done { node, bytes: meta.size }
    }))
}

async fn fill<S: Source, T: Target>(
    (source, from, meta): (&S, &S::Reader, &Metadata),
    (target, to): (&T, &T::Writer),
    options: FileOptions,
    flow: &Flow,
) -> Result<Done<T::Node>, Error> {
    let (from, into) = ((source, from), (target, to));
    // The checksum is that of the data that was read from the source.
    let within = match options.verify {
        true => None,
        false => data::copy_within(from, into, meta.size, flow).await?,
    };
    let copied = match within {
        Some(copied) => copied,
        None => data::transfer(from, into, meta.size, options.verify, flow).await?,
    };
    if let Some(sent) = copied.checksum {
        let back = target.read_back(to).await?;
        if data::checksum(target, &back, copied.bytes, flow).await? != sent {
            return Err(Error::Mismatch);
        }
    }
    let node = target.publish(to, meta, options.preserve).await?;
    Ok(Done { node, bytes: copied.bytes })
}
