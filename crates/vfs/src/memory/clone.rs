//! Files that share blocks.
//!
//! CLONE is atomic: of a long range, the blocks of the destination are collected in a new map, in steps, and then replace
//! the old one. Meanwhile other calls read both files, and changes of their content fail with [`FsError::Jukebox`].

use std::{ops::ControlFlow, sync::Arc};

use millrace_buffer::BLOCK_BYTES;
use millrace_runtime::yield_now;

use super::{
    MAX_FILE_SIZE, MemoryFs,
    content::{
        Truncated,
        shared::{SharedBlocks, blocks_of},
    },
    freeing::Freeing,
    inode::{Inode, InodeState},
    permission,
    space::charge,
};
use crate::{FsError, FsResult, Handle, Identity, Wcc, WccAttr, types::check_copy};

/// A clone that needs several steps.
pub(super) struct LongClone {
    caller: Identity,
    input: Arc<Inode>,
    output: Arc<Inode>,
    from: u64,
    to: u64,
    length: u64,
}

/// An inode whose content does not change.
struct Frozen<'a>(&'a Inode);

impl<'a> Frozen<'a> {
    fn new(inode: &'a Inode) -> FsResult<Self> {
        inode.write()?.frozen_content_mut()?.freeze();
        Ok(Self(inode))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        // The content of a removed inode is gone.
        if let Ok(mut st) = self.0.write()
            && let Ok(content) = st.frozen_content_mut()
        {
            content.thaw();
        }
    }
}

/// The charge for a map of blocks that is not part of a file yet.
struct Charge<'a> {
    fs: &'a MemoryFs,
    bytes: u64,
}

impl Charge<'_> {
    fn set(&mut self, bytes: u64) -> FsResult<()> {
        charge(&self.fs.quota, bytes - self.bytes)?;
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.fs.quota.refund(self.bytes);
    }
}

impl MemoryFs {
    /// Clones a range, or returns the clone if it needs several steps.
    pub(super) fn clone_now(
        &self,
        caller: &Identity,
        (source, from): (&Handle, u64),
        (destination, to): (&Handle, u64),
        length: u64,
    ) -> FsResult<ControlFlow<Wcc, LongClone>> {
        check_copy((source, from), (destination, to), length)?;
        if [from, to].iter().any(|at| !at.is_multiple_of(BLOCK_BYTES as u64)) {
            return Err(FsError::Inval);
        }
        to.checked_add(length).filter(|end| *end <= MAX_FILE_SIZE).ok_or(FsError::FBig)?;
        let (input, output) = (self.inode(source)?, self.inode(destination)?);
        // The inodes are locked in the order of their indexes; one inode is locked once.
        let first = if input.id.index < output.id.index { Some(input.read()?) } else { None };
        let mut guard = output.write()?;
        let second = if input.id.index > output.id.index { Some(input.read()?) } else { None };
        let source = first.as_deref().or(second.as_deref()).unwrap_or(&guard);
        permission::check_read(source, caller)?;
        let content = source.content()?;
        content.check_share(from, length)?;
        permission::check_write(&guard, caller)?;
        guard.content()?.check_replace(to, length)?;
        let (blocks, place) = (blocks_of(from, length), blocks_of(to, length));
        if !(content.fits_step(blocks.clone()) && guard.content()?.fits_step(place.clone())) {
            drop((first, guard, second));
            let caller = caller.clone();
            return Ok(ControlFlow::Continue(LongClone { caller, input, output, from, to, length }));
        }
        let mut shared = SharedBlocks::default();
        content.share(blocks, place.start, false, &mut shared);
        let before = Some(WccAttr::from(&self.attr(&output, &guard)));
        let mut replaced = Truncated::default();
        if length > 0 {
            replaced = guard.content_mut()?.replace(&self.quota, place, to + length, shared)?;
            self.note_clone(&mut guard, caller);
        }
        let after = Some(self.attr(&output, &guard));
        drop((first, guard, second));
        drop(replaced);
        Ok(ControlFlow::Break(Wcc { before, after }))
    }

    fn note_clone(&self, st: &mut InodeState, caller: &Identity) {
        st.mode = permission::mode_after_write(st.mode, caller);
        st.set_mtime_and_ctime(self.now());
    }

    /// Performs a clone in steps.
    pub(super) async fn clone_long(&self, clone: LongClone) -> FsResult<Wcc> {
        let LongClone { caller, input, output, from, to, length } = clone;
        let frozen = (Frozen::new(&input)?, Frozen::new(&output)?);
        input.read()?.content()?.check_share(from, length)?;
        output.read()?.content()?.check_replace(to, length)?;
        let (blocks, place) = (blocks_of(from, length), blocks_of(to, length));
        let (mut shared, mut charge) = (SharedBlocks::default(), Charge { fs: self, bytes: 0 });
        let parts = [
            (&input, blocks, place.start, false),
            (&output, 0..place.start, 0, true),
            (&output, place.end..u64::MAX, place.end, true),
        ];
        for (inode, blocks, to, kept) in parts {
            let mut left = blocks.clone();
            while !left.is_empty() {
                let at = to + (left.start - blocks.start);
                left = inode.read()?.content()?.share(left, at, kept, &mut shared);
                charge.set(shared.heap_bytes())?;
                yield_now().await;
            }
        }
        drop(charge);
        let (wcc, replaced) = self.replace_all(&caller, &output, to + length, shared)?;
        drop(frozen);
        if let Some(freeing) = Freeing::new(replaced, &self.config.runtime) {
            freeing.run().await;
        }
        Ok(wcc)
    }

    /// The last step of a clone: replaces all blocks, and extends the file to `end`.
    fn replace_all(
        &self,
        caller: &Identity,
        output: &Inode,
        end: u64,
        shared: SharedBlocks,
    ) -> FsResult<(Wcc, Truncated)> {
        let mut st = output.write()?;
        permission::check_write(&st, caller)?;
        let before = Some(WccAttr::from(&self.attr(output, &st)));
        let replaced = st.frozen_content_mut()?.replace_all(&self.quota, end, shared)?;
        self.note_clone(&mut st, caller);
        Ok((Wcc { before, after: Some(self.attr(output, &st)) }, replaced))
    }
}
