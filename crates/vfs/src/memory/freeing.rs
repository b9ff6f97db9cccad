//! Frees the blocks of removed content in steps.

use millrace_runtime::{RuntimeRef, yield_now};

use super::{
    content::{STEP, Truncated},
    inode::Body,
};

/// Blocks that are freed in steps: by [`run`](Self::run), or else by a task.
pub(super) struct Freeing {
    blocks: Truncated,
    runtime: RuntimeRef,
}

async fn free(mut blocks: Truncated) {
    while !blocks.free_step() {
        yield_now().await;
    }
}

impl Freeing {
    /// Frees the content of a removed object at once if it is short; otherwise returns it.
    pub(super) fn of_body(body: Body, runtime: &RuntimeRef) -> Option<Self> {
        let Body::File(content) = body else { return None };
        Self::new(content.into_removed(), runtime)
    }

    /// Frees blocks at once if they are few; otherwise returns them.
    pub(super) fn new(blocks: Truncated, runtime: &RuntimeRef) -> Option<Self> {
        let is_long = blocks.len() > STEP;
        is_long.then(|| Self { blocks, runtime: runtime.clone() })
    }

    /// Frees the blocks. If the future is dropped, a task continues.
    pub(super) async fn run(mut self) {
        while !self.blocks.free_step() {
            yield_now().await;
        }
    }
}

impl Drop for Freeing {
    fn drop(&mut self) {
        if self.blocks.len() > 0 {
            let blocks = std::mem::take(&mut self.blocks);
            self.runtime.spawn("memory-free", Box::pin(free(blocks)));
        }
    }
}
