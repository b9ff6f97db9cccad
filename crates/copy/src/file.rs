//! One file, from its first byte to its final name.

use crate::{
    Error, Metadata, Preserve,
    data::{self, Flow},
    tree::{Source, Target},
};

/// What to do with a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) verify: bool,
    pub(crate) preserve: Preserve,
}

/// A file that was copied.
pub(crate) struct Done<N> {
    pub(crate) node: N,
    pub(crate) bytes: u64,
}

/// Copies one regular file to `name` in `dir`. If anything fails nothing is left of it.
pub(crate) async fn copy<S: Source, T: Target>(
    (source, node, meta): (&S, &S::Node, &Metadata),
    (target, dir, name): (&T, &T::Node, &[u8]),
    how: How,
    flow: &Flow,
) -> Result<Done<T::Node>, Error> {
    let from = source.open(node).await?;
    let to = target.create(dir, name).await?;
    let outcome = tokio::select! {
        outcome = fill((source, &from, meta), (target, &to), how, flow) => outcome,
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
    how: How,
    flow: &Flow,
) -> Result<Done<T::Node>, Error> {
    let copied = data::transfer((source, from), (target, to), meta.size, how.verify, flow).await?;
    if let Some(sent) = copied.checksum {
        let back = target.read_back(to).await?;
        if data::checksum(target, &back, copied.bytes, flow).await? != sent {
            return Err(Error::Mismatch);
        }
    }
    let node = target.publish(to, meta, how.preserve).await?;
    Ok(Done { node, bytes: copied.bytes })
}
