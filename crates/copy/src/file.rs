//! The copy of one file: content, checksum, attributes, final name.

use crate::{
    Error, Metadata, Preserve,
    data::{self, Flow},
    tree::{Source, Target},
};

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

async fn fill<S: Source, T: Target>(
    (source, from, meta): (&S, &S::Reader, &Metadata),
    (target, to): (&T, &T::Writer),
    options: FileOptions,
    flow: &Flow,
) -> Result<Done<T::Node>, Error> {
    let copied = data::transfer((source, from), (target, to), meta.size, options.verify, flow).await?;
    if let Some(sent) = copied.checksum {
        let back = target.read_back(to).await?;
        if data::checksum(target, &back, copied.bytes, flow).await? != sent {
            return Err(Error::Mismatch);
        }
    }
    let node = target.publish(to, meta, options.preserve).await?;
    Ok(Done { node, bytes: copied.bytes })
}
