//! copy_file_range(2) within the server, with NFSv4.2. Otherwise, and if the server cannot copy, the kernel reads and writes.

use std::sync::Arc;

use millrace_client::handles::File;
use rustix::io::Errno;

use crate::{error::errno, fs::Fs, open_file::OpenFile};

/// Maximum number of bytes of one request; programs continue after fewer.
const MAX: u64 = 1 << 30;

impl Fs {
    /// Copies up to `len` bytes from offset `from` of `source` to offset `to` of `destination`. Returns the number, 0 only
    /// at the end of the source. The kernel has written its dirty pages, and drops those of the range after the reply.
    ///
    /// # Errors
    /// [`Errno::OPNOTSUPP`] and [`Errno::XDEV`], after which the kernel reads and writes.
    pub(crate) async fn copy_file_range(
        self: &Arc<Self>,
        (source, from): (&OpenFile, u64),
        (destination, to): (&OpenFile, u64),
        len: u64,
    ) -> Result<u32, Errno> {
        source.note_use();
        destination.note_use();
        if !source.client.is_same_caller(&destination.client) {
            return Err(Errno::XDEV); // COPY has the credentials of one caller.
        }
        let inode = &destination.inode;
        self.commit(&source.inode).await?;
        self.commit(inode).await?;
        let _change = inode.begin_change(&self.clock);
        let file = |of: &OpenFile| File::new(of.client.clone(), of.inode.handle);
        let (input, output) = (file(source), file(destination));
        let copied = output.copy_range(&destination.client, (&input, from), to, len.min(MAX)).await;
        // After an error a part may have been copied.
        inode.note_unknown_change(&self.clock);
        let copied = copied.map_err(|e| errno(&e))?;
        if copied > 0 {
            inode.note_extension(to.saturating_add(copied));
        }
        u32::try_from(copied).map_err(|_| Errno::IO)
    }
}
