//! Writing the files of objects.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use millrace_client::{Error, Views, buffer::copied, handles};

use crate::Objects;

/// Maximum number of WRITE calls in flight for one call.
const DEPTH: usize = 8;
/// Maximum number of bytes between two COMMITs: the client retains them.
const BATCH: usize = 16 << 20;

impl Objects {
    /// Writes `data` at `offset`, and commits it. The data is copied once, into memory of the client's arena.
    ///
    /// # Errors
    /// As [`handles::File::write_stream`].
    pub async fn write(
        &self,
        file: &handles::File,
        offset: u64,
        data: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), Error> {
        let mut rest: VecDeque<Bytes> = data.into_iter().collect();
        let mut left: usize = rest.iter().map(Bytes::len).sum();
        let mut next = offset;
        while left > 0 {
            let mut batch = left.min(BATCH);
            let _permit = self.memory.for_writing(batch).await;
            left -= batch;
            let pieces = |max: usize| {
                let len = batch.min(max);
                batch -= len;
                (len > 0).then(|| gather(file.client(), &mut rest, len)).transpose().map_err(Into::into)
            };
            next += file.write_stream(next, DEPTH, pieces).await?;
        }
        Ok(())
    }
}

/// Copies the next `len` bytes of `rest`, which has at least that many.
fn gather(client: &handles::Client, rest: &mut VecDeque<Bytes>, len: usize) -> Result<Views, Error> {
    let mut memory = client.buffer(len)?;
    let mut out = &mut memory[..];
    while let Some(part) = rest.front_mut()
        && !out.is_empty()
    {
        let (filled, unfilled) = out.split_at_mut(part.len().min(out.len()));
        part.copy_to_slice(filled);
        out = unfilled;
        if part.is_empty() {
            rest.pop_front();
        }
    }
    copied::count(len);
    Ok(memory.freeze().into())
}
