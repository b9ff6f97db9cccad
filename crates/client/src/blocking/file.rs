//! The blocking file.

use std::{
    io::{self, Read, Seek, SeekFrom, Write},
    ops::Range,
    path::Path,
    sync::Arc,
};

use millrace_buffer::{Buffer, Views};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use super::{Client, Driver};
use crate::{Error, FileTimes, LockKind, Metadata, OpenOptions, ReadInto};

/// An open file with a cursor, as [`crate::File`]. Dropping it flushes and commits, as closing a file on an
/// NFS mount does; an error is only logged: call [`Self::close`] to receive it.
#[derive(Debug)]
pub struct File {
    // Dropped before the driver, which must run while the file closes.
    inner: crate::File,
    driver: Arc<Driver>,
}

/// Defines methods that block on the asynchronous method of the same name.
macro_rules! mirror {
    ($(fn $name:ident(&self $(, $a:ident: $t:ty)*) -> $r:ty;)*) => {
        $(
            #[doc = concat!("As [`crate::File::", stringify!($name), "`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`crate::File::", stringify!($name), "`].")]
            pub fn $name(&self $(, $a: $t)*) -> Result<$r, Error> {
                self.driver.wait(self.inner.$name($($a),*))
            }
        )*
    };
}

impl File {
    pub(crate) fn open(client: &Client, options: &OpenOptions, path: &Path) -> Result<Self, Error> {
        let inner = client.driver.wait(options.open(client.inner(), path))?;
        Ok(Self { inner, driver: Arc::clone(&client.driver) })
    }

    /// The underlying asynchronous file.
    pub fn inner(&self) -> &crate::File {
        &self.inner
    }

    /// Flushes and commits all data, and returns the first error.
    ///
    /// # Errors
    /// As [`crate::File::sync_all`].
    pub fn close(self) -> Result<(), Error> {
        self.sync_all()
    }

    mirror! {
        fn read_at_into(&self, offset: u64, buffer: Buffer) -> ReadInto;
        fn write_at_from(&self, offset: u64, data: Views) -> ();
        fn sync_all(&self) -> ();
        fn sync_data(&self) -> ();
        fn metadata(&self) -> Metadata;
        fn set_len(&self, size: u64) -> ();
        fn set_permissions(&self, mode: u32) -> ();
        fn set_times(&self, times: FileTimes) -> ();
        fn xattr(&self, name: impl AsRef<[u8]>) -> Option<Vec<u8>>;
        fn set_xattr(&self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> ();
        fn list_xattrs(&self) -> Vec<Vec<u8>>;
        fn remove_xattr(&self, name: impl AsRef<[u8]>) -> ();
        fn lock(&self, range: Range<u64>, kind: LockKind) -> ();
        fn try_lock(&self, range: Range<u64>, kind: LockKind) -> bool;
        fn unlock(&self, range: Range<u64>) -> ();
    }
}

impl Read for File {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.driver.wait(self.inner.read(out))
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.driver.wait(self.inner.write(data))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.driver.wait(self.inner.flush())
    }
}

impl Seek for File {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.driver.wait(self.inner.seek(position))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Waiting would panic inside another runtime, where the file closes in the background instead.
        if !self.inner.is_closed() && tokio::runtime::Handle::try_current().is_err() {
            // The file logs the error.
            let _ = self.driver.wait(self.inner.close_logged());
        }
    }
}
