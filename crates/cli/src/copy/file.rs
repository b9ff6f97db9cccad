//! One file, from its first byte to its final name.

use super::{
    data::{self, Flow},
    tree::{Keep, Meta, Source, Target},
};
use crate::problem::Problem;

/// What to do with a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) verify: bool,
    pub(super) keep: Keep,
}

/// A file that was copied.
pub(super) struct Done<N> {
    pub(super) node: N,
    pub(super) bytes: u64,
}

/// Copies one regular file to `name` in `dir`. If anything fails nothing is left of it.
pub(super) async fn copy<S: Source, T: Target>(
    (source, node, meta): (&S, &S::Node, &Meta),
    (target, dir, name): (&T, &T::Node, &[u8]),
    how: How,
    flow: &Flow,
) -> Result<Done<T::Node>, Problem> {
    let from = source.open(node).await?;
    let to = target.create(dir, name).await?;
    let outcome = tokio::select! {
        outcome = fill((source, &from, meta), (target, &to), how, flow) => outcome,
        () = flow.progress.stopped() => Err(Problem::new("the copy was stopped")),
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
    (source, from, meta): (&S, &S::Reader, &Meta),
    (target, to): (&T, &T::Writer),
    how: How,
    flow: &Flow,
) -> Result<Done<T::Node>, Problem> {
    let copied = data::transfer((source, from), (target, to), meta.size, how.verify, flow).await?;
    if let Some(sent) = copied.checksum {
        let back = target.read_back(to).await?;
        if data::checksum(target, &back, copied.bytes, flow).await? != sent {
            return Err(Problem::new(
                "the copy differs from what was sent (SHA-256); nothing was left under its name, copy it again",
            ));
        }
    }
    let node = target.publish(to, meta, how.keep).await?;
    Ok(Done { node, bytes: copied.bytes })
}
